"""Sample: one image ready for the network, with what is known about it."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Sample:
    """An image after its geometric transforms, and its known annotations in the same frame.

    n annotations; n is 0 for unlabelled images. Crowd annotations are never among them.
    """

    image: Tensor
    """(3, H, W) uint8 RGB"""
    boxes_xyxy: Tensor
    """(n, 4) float32, pixels of `image`"""
    labels: Tensor
    """(n,) int64 in 0..K-1; `WITHOUT_CLASS`, or K, the background, where nobody labelled it"""
    masks: Tensor | None
    """(n, H, W) bool, None where the labels are boxes only"""
    image_index: int
    """position in the annotation set"""
    path: str
    original_size: tuple[int, int]
    """(height, width) of the image on disk; boxes scale by W / width, H / height"""
    is_mirrored: bool = False
    """whether left and right were exchanged"""
    maps: list[Tensor] | None = None
    """the frozen backbone's maps (C, H, W) of `image`, where they were computed before"""


def unlabelled_sample(pixels: Tensor, *, image_index: int, path: str) -> Sample:
    """A sample of an image (3, H, W) uint8 alone, at its own size."""
    return Sample(
        image=pixels,
        boxes_xyxy=torch.zeros((0, 4)),
        labels=torch.zeros(0, dtype=torch.int64),
        masks=None,
        image_index=image_index,
        path=path,
        original_size=(pixels.shape[1], pixels.shape[2]),
    )


def to_original_pixels(boxes_xyxy: Tensor, sample: Sample) -> Tensor:
    """Boxes (R, 4) of the sample's image in the pixels of the image on disk."""
    height, width = sample.original_size
    scale_y, scale_x = height / sample.image.shape[1], width / sample.image.shape[2]
    return boxes_xyxy * boxes_xyxy.new_tensor((scale_x, scale_y, scale_x, scale_y))


def to_sample_pixels(boxes_xyxy: Tensor, sample: Sample) -> Tensor:
    """Boxes (R, 4) of the image on disk in the pixels of the sample's image."""
    height, width = sample.original_size
    scale_y, scale_x = sample.image.shape[1] / height, sample.image.shape[2] / width
    return boxes_xyxy * boxes_xyxy.new_tensor((scale_x, scale_y, scale_x, scale_y))
