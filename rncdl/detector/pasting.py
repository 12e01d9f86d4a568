"""From a region's mask of 28 × 28 to run lengths over the whole image."""

import numpy as np
from pycocotools import mask as run_lengths
from torch import Tensor


def paste_masks(probabilities: Tensor, boxes_xyxy: Tensor, size_hw: tuple[int, int]) -> list[dict]:
    """COCO run lengths {"size": [h, w], "counts": bytes} of each mask stretched over its box.

    `probabilities` (R, S, S) in [0, 1], `boxes_xyxy` (R, 4) in pixels of an image of `size_hw`.
    A pixel is inside where the mask, interpolated at the pixel's centre, is at least 0.5.
    """
    masks = probabilities.detach().cpu().numpy()
    boxes = boxes_xyxy.detach().cpu().numpy()
    height, width = size_hw
    counts = [_paste(mask, box, height, width) for mask, box in zip(masks, boxes, strict=True)]
    uncompressed = [{"size": [height, width], "counts": c} for c in counts]
    return list(run_lengths.frPyObjects(uncompressed, height, width)) if uncompressed else []


def _paste(mask: np.ndarray, box_xyxy: np.ndarray, height: int, width: int) -> list[int]:
    """Run lengths down the columns of one mask in its image, the first of zeros.

    Outside its box a mask is below 0.5 everywhere, so only the box's columns are drawn.
    """
    x0, y0, x1, y1 = box_xyxy.tolist()
    left, right = _pixels_between(x0, x1, width)
    top, bottom = _pixels_between(y0, y1, height)
    across = _interpolation(x0, x1, left, right, cells=mask.shape[1])
    down = _interpolation(y0, y1, top, bottom, cells=mask.shape[0])
    columns = np.zeros((right - left, height), dtype=bool)
    columns[:, top:bottom] = across @ mask.T @ down.T >= 0.5
    changes = np.flatnonzero(np.diff(columns.reshape(-1), prepend=False, append=False))
    edges = changes + left * height
    lengths: list[int] = np.diff(edges, prepend=0, append=height * width).tolist()
    # A mask that ends in the last pixel leaves no zeros after it.
    return lengths[:-1] if lengths[-1] == 0 else lengths


def _pixels_between(start: float, end: float, length: int) -> tuple[int, int]:
    """The pixels (first, stop) of [0, length) that [start, end] touches."""
    first = min(max(int(np.floor(start)), 0), length)
    return first, max(min(int(np.ceil(end)), length), first)


def _interpolation(start: float, end: float, first: int, stop: int, *, cells: int) -> np.ndarray:
    """(stop - first, cells) weights that read cells, laid from start to end, at each pixel.

    Linear between the cells' centres; outside the outermost centres the neighbour is zero.
    """
    centres = np.arange(first, stop, dtype=np.float32) + np.float32(0.5)
    position = (centres - start) / max(end - start, 1e-6) * cells - 0.5
    distance = np.abs(position[:, None] - np.arange(cells, dtype=np.float32))
    return np.maximum(1 - distance, 0)
