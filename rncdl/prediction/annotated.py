"""What a detector makes of annotated boxes. For evaluation only."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from pycocotools import mask as coco_mask
from torch import Tensor

from rncdl.config import Settings
from rncdl.data.datasets import BadImage
from rncdl.data.masks import to_rle
from rncdl.data.records import AnnotationSet
from rncdl.data.samples import Sample, to_original_pixels, to_sample_pixels
from rncdl.detector.locating import locate
from rncdl.detector.model import Detector
from rncdl.detector.pasting import paste_masks
from rncdl.prediction.classifier import Classifier
from rncdl.prediction.inference import limits_of, load_batches
from rncdl.training.processes import Processes, autocast, choose_precision


@dataclass(frozen=True)
class AnnotatedLook:
    """What was seen at the annotated boxes, and where the detector looks by itself."""

    outputs: list[np.ndarray]
    """per classifier, the best output (A,) of every annotation, -1 where its image was skipped"""
    proposals: list[np.ndarray]
    """per image (P, 4), refined, not fitted to masks, the best first"""
    mask_ious: np.ndarray
    """(A,) of the mask head's mask in each annotated box with the annotated one; NaN: no mask"""
    bad_images: list[BadImage]
    """that this process skipped"""


@torch.inference_mode()
def look_at_annotations(
    detector: Detector,
    truth: AnnotationSet,
    classifiers: Sequence[Classifier],
    *,
    settings: Settings,
    processes: Processes,
) -> AnnotatedLook:
    """What each classifier makes of all annotated boxes; all processes have the whole."""
    outputs = [np.full(len(truth.category_ids), -1, dtype=np.int64) for _ in classifiers]
    mask_ious = np.full(len(truth.category_ids), np.nan)
    proposals: dict[int, np.ndarray] = {}
    bad_images: list[BadImage] = []
    detector.eval()
    for batch in load_batches(truth.images, settings=settings, processes=processes, title="look"):
        bad_images.extend(batch.bad_images)
        if not batch.samples:
            continue
        rows = [truth.rows_of_image(sample.image_index) for sample in batch.samples]
        boxes = [
            to_sample_pixels(torch.from_numpy(truth.boxes_xyxy[of_image]).float(), sample)
            for of_image, sample in zip(rows, batch.samples, strict=True)
        ]
        seen = _look_at_batch(detector, batch.samples, boxes, classifiers, settings)
        flat_rows = np.concatenate([np.arange(r.start, r.stop) for r in rows])
        for column, values in zip(outputs, seen.outputs, strict=True):
            column[flat_rows] = values
        if seen.masks is not None:
            masks_of_images = seen.masks.split([len(image_boxes) for image_boxes in boxes])
            for own_rows, masks in zip(rows, masks_of_images, strict=True):
                mask_ious[own_rows] = _overlap_with_truth(masks, truth, own_rows)
        for sample, image_boxes in zip(batch.samples, seen.proposals, strict=True):
            in_pixels = to_original_pixels(image_boxes, sample).float().cpu().numpy()
            proposals[sample.image_index] = in_pixels
    shares = processes.gather((outputs, proposals, mask_ious))
    of_image = {index: boxes for share in shares for index, boxes in share[1].items()}
    nothing = np.zeros((0, 4), dtype=np.float32)
    return AnnotatedLook(
        [np.maximum.reduce(columns) for columns in zip(*(s[0] for s in shares), strict=True)],
        [of_image.get(index, nothing) for index in range(len(truth.images))],
        np.fmax.reduce([share[2] for share in shares]),
        bad_images,
    )


@dataclass(frozen=True)
class _BatchLook:
    outputs: list[np.ndarray]
    """per classifier, the best output (A,) of the boxes"""
    proposals: list[Tensor]
    """per image, refined"""
    masks: Tensor | None
    """(A, S, S) probabilities inside the boxes; None: the detector has no masks"""


def _look_at_batch(
    detector: Detector,
    samples: Sequence[Sample],
    boxes: Sequence[Tensor],
    classifiers: Sequence[Classifier],
    settings: Settings,
) -> _BatchLook:
    device = detector.device
    # Masks of all regions would cost more than all the rest.
    search = replace(limits_of(settings.predict).search, mask_share=0.0)
    with autocast(device, choose_precision(settings.train.precision, device)):
        batch = detector.batch_images([sample.image for sample in samples])
        maps = detector.feature_maps(batch)
        located = locate(detector, maps, batch, search=search)
        on_device = [image_boxes.to(device) for image_boxes in boxes]
        features = detector.region_features(maps, on_device)
        best = [
            classifier.probabilities(features, batch=batch, boxes=on_device).argmax(1)
            for classifier in classifiers
        ]
        masks = None
        if detector.mask_head is not None:
            masks = detector.mask_logits(maps, on_device).float().sigmoid().cpu()
    return _BatchLook([column.cpu().numpy() for column in best], located.boxes, masks)


def _overlap_with_truth(masks: Tensor, truth: AnnotationSet, rows: slice) -> np.ndarray:
    """(rows,) IoU of masks (rows, S, S), laid over their boxes, with an image's annotations."""
    ious = np.full(len(masks), np.nan)
    if not len(masks):
        return ious
    image = truth.images[truth.image_index[rows.start]]
    boxes = torch.from_numpy(truth.boxes_xyxy[rows])
    pasted = paste_masks(masks, boxes, (image.height, image.width))
    for i, (predicted, row) in enumerate(zip(pasted, range(rows.start, rows.stop), strict=True)):
        segmentation = truth.segmentations[row]
        if segmentation is not None and not truth.is_crowd[row]:
            annotated = to_rle(segmentation, image.height, image.width)
            ious[i] = coco_mask.iou([predicted], [annotated], [0])[0, 0]
    return ious
