"""Boxes moved to where their masks end."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rncdl.detector.boxes import clip_boxes
from rncdl.detector.model import Detector

# A mask is drawn inside its box: this much more than the box is looked at, so that it can show
# where the box is too small. With 1.3 and 1.4 instead known AP falls by 2 and 6 points
# (docs/what-did-not-help.md).
_MARGIN = 1.2


def fit_to_masks(
    detector: Detector,
    maps: Sequence[Tensor],
    boxes: Sequence[Tensor],
    sizes_hw: Sequence[tuple[int, int]],
    *,
    share: float,
) -> list[Tensor]:
    """Each image's boxes (r, 4), moved by `share` of the way to the extent of their masks.

    Boxes without area or with an empty mask stay.
    """
    fitted = []
    for i, (image_boxes, size) in enumerate(zip(boxes, sizes_hw, strict=True)):
        shown = looked_at(image_boxes, image_boxes.new_tensor(size))
        logits = detector.mask_logits([level[i : i + 1] for level in maps], [shown])
        fitted.append(move_to_masks(image_boxes, logits > 0, shown, share=share))
    return fitted


def looked_at(boxes_xyxy: Tensor, size_hw: Tensor) -> Tensor:
    """(R, 4) the boxes with a margin, cut at the image's border: where their masks are drawn."""
    return clip_boxes(enlarge(boxes_xyxy, _MARGIN), size_hw)


def move_to_masks(boxes_xyxy: Tensor, masks: Tensor, shown_xyxy: Tensor, *, share: float) -> Tensor:
    """The boxes (R, 4), moved by `share` of the way to the extent of their masks (R, S, S).

    The masks, of bools, lie over the boxes `shown_xyxy`.
    """
    extents, is_empty = mask_extents(masks, shown_xyxy)
    moved = torch.lerp(boxes_xyxy, extents, share)
    return torch.where(is_empty[:, None], boxes_xyxy, moved)


def enlarge(boxes_xyxy: Tensor, factor: float) -> Tensor:
    """The boxes (R, 4) with sides `factor` times as long, about the same centres."""
    centres = (boxes_xyxy[:, :2] + boxes_xyxy[:, 2:]) / 2
    halves = (boxes_xyxy[:, 2:] - boxes_xyxy[:, :2]) / 2 * factor
    return torch.cat([centres - halves, centres + halves], 1)


def mask_extents(masks: Tensor, boxes_xyxy: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest boxes (R, 4) around the cells that are on, and which masks have none, (R,).

    `masks` (R, S, S) bool, each laid over its box. Where no cell is on, the box is the whole one.
    """
    left, right = _ends(masks.any(1))
    top, bottom = _ends(masks.any(2))
    corner, sides = boxes_xyxy[:, :2], boxes_xyxy[:, 2:] - boxes_xyxy[:, :2]
    low = corner + torch.stack([left, top], 1) * sides
    high = corner + torch.stack([right, bottom], 1) * sides
    return torch.cat([low, high], 1), ~masks.flatten(1).any(1)


def _ends(is_on: Tensor) -> tuple[Tensor, Tensor]:
    """Where the cells that are on begin and end, as shares (R,) of the row; `is_on` (R, S)."""
    count = is_on.shape[1]
    first = is_on.float().argmax(1)
    last = is_on.flip(1).float().argmax(1)
    return first / count, 1 - last / count
