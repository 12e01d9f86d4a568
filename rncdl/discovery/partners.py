"""Partners: overlapping regions, most likely of one object, that stand for each other."""

import torch
from torch import Generator, Tensor
from torchvision.ops import box_iou


def draw_partners(boxes_xyxy: Tensor, *, min_iou: float, generator: Generator) -> Tensor:
    """(R,) for each region of an image one of those that overlap it by `min_iou`, or itself.

    `boxes_xyxy` (R, 4); all that overlap enough, the region included, are equally likely.
    """
    if len(boxes_xyxy) == 0:
        return torch.zeros(0, dtype=torch.int64)
    overlaps = box_iou(boxes_xyxy, boxes_xyxy) >= min_iou
    # A box without area overlaps nothing, not even itself.
    overlaps.fill_diagonal_(True)
    return torch.multinomial(overlaps.float().cpu(), 1, generator=generator)[:, 0]
