"""Masks as polygons."""

from typing import Any

import cv2
import numpy as np
from pycocotools import mask as coco_mask

MAX_TOLERANCE_PX = 0.75
"""How far a polygon may leave the mask's outline: the steps between pixels are within it."""
TOLERANCE_SHARE = 0.01
"""Of the mask's shorter side, where that is less: small masks keep their outline as it is."""
MIN_CORNERS = 3


def outlines(rle: dict[str, Any], *, tolerance_px: float | None = None) -> list[np.ndarray]:
    """(corners, 2) x, y of each connected part of a mask, in pixels; none of an empty one.

    A polygon runs along the edges of pixels, not through their centres, so that it has the
    mask's area. A hole is joined to its part by a seam without width.
    """
    left, top, width, height = (int(side) for side in coco_mask.toBbox(rle))
    if not width or not height:
        return []
    if tolerance_px is None:
        tolerance_px = min(MAX_TOLERANCE_PX, TOLERANCE_SHARE * min(width, height))
    pixels = coco_mask.decode(rle)[top : top + height, left : left + width]
    # Twice as large, the border of the outermost pixels tells on which side of a pixel the edge
    # lies: both 2i, on the left, and 2i - 1, on the right, belong to the edge at i.
    doubled = np.ascontiguousarray(pixels.repeat(2, 0).repeat(2, 1))
    found, tree = cv2.findContours(doubled, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    loops = [_simplified((loop[:, 0] + 1) // 2 + (left, top), tolerance_px) for loop in found]
    parents = tree[0][:, 3].tolist()
    holes: dict[int, list[np.ndarray]] = {}
    for loop, parent in zip(loops, parents, strict=True):
        if parent >= 0:
            holes.setdefault(parent, []).append(loop)
    return [
        join_by_seams([loop, *holes.get(index, [])])
        for index, (loop, parent) in enumerate(zip(loops, parents, strict=True))
        if parent < 0
    ]


def one_outline(rle: dict[str, Any]) -> np.ndarray | None:
    """(corners, 2) x, y of the whole mask in one polygon, None of an empty mask."""
    parts = outlines(rle)
    return join_by_seams(parts) if parts else None


def box_corners(box_xyxy: tuple[float, float, float, float]) -> np.ndarray:
    """(4, 2) x, y of a box's corners."""
    left, top, right, bottom = box_xyxy
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]])


def join_by_seams(loops: list[np.ndarray]) -> np.ndarray:
    """One polygon of several: a line leads to each of them and back, where they are nearest."""
    joined = loops[0]
    for loop in loops[1:]:
        apart = np.square(joined[:, None].astype(np.float64) - loop).sum(2)
        here, there = np.unravel_index(int(apart.argmin()), apart.shape)
        joined = np.concatenate(
            [joined[: here + 1], loop[there:], loop[: there + 1], joined[here:]]
        )
    return joined


def _simplified(loop: np.ndarray, tolerance_px: float) -> np.ndarray:
    """The loop with fewer corners; one that would enclose nothing keeps them all."""
    points = loop.astype(np.int32)[:, None]
    for tolerance in (tolerance_px, 0.0):
        fewer = cv2.approxPolyDP(points, tolerance, True)[:, 0]
        if len(fewer) >= MIN_CORNERS:
            return fewer
    return loop
