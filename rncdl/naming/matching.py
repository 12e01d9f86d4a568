"""Regions found again: which region of an earlier discovery is which of this one."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torchvision.ops import box_iou

from rncdl.naming.membership import Membership
from rncdl.training.progress import ProgressLine

SAME_REGION_IOU = 0.5
"""Boxes of two banks that overlap by at least this are taken for the same region."""


@dataclass(frozen=True)
class Matches:
    """For each of the R regions of a membership, the region of an earlier one that it is."""

    rows: np.ndarray
    """(R,) row in the earlier membership; -1: it was not there"""
    iou: np.ndarray
    """(R,) how well the boxes agree; 0 where it was not there"""


def match_regions(now: Membership, before: Membership, *, shown: bool = True) -> Matches:
    """By their numbers where both are of the same bank, otherwise by images and boxes."""
    if _bank_of(now) == _bank_of(before):
        return _match_numbers(now, before)
    return _match_boxes(now, before, shown=shown)


def _bank_of(membership: Membership) -> tuple[object, object]:
    return membership.origin["bank"], membership.origin["regions"]


def _match_numbers(now: Membership, before: Membership) -> Matches:
    rows = np.full(len(now.keys), -1, dtype=np.int64)
    rows[now.by_key] = before.by_key
    return Matches(rows, np.ones(len(rows), dtype=np.float32))


def _match_boxes(now: Membership, before: Membership, *, shown: bool) -> Matches:
    found = Matches(
        np.full(len(now.keys), -1, dtype=np.int64), np.zeros(len(now.keys), dtype=np.float32)
    )
    pairs = list(_shared_images(now, before))
    with ProgressLine("find regions again", len(pairs), unit="images", shown=shown) as progress:
        for image, image_before in pairs:
            rows, rows_before = _rows_of_image(now, image), _rows_of_image(before, image_before)
            if len(rows) and len(rows_before):
                overlap, best = box_iou(
                    torch.from_numpy(now.boxes_xyxy[rows]),
                    torch.from_numpy(before.boxes_xyxy[rows_before]),
                ).max(1)
                is_same = (overlap >= SAME_REGION_IOU).numpy()
                found.rows[rows[is_same]] = rows_before[best.numpy()[is_same]]
                found.iou[rows[is_same]] = overlap.numpy()[is_same]
            progress.advance(1)
    return found


def _shared_images(now: Membership, before: Membership) -> Iterator[tuple[int, int]]:
    """Places in both banks of the images that both have."""
    place_before = {os.path.realpath(path): i for i, path in enumerate(before.image_paths())}
    for image, path in enumerate(now.image_paths()):
        image_before = place_before.get(os.path.realpath(path))
        if image_before is not None:
            yield image, image_before


def _rows_of_image(membership: Membership, image: int) -> np.ndarray:
    start, stop = np.searchsorted(membership.keys, [image << 32, (image + 1) << 32])
    return membership.by_key[start:stop]
