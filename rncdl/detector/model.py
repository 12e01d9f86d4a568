"""The class-agnostic R-CNN: one box and one mask per region, whatever its class."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.rpn import RPNHead
from torchvision.ops import FeaturePyramidNetwork, roi_align
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from rncdl.config import DetectorSettings
from rncdl.detector.backbone_blocks import STRIDES_PX
from rncdl.detector.backbones import build_backbone
from rncdl.detector.boxes import REGION_CODER, at_least_float32, clip_boxes, pyramid_anchors
from rncdl.detector.mask_detail import MaskDetail
from rncdl.detector.pooling import pool_regions
from rncdl.detector.proposals import AnchorScores
from rncdl.detector.vit import SimplePyramid
from rncdl.detector.weights import load_backbone_weights
from rncdl.errors import UserError

BOX_POOL = 7
MASK_POOL = 14
MASK_SIZE = 2 * MASK_POOL
PYRAMID_STRIDES_PX = (*STRIDES_PX, 64)
SIZE_DIVISOR_PX = 32
"""Batches are padded to a multiple of this, the stride of P5."""


@dataclass
class ImageBatch:
    """B images as the network takes them."""

    pixels: Tensor
    """(B, 3, H, W) float32, normalised; the padding at right and bottom is zero"""
    sizes_hw: list[tuple[int, int]]
    """size of each image without padding"""
    backbone_maps: list[Tensor] | None = None
    """the backbone's maps (B, C, H, W), where they were computed before"""


