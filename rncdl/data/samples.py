"""Sample: one image ready for the network, with what is known about it."""

from dataclasses import dataclass

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
    """(n,) int64 in 0..K-1"""
    masks: Tensor | None
    """(n, H, W) bool, None where the labels are boxes only"""
    image_index: int
    """position in the annotation set"""
    path: str
    original_size: tuple[int, int]
    """(height, width) of the image on disk; boxes scale by W / width, H / height"""
