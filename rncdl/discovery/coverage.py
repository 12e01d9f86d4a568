"""How many annotated objects the bank's regions fit: a guess at how many new ones they do."""

import torch
from torchvision.ops import box_iou

from rncdl.data.viewed_images import Pool
from rncdl.discovery.bank import Bank

FITS_IOU = 0.5
FEW = 0.5
"""Below this share most objects, new ones too, have no region that could be put into a cluster."""
_LOOKED_AT = 200
"""Labelled images, spread over all, that stand for all."""


def covered_share(bank: Bank, pool: Pool) -> float | None:
    """Of the annotated objects, those that a region of the bank fits; None where there are none."""
    annotations = pool.labels.annotations
    counts = bank.counts()
    every = max(1, pool.num_labelled // _LOOKED_AT)
    num_objects = num_covered = 0
    for index in range(0, pool.num_labelled, every):
        rows = (annotations.image_index == index) & ~annotations.is_crowd
        if counts[index] < 0 or not rows.any():
            continue
        objects = torch.from_numpy(annotations.boxes_xyxy[rows]).float()
        regions = bank.read_boxes(index, count=int(counts[index])).float()
        best = box_iou(objects, regions).max(1).values if len(regions) else torch.zeros(1)
        num_objects += len(objects)
        num_covered += int((best >= FITS_IOU).sum())
    return num_covered / num_objects if num_objects else None


def describe_coverage(share: float) -> str:
    """What to say of it."""
    return f"{100 * share:.0f} % of the annotated objects have a region that fits (IoU {FITS_IOU})"
