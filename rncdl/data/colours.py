"""Random distortions of an image's colours and sharpness."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional

from rncdl.config import Augmentation

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


STRENGTHS: dict[Augmentation, Strength] = {
    "none": Strength(0, 0, 0, 0, 0, 0, 0, (0, 0)),
    # The paper says "weaker versions" of SimCLR's distortions and no numbers: half of each.
    "weak": Strength(0.4, 0.4, 0.4, 0.1, 0.8, 0.1, 0.25, (0.1, 1.0)),
    # What the authors' code does.
    "simclr": Strength(0.8, 0.8, 0.8, 0.2, 0.8, 0.2, 0.5, (0.1, 2.0)),
}


class Dice:
    """Random numbers from one generator."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def integer(self, stop: int) -> int:
        """One of 0 to `stop` - 1."""
        return int(torch.randint(stop, (), generator=self._generator))

    def between(self, low: float, high: float) -> float:
        """A number of the interval."""
        return low + (high - low) * torch.rand((), generator=self._generator).item()

    def happens(self, chance: float) -> bool:
        """True with this probability."""
        return torch.rand((), generator=self._generator).item() < chance

    def order(self, count: int) -> list[int]:
        """0 to `count` - 1 in some order."""
        return torch.randperm(count, generator=self._generator).tolist()


def distort(image: Tensor, strength: Strength, draw: Dice) -> Tensor:
    """`image` (3, H, W) uint8, recoloured and blurred as far as `strength` and the dice say."""
    if draw.happens(strength.jitter_chance):
        image = _jitter(image, strength, draw)
    if draw.happens(strength.grey_chance):
        image = functional.rgb_to_grayscale_image(image, num_output_channels=3)
    if draw.happens(strength.blur_chance):
        sigma = draw.between(*strength.blur_sigmas_px)
        image = blur(image, sigma * min(image.shape[-2:]) / BLUR_REFERENCE_PX)
    return image.contiguous()


def _jitter(image: Tensor, strength: Strength, draw: Dice) -> Tensor:
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
