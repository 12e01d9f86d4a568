"""Views: random augmentations of an image that its regions can follow."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional

from rncdl.config import Augmentation
from rncdl.data.colours import STRENGTHS, Dice, distort
from rncdl.data.transforms import resized_size


@dataclass(frozen=True)
class View:
    """One augmentation of an image, and the geometry that boxes must follow."""

    image: Tensor
    """(3, H, W) uint8"""
    scale_x: float
    scale_y: float
    flipped: bool
    distorted: bool
    """its colours may be others than the image's"""

    def carry_boxes(self, boxes_xyxy: Tensor) -> Tensor:
        """Boxes of the original image, (R, 4), where they lie in this view."""
        scale = boxes_xyxy.new_tensor([self.scale_x, self.scale_y, self.scale_x, self.scale_y])
        boxes = boxes_xyxy * scale
        if not self.flipped:
            return boxes
        width = self.image.shape[-1]
        x1, y1, x2, y2 = boxes.unbind(-1)
        return torch.stack([width - x2, y1, width - x1, y2], dim=-1)


def draw_view(
    image: Tensor,
    generator: torch.Generator,
    *,
    strength: Augmentation,
    short_sides_px: Sequence[int],
    long_side_px: int,
    flip_chance: float,
) -> View:
    """A random view of `image` (3, h, w) uint8: resized, flipped, recoloured, blurred; no crop."""
    draw = Dice(generator)
    height, width = image.shape[-2:]
    short_side = short_sides_px[draw.integer(len(short_sides_px))]
    new_height, new_width = resized_size(height, width, short_side, long_side_px)
    if (new_height, new_width) != (height, width):
        image = functional.resize_image(image, [new_height, new_width], antialias=True)
    flipped = draw.happens(flip_chance)
    if flipped:
        image = image.flip(-1)
    return View(
        image=distort(image, STRENGTHS[strength], draw),
        scale_x=new_width / width,
        scale_y=new_height / height,
        flipped=flipped,
        distorted=strength != "none",
    )