class Detector(nn.Module):
    """A Mask R-CNN (a Faster R-CNN without `masks`) whose boxes and masks know no class.

    Its parts are called one by one; `losses.py` and `locating.py` put them in order.
    """

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(self, settings: DetectorSettings, num_known: int, *, masks: bool) -> None:
        super().__init__()
        if len(settings.anchor_sizes_px) != len(PYRAMID_STRIDES_PX):
            raise UserError(
                f"detector.anchor_sizes_px has {len(settings.anchor_sizes_px)} sizes; "
                f"give {len(PYRAMID_STRIDES_PX)}, one for each of P2 to P6."
            )
        self.settings = settings
        self.num_known = num_known
        self.backbone = build_backbone(
            settings.backbone,
            norm=settings.norm,
            frozen_blocks=settings.frozen_blocks,
        )
        channels = settings.fpn_channels
        self.pyramid = _pyramid(self.backbone.channels, channels, norm=settings.fpn_norm)
        self.rpn_head = RPNHead(channels, len(settings.anchor_ratios))
        width = settings.box_head_width
        self.box_head = _box_head(channels * BOX_POOL**2, width, norm=settings.box_head_norm)
        self.box_regressor = _small_linear(width, 4, std=0.001)
        self.known_head = _small_linear(width, num_known + 1, std=0.01)
        self.localiser = _small_linear(width, 1, std=0.01) if settings.localisation else None
        self.mask_head = _mask_head(settings) if masks else None
        self.mask_detail: MaskDetail | None = None
        if masks and settings.mask_detail:
            self.mask_detail = MaskDetail(settings.mask_head_width, settings.mask_detail)
            self.mask_detail.requires_grad_(False)  # learned by itself: see `mask_training`
        self.register_buffer("pixel_mean", torch.tensor(settings.pixel_mean), persistent=False)
        self.register_buffer("pixel_std", torch.tensor(settings.pixel_std), persistent=False)
        # What GPUs prefer; on a CPU most convolutions take two thirds to half of the time.
        self.to(memory_format=torch.channels_last)

    def load_backbone_weights(self) -> None:
        """Fill the backbone from the file `settings.weights`, where one is given."""
        if isinstance(self.settings.weights, Path):
            load_backbone_weights(self.backbone, self.settings.weights)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.known_head.weight.device

    def batch_images(self, images: Sequence[Tensor]) -> ImageBatch:
        """The images (3, h, w) uint8 on the detector's device, normalised and padded."""
        sizes = [(image.shape[1], image.shape[2]) for image in images]
        height, width = (self.pad_size(max(side)) for side in zip(*sizes, strict=True))
        mean, std = self.pixel_mean[:, None, None], self.pixel_std[:, None, None]
        pixels = mean.new_zeros(len(images), 3, height, width)
        for row, image, (h, w) in zip(pixels, images, sizes, strict=True):
            on_device = image.to(self.device, non_blocking=True)
            row[:, :h, :w] = (on_device - mean) / std
        return ImageBatch(pixels, sizes)

    @property
    def size_divisor(self) -> int:
        """Sides of a batch are multiples of this."""
        return lcm(SIZE_DIVISOR_PX, self.backbone.size_divisor)

    def pad_size(self, side_px: int) -> int:
        """A side of an image after padding."""
        return -(-side_px // self.size_divisor) * self.size_divisor

    def feature_maps(self, batch: ImageBatch) -> list[Tensor]:
        """[P2, P3, P4, P5, P6], each (B, channels, H / stride, W / stride).

        With `detector.mask_detail` the pixels (B, 3, H, W) themselves come last.
        """
        maps = batch.backbone_maps
        levels: list[Tensor] = self.pyramid(self.backbone(batch.pixels) if maps is None else maps)
        return levels if self.mask_detail is None else [*levels, batch.pixels]

    def score_anchors(self, maps: Sequence[Tensor]) -> AnchorScores:
        """The RPN's logits and offsets for every anchor of every level."""
        levels = list(maps[: len(PYRAMID_STRIDES_PX)])
        logits, deltas = self.rpn_head(levels)
        shapes = tuple((level.shape[2], level.shape[3]) for level in levels)
        anchors = pyramid_anchors(
            shapes,
            PYRAMID_STRIDES_PX,
            sizes_px=self.settings.anchor_sizes_px,
            ratios=self.settings.anchor_ratios,
            device=self.device,
        )
        return AnchorScores(
            logits=torch.cat([_by_anchor(level, 1).squeeze(2) for level in logits], 1),
            deltas=torch.cat([_by_anchor(level, 4) for level in deltas], 1),
            anchors_xyxy=anchors,
            level_counts=tuple(h * w * len(self.settings.anchor_ratios) for h, w in shapes),
        )

    def region_features(self, maps: Sequence[Tensor], boxes: Sequence[Tensor]) -> Tensor:
        """(R, F) features of all images' boxes in their order; `boxes`: one (r, 4) per image."""
        pooled: Tensor = self.box_head(self._pool(maps, boxes, BOX_POOL))
        return pooled

    def refine_boxes(
        self, features: Tensor, boxes: Sequence[Tensor], sizes_hw: Sequence[tuple[int, int]]
    ) -> list[Tensor]:
        """The boxes moved by the class-agnostic regressor and cut at the image's border."""
        counts = [len(b) for b in boxes]
        deltas = at_least_float32(self.box_regressor(features))
        refined = REGION_CODER.decode_single(deltas, torch.cat(list(boxes)))
        return [
            clip_boxes(b, torch.tensor(size, device=b.device))
            for b, size in zip(refined.split(counts), sizes_hw, strict=True)
        ]

    def predict_iou(self, features: Tensor) -> Tensor | None:
        """(R,) IoU that regions seem to have with their objects; None: it was never learned."""
        if self.localiser is None:
            return None
        return at_least_float32(self.localiser(features)).sigmoid()[:, 0]

    def mask_logits(
        self, maps: Sequence[Tensor], boxes: Sequence[Tensor], *, with_detail: bool = True
    ) -> Tensor:
        """(R, 28, 28) mask logits of all images' boxes, in their order.

        `with_detail`: by the pixels too, where the detector has such a part.
        """
        if self.mask_head is None:
            raise UserError("This detector has no mask head: it was trained on boxes alone.")
        pixels = None
        if self.mask_detail is not None and with_detail:
            numbered = [functional.pad(own, (1, 0), value=i) for i, own in enumerate(boxes)]
            pixels = self.pool_pixels(maps, torch.cat(numbered))
        return self.logits_of_pooled(self._pool(maps, boxes, MASK_POOL), pixels)

    def pool_pixels(self, maps: Sequence[Tensor], regions: Tensor) -> Tensor:
        """(R, 3, 28, 28) pixels in regions (R, 5), each the number of its image and its box."""
        ratio = self.settings.roi_sampling_ratio
        pixels: Tensor = roi_align(maps[-1], regions, MASK_SIZE, sampling_ratio=ratio, aligned=True)
        return pixels

    def logits_of_pooled(self, pooled: Tensor, pixels: Tensor | None) -> Tensor:
        """(R, 28, 28) mask logits from pooled features, corrected by pixels where given."""
        assert self.mask_head is not None
        if pixels is None or self.mask_detail is None:
            plain: Tensor = self.mask_head(pooled)
            return plain[:, 0]
        convolutions, predictor = self.mask_head
        enlarge, relu, classify = predictor.children()
        hidden = relu(enlarge(convolutions(pooled)))
        logits: Tensor = classify(hidden)
        return (logits + self.mask_detail(pixels, hidden, logits))[:, 0]

    def _pool(self, maps: Sequence[Tensor], boxes: Sequence[Tensor], size: int) -> Tensor:
        return pool_regions(
            maps[: len(STRIDES_PX)],
            boxes,
            output_size=size,
            reference_px=self.settings.roi_reference_px,
            sampling_ratio=self.settings.roi_sampling_ratio,
        )


class _FeaturePyramid(FeaturePyramidNetwork):
    """torchvision's FPN, from a list of maps to a list of maps."""

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """[P2, P3, P4, P5, P6] of [C2, C3, C4, C5]."""
        named = OrderedDict((str(level), one) for level, one in enumerate(maps))
        return list(super().forward(named).values())


def _pyramid(channels: Sequence[int], out_channels: int, *, norm: bool) -> nn.Module:
    if len(channels) == 1:
        return SimplePyramid(channels[0], out_channels)
    return _FeaturePyramid(
        list(channels),
        out_channels,
        extra_blocks=LastLevelMaxPool(),
        norm_layer=nn.BatchNorm2d if norm else None,
    )


def _by_anchor(level: Tensor, values: int) -> Tensor:
    """(B, ratios·values, H, W) as (B, H·W·ratios, values)."""
    return level.permute(0, 2, 3, 1).reshape(len(level), -1, values)


def _small_linear(inputs: int, outputs: int, *, std: float) -> nn.Linear:
    """A linear layer that begins near zero, as Fast R-CNN's predictors do."""
    layer = nn.Linear(inputs, outputs)
    nn.init.normal_(layer.weight, std=std)
    nn.init.zeros_(layer.bias)
    return layer


def _box_head(inputs: int, width: int, *, norm: bool) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for i, size in enumerate((inputs, width), 1):
        layers[f"fc{i}"] = linear = nn.Linear(size, width, bias=not norm)
        nn.init.kaiming_uniform_(linear.weight, a=1)
        if norm:
            layers[f"norm{i}"] = nn.BatchNorm1d(width)
        else:
            nn.init.zeros_(linear.bias)
        layers[f"relu{i}"] = nn.ReLU(inplace=True)
    return nn.Sequential(layers)


def _mask_head(settings: DetectorSettings) -> nn.Sequential:
    width = settings.mask_head_width
    convolutions = MaskRCNNHeads(
        settings.fpn_channels,
        [width] * settings.mask_head_layers,
        1,
        norm_layer=nn.BatchNorm2d if settings.mask_head_norm else None,
    )
    predictor = MaskRCNNPredictor(width, width, 1)
    # Near zero, or the first steps' mask loss drowns the others.
    nn.init.normal_(predictor.mask_fcn_logits.weight, std=0.001)
    nn.init.zeros_(predictor.mask_fcn_logits.bias)
    return nn.Sequential(OrderedDict(convolutions=convolutions, predictor=predictor))
