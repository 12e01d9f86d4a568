"""From the RPN's answer for every anchor to an image's proposals."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.ops import batched_nms

from rncdl.detector.boxes import ANCHOR_CODER, at_least_float32, clip_boxes, has_area


@dataclass
class AnchorScores:
    """What the RPN says about the A anchors (all levels) of B images."""

    logits: Tensor
    """(B, A) objectness"""
    deltas: Tensor
    """(B, A, 4) offsets from anchor to box"""
    anchors_xyxy: Tensor
    """(A, 4), the same for every image"""
    level_counts: tuple[int, ...]
    """anchors of each level, the finest first; their sum is A"""


@dataclass
class Proposals:
    """The P proposals of one image, the best first, in the pixels of the network's input."""

    boxes_xyxy: Tensor
    """(P, 4), inside the image, with an area above zero"""
    objectness: Tensor
    """(P,) logits"""


@torch.no_grad()
def select_proposals(
    scores: AnchorScores,
    sizes_hw: Sequence[tuple[int, int]],
    *,
    nms: float | None,
    before_nms: int,
    after_nms: int,
) -> list[Proposals]:
    """Each image's best boxes: at most `before_nms` per level, then `after_nms` over all levels.

    NMS works within each level; None leaves it out.
    """
    logits, anchor_index, levels = _best_per_level(scores, before_nms)
    deltas = scores.deltas.gather(1, anchor_index[..., None].expand(-1, -1, 4))
    boxes = ANCHOR_CODER.decode_single(
        at_least_float32(deltas).reshape(-1, 4), scores.anchors_xyxy[anchor_index.flatten()]
    ).view(*anchor_index.shape, 4)
    sizes = torch.tensor(sizes_hw, device=boxes.device).reshape(-1, 1, 2)
    boxes = clip_boxes(boxes, sizes)
    # The rows are asked for once: a GPU is waited for each time a mask is used as an index.
    usable = [of_image.nonzero().flatten() for of_image in has_area(boxes)]
    return [
        _best_of_image(
            image_boxes[rows],
            image_logits[rows],
            levels=levels[rows],
            nms=nms,
            after_nms=after_nms,
        )
        for image_boxes, image_logits, rows in zip(boxes, logits, usable, strict=True)
    ]


def _best_per_level(scores: AnchorScores, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (B, k) and anchor index (B, k) of the best `count` per level, and the level (k,)."""
    logits, indices, levels = [], [], []
    start = 0
    for level, level_count in enumerate(scores.level_counts):
        block = scores.logits[:, start : start + level_count]
        best, index = at_least_float32(block).topk(min(count, level_count), dim=1)
        logits.append(best)
        indices.append(index + start)
        levels.append(torch.full((best.shape[1],), level, device=best.device))
        start += level_count
    return torch.cat(logits, 1), torch.cat(indices, 1), torch.cat(levels)


def _best_of_image(
    boxes_xyxy: Tensor, logits: Tensor, *, levels: Tensor, nms: float | None, after_nms: int
) -> Proposals:
    if nms is None:
        order = logits.argsort(descending=True, stable=True)
    else:
        order = batched_nms(boxes_xyxy, logits, levels, nms)
    order = order[:after_nms]
    return Proposals(boxes_xyxy[order], logits[order])
