"""Crops: regions as small pictures of their own, and a network that classifies them."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Generator, Tensor, nn
from torchvision.ops import roi_align

from rncdl.config import DetectorSettings
from rncdl.data.colours import Strength
from rncdl.detector.backbones import build_backbone
from rncdl.detector.model import ImageBatch
from rncdl.detector.weights import load_backbone_weights
from rncdl.prediction.classifier import LooksAtPixels

CHUNK = 512
"""Crops that go through the network at once."""
_SMALLEST_SHARE = 0.7
"""Of a box's width and height, what a view shows at least: half its area."""


def cut_crops(pixels: Tensor, boxes_xyxy: Tensor, *, images: Tensor, side_px: int) -> Tensor:
    """(R, 3, side_px, side_px): each box padded to a square with the mean pixel, then resized.

    `pixels` (B, 3, H, W) are normalised, so that the mean pixel is zero; `images` (R,) says in
    which of the B images a box lies. Every output pixel is the mean over its cell of the square.
    """
    squares = square_boxes(boxes_xyxy)
    regions = torch.cat([images[:, None].to(squares), squares], 1)
    sampled = roi_align(pixels, regions, side_px, sampling_ratio=0, aligned=True)
    across = _share_inside(boxes_xyxy[:, 0::2], squares[:, 0::2], side_px)
    down = _share_inside(boxes_xyxy[:, 1::2], squares[:, 1::2], side_px)
    return sampled * (down[:, :, None] * across[:, None, :])[:, None]


def square_boxes(boxes_xyxy: Tensor) -> Tensor:
    """(R, 4) squares about the boxes' centres with their longer side, at least one pixel."""
    centres = (boxes_xyxy[:, :2] + boxes_xyxy[:, 2:]) / 2
    sides = (boxes_xyxy[:, 2:] - boxes_xyxy[:, :2]).amax(1, keepdim=True).clamp_min(1)
    return torch.cat([centres - sides / 2, centres + sides / 2], 1)


def _share_inside(ends: Tensor, square_ends: Tensor, count: int) -> Tensor:
    """(R, count) how much of each of the square's cells lies inside the box, along one axis.

    `ends`, `square_ends` (R, 2): where box and square begin and end.
    """
    start, end = square_ends[:, :1], square_ends[:, 1:]
    step = (end - start) / count
    left = start + step * torch.arange(count, device=ends.device)
    covered = torch.minimum(left + step, ends[:, 1:]) - torch.maximum(left, ends[:, :1])
    return (covered / step).clamp(0, 1)


def draw_crops(
    pixels: Tensor,
    boxes_xyxy: Tensor,
    *,
    images: Tensor,
    side_px: int,
    strength: Strength,
    flip_chance: float,
    generator: Generator,
) -> Tensor:
    """(R, 3, side_px, side_px): a random view of each crop: part of its box, mirrored, recoloured.

    Brightness moves by up to `strength.brightness` standard deviations of the pixels; contrast,
    saturation and grey are as for images. Each crop draws for itself.
    """
    count = len(boxes_xyxy)

    def draw(*shape: int) -> Tensor:
        drawn = torch.rand(count, *shape, generator=generator)
        return drawn.to(pixels.device, non_blocking=True)

    def factor(amount: float) -> Tensor:
        return 1 + amount * (2 * draw(1, 1, 1) - 1)

    sides = boxes_xyxy[:, 2:] - boxes_xyxy[:, :2]
    shown = sides * (_SMALLEST_SHARE + (1 - _SMALLEST_SHARE) * draw(2))
    corner = boxes_xyxy[:, :2] + (sides - shown) * draw(2)
    crops = cut_crops(
        pixels, torch.cat([corner, corner + shown], 1), images=images, side_px=side_px
    )
    crops = torch.where(draw(1, 1, 1) < flip_chance, crops.flip(-1), crops)
    contrast, saturation = factor(strength.contrast), factor(strength.saturation)
    grey_chance = draw(1, 1, 1) < strength.grey_chance
    brightness = factor(strength.brightness) - 1
    middle = crops.mean((1, 2, 3), keepdim=True)
    crops = middle + (crops - middle) * contrast + brightness
    grey = crops.mean(1, keepdim=True)
    return grey + (crops - grey) * torch.where(grey_chance, 0.0, saturation)


class CropEncoder(nn.Module):
    """The detector's backbone as it was before training, averaged over the crop."""

    def __init__(self, settings: DetectorSettings) -> None:
        super().__init__()
        self.backbone = build_backbone(
            settings.backbone,
            norm=settings.norm,
            frozen_blocks=settings.frozen_blocks,
        )
        if isinstance(settings.weights, Path):
            load_backbone_weights(self.backbone, settings.weights)
        self.backbone.to(memory_format=torch.channels_last)
        self.width = self.backbone.channels[-1]
        """D, the size of a crop's feature"""

    def forward(self, crops: Tensor) -> Tensor:
        """(R, D) features of crops (R, 3, side, side)."""
        # Channels last is a quarter faster on a CPU at 32 px, and what GPUs prefer.
        pixels = crops.contiguous(memory_format=torch.channels_last)
        return self.backbone(pixels)[-1].mean((2, 3))


class CropClassifier(nn.Module, LooksAtPixels):
    """Cuts every box out of its image and classifies the crop.

    `encoder`: from crops (R, 3, side_px, side_px) to features (R, D); `classify`: from them to
    probabilities (R, C).
    """

    def __init__(self, encoder: nn.Module, classify: nn.Module, side_px: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.classify = classify
        self.side_px = side_px

    def classify_boxes(self, batch: ImageBatch, boxes: Sequence[Tensor]) -> Tensor:
        """(R, C) probabilities of all images' boxes, in their order."""
        return self.classify(encode_boxes(self.encoder, batch.pixels, boxes, side_px=self.side_px))


def encode_boxes(
    encoder: nn.Module, pixels: Tensor, boxes: Sequence[Tensor], *, side_px: int
) -> Tensor:
    """(R, D) the encoder's features of all images' boxes, in their order, cut as they are.

    The encoder may run in half precision (autocast); its features are float32.
    """
    all_boxes = torch.cat(list(boxes)).to(pixels.device, non_blocking=True)
    places = places_of(boxes).to(pixels.device, non_blocking=True)
    parts = [
        encoder(cut_crops(pixels, some_boxes, images=their_images, side_px=side_px)).float()
        for some_boxes, their_images in zip(
            all_boxes.split(CHUNK), places.split(CHUNK), strict=True
        )
    ]
    return torch.cat(parts)


def places_of(boxes: Sequence[Tensor]) -> Tensor:
    """(R,) the image that each of all images' boxes lies in; on the CPU, where counts are known."""
    return torch.cat([torch.full((len(own),), image) for image, own in enumerate(boxes)])
