"""Resizing, flipping and recolouring a sample: image, boxes and masks in step."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as geometry

from rncdl.data.colours import Dice, Strength, distort
from rncdl.data.samples import Sample


def resized_size(height: int, width: int, short_side_px: int, long_side_px: int) -> tuple[int, int]:
    """(height, width) with the shortest side at `short_side_px`, unless the longest one would
    exceed `long_side_px`: then that one is at its limit. The shape is kept, to the pixel.
    """
    scale = min(short_side_px / min(height, width), long_side_px / max(height, width))
    return max(1, int(height * scale + 0.5)), max(1, int(width * scale + 0.5))


def augment_sample(
    sample: Sample,
    rng: np.random.Generator,
    *,
    short_sides_px: Sequence[int],
    long_side_px: int,
    flip: float,
    colours: Strength,
) -> Sample:
    """The sample resized to a drawn shortest side, mirrored with probability `flip`, and its
    colours distorted as far as `colours` allows.
    """
    short_side_px = short_sides_px[int(rng.integers(len(short_sides_px)))]
    is_mirrored = rng.random() < flip
    dice = Dice(torch.Generator().manual_seed(int(rng.integers(2**63))))
    sample = resize_sample(sample, short_side_px=short_side_px, long_side_px=long_side_px)
    if is_mirrored:
        sample = mirror_sample(sample)
    return replace(sample, image=distort(sample.image, colours, dice))


def resize_sample(sample: Sample, *, short_side_px: int, long_side_px: int) -> Sample:
    """The sample at the size that `resized_size` gives."""
    height, width = sample.image.shape[-2:]
    size = resized_size(height, width, short_side_px, long_side_px)
    if size == (height, width):
        return sample
    stretch = sample.boxes_xyxy.new_tensor([size[1] / width, size[0] / height] * 2)
    return replace(
        sample,
        image=geometry.resize_image(sample.image, list(size), antialias=True),
        boxes_xyxy=sample.boxes_xyxy * stretch,
        masks=None if sample.masks is None else resize_masks(sample.masks, size),
    )


def mirror_sample(sample: Sample) -> Sample:
    """The sample with left and right exchanged."""
    width = sample.image.shape[-1]
    boxes = sample.boxes_xyxy.clone()
    boxes[:, 0::2] = width - sample.boxes_xyxy[:, [2, 0]]
    return replace(
        sample,
        image=geometry.horizontal_flip_image(sample.image),
        boxes_xyxy=boxes,
        masks=None if sample.masks is None else geometry.horizontal_flip_mask(sample.masks),
        is_mirrored=not sample.is_mirrored,
    )


def resize_masks(masks: Tensor, size: tuple[int, int]) -> Tensor:
    """(n, *size) bool. The nearest pixel by its centre: v2's own choice for masks goes by the
    pixel's corner, which shifts them by up to half a pixel against image and boxes.
    """
    if len(masks) == 0:
        return masks.new_zeros((0, *size))
    return geometry.resize_image(
        masks.byte(), list(size), interpolation=InterpolationMode.NEAREST_EXACT
    ).bool()
