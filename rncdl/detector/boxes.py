"""Box arithmetic of the detector: anchors, offsets, clipping."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torchvision.models.detection._utils import BoxCoder

ANCHOR_CODER = BoxCoder(weights=(1.0, 1.0, 1.0, 1.0))
"""Offsets between anchors and boxes."""
REGION_CODER = BoxCoder(weights=(10.0, 10.0, 5.0, 5.0))
"""Offsets between proposals and boxes; the weights bring their spread near one."""


def cell_anchors(size_px: float, ratios: Sequence[float]) -> Tensor:
    """(A, 4) boxes of area `size_px`² around the origin, one per ratio height / width."""
    ratio = torch.tensor(ratios, dtype=torch.float64)
    width = size_px / ratio.sqrt()
    height = width * ratio
    return (torch.stack((-width, -height, width, height), 1) / 2).float()


@lru_cache(maxsize=64)
def pyramid_anchors(
    shapes_hw: tuple[tuple[int, int], ...],
    strides_px: tuple[int, ...],
    *,
    sizes_px: tuple[float, ...],
    ratios: tuple[float, ...],
    device: torch.device,
) -> Tensor:
    """(A, 4) anchors of all levels, the finest first, in the order level, row, column, ratio.

    One shape, stride and size per level. An anchor is centred on its cell's corner, as in
    Detectron2 and torchvision. Kept for the shapes asked for last.
    """
    levels = [
        level_anchors(*shape, stride_px=stride, around=cell_anchors(size, ratios).to(device))
        for shape, stride, size in zip(shapes_hw, strides_px, sizes_px, strict=True)
    ]
    return torch.cat(levels)


def level_anchors(height: int, width: int, *, stride_px: int, around: Tensor) -> Tensor:
    """(height·width·A, 4) of one level: the boxes `around` (A, 4) the corner of every cell."""
    y = torch.arange(height, device=around.device) * stride_px
    x = torch.arange(width, device=around.device) * stride_px
    centre_y, centre_x = torch.meshgrid(y, x, indexing="ij")
    centres = torch.stack((centre_x, centre_y, centre_x, centre_y), -1)
    return (centres[:, :, None] + around).reshape(-1, 4)


def at_least_float32(values: Tensor) -> Tensor:
    """The values, out of half precision where mixed precision put them there."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def clip_boxes(boxes_xyxy: Tensor, sizes_hw: Tensor) -> Tensor:
    """The boxes (..., 4) cut at the borders of their images; `sizes_hw` (..., 2) broadcasts."""
    sizes_wh = sizes_hw.flip(-1).to(boxes_xyxy.dtype)
    return torch.minimum(boxes_xyxy.clamp(min=0), torch.cat([sizes_wh, sizes_wh], -1))


def has_area(boxes_xyxy: Tensor) -> Tensor:
    """(...) bool: True where width and height are above zero (never for NaN)."""
    return (boxes_xyxy[..., 2:] > boxes_xyxy[..., :2]).all(-1)


def paired_iou(boxes_xyxy: Tensor, others_xyxy: Tensor) -> Tensor:
    """(N,) IoU of each box with the other one in its row; zero where neither has an area."""
    top_left = torch.maximum(boxes_xyxy[:, :2], others_xyxy[:, :2])
    bottom_right = torch.minimum(boxes_xyxy[:, 2:], others_xyxy[:, 2:])
    shared = (bottom_right - top_left).clamp(min=0).prod(1)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(1) for boxes in (boxes_xyxy, others_xyxy)]
    return shared / (areas[0] + areas[1] - shared).clamp(min=torch.finfo(shared.dtype).tiny)
