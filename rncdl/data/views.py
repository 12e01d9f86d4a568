"""Views: random augmentations of an image that its regions can follow."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional

from rncdl.data.transforms import resized_size

BLUR_REFERENCE_PX = 640
"""Blur is given for images of this short side and scales with the image."""


@dataclass(frozen=True)
class Strength:
    """How far colours and sharpness may move, and how often each does."""

    brightness: float
    contrast: float
    saturation: float
    hue: float
    jitter_chance: float
    grey_chance: float
    blur_chance: float
    blur_sigmas_px: tuple[float, float]


STRENGTHS: dict[str, Strength] = {
    # The paper says "weaker versions" of SimCLR's distortions and no numbers: half of each.
    "weak": Strength(0.4, 0.4, 0.4, 0.1, 0.8, 0.1, 0.25, (0.1, 1.0)),
    # What the authors' code does.
    "simclr": Strength(0.8, 0.8, 0.8, 0.2, 0.8, 0.2, 0.5, (0.1, 2.0)),
}


@dataclass(frozen=True)
class View:
    """One augmentation of an image, and the geometry that boxes must follow."""

    image: Tensor
    """(3, H, W) uint8"""
    scale_x: float
    scale_y: float
    flipped: bool

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
    strength: Literal["weak", "simclr"],
    short_sides_px: Sequence[int],
    long_side_px: int,
    flip_chance: float,
) -> View:
    """A random view of `image` (3, h, w) uint8: resized, flipped, recoloured, blurred; no crop."""
    draw = _Dice(generator)
    height, width = image.shape[-2:]
    short_side = short_sides_px[draw.integer(len(short_sides_px))]
    new_height, new_width = resized_size(height, width, short_side, long_side_px)
    if (new_height, new_width) != (height, width):
        image = functional.resize_image(image, [new_height, new_width], antialias=True)
    flipped = draw.happens(flip_chance)
    if flipped:
        image = image.flip(-1)
    return View(
        image=_distort(image, STRENGTHS[strength], draw),
        scale_x=new_width / width,
        scale_y=new_height / height,
        flipped=flipped,
    )


class _Dice:
    """Random numbers from one generator."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def integer(self, stop: int) -> int:
        return int(torch.randint(stop, (), generator=self._generator))

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * torch.rand((), generator=self._generator).item()

    def happens(self, chance: float) -> bool:
        return torch.rand((), generator=self._generator).item() < chance

    def order(self, count: int) -> list[int]:
        return torch.randperm(count, generator=self._generator).tolist()


def _distort(image: Tensor, strength: Strength, draw: _Dice) -> Tensor:
    if draw.happens(strength.jitter_chance):
        image = _jitter(image, strength, draw)
    if draw.happens(strength.grey_chance):
        image = functional.rgb_to_grayscale_image(image, num_output_channels=3)
    if draw.happens(strength.blur_chance):
        sigma = draw.between(*strength.blur_sigmas_px)
        image = blur(image, sigma * min(image.shape[-2:]) / BLUR_REFERENCE_PX)
    return image.contiguous()


def _jitter(image: Tensor, strength: Strength, draw: _Dice) -> Tensor:
    """Brightness, contrast, saturation and hue, each by a random amount, in random order."""
    factors = [
        draw.between(max(0.0, 1 - amount), 1 + amount)
        for amount in (strength.brightness, strength.contrast, strength.saturation)
    ]
    hue = draw.between(-strength.hue, strength.hue)
    for index in draw.order(4):
        if index == 0:
            image = functional.adjust_brightness_image(image, factors[0])
        elif index == 1:
            image = functional.adjust_contrast_image(image, factors[1])
        elif index == 2:
            image = functional.adjust_saturation_image(image, factors[2])
        else:
            image = functional.adjust_hue_image(image, hue)
    return image


def blur(image: Tensor, sigma_px: float) -> Tensor:
    """`image` (3, H, W) uint8, blurred by a Gaussian of `sigma_px`.

    Two one-dimensional passes: a third of the time of torchvision's square kernel.
    """
    radius = math.ceil(3 * sigma_px)
    if radius == 0:
        return image
    offsets = torch.arange(-radius, radius + 1, dtype=torch.float32)
    kernel = torch.exp(-0.5 * (offsets / sigma_px) ** 2)
    kernel /= kernel.sum()
    rows = image.to(torch.float32).unsqueeze(1)
    rows = torch.nn.functional.pad(rows, (radius,) * 4, mode="replicate")
    rows = torch.nn.functional.conv2d(rows, kernel.view(1, 1, 1, -1))
    rows = torch.nn.functional.conv2d(rows, kernel.view(1, 1, -1, 1))
    return rows.squeeze(1).round_().clamp_(0, 255).to(torch.uint8)
