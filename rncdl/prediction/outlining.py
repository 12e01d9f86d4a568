"""Masks of regions that are already found."""

import torch
from torch import Tensor

from rncdl.data.samples import Sample, to_sample_pixels
from rncdl.detector.model import Detector
from rncdl.detector.pasting import paste_masks


@torch.inference_mode()
def outline_regions(detector: Detector, sample: Sample, boxes_xyxy: Tensor) -> list[dict]:
    """COCO run lengths over the image on disk, one for each of its boxes (R, 4).

    The detector has a mask head and is in evaluation mode.
    """
    maps = detector.feature_maps(detector.batch_images([sample.image]))
    boxes = to_sample_pixels(boxes_xyxy, sample).to(detector.device)
    masks = detector.mask_logits(maps, [boxes]).float().sigmoid()
    return paste_masks(masks, boxes_xyxy, sample.original_size)
