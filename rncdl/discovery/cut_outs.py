"""Objects cut out of their background: small square pictures for the teacher to look at."""

import cv2
import numpy as np
import torch
from torch import Tensor

GREY = 127
"""What lies around an object is painted over with: near the mean pixel of photographs."""


def cut_out(image: np.ndarray, mask: np.ndarray, *, side_px: int, padding: float) -> np.ndarray:
    """(side_px, side_px, 3) uint8: what `mask` (H, W) shows of `image` (H, W, 3), all else grey.

    The object's longer side, with `padding` of it at both ends, fills the square. All grey where
    the mask is empty.
    """
    picture = np.full((side_px, side_px, 3), GREY, dtype=np.uint8)
    box = extent(mask)
    if box is None:
        return picture
    left, top, right, bottom = box
    painted = np.where(mask[..., None], image, np.uint8(GREY))[top:bottom, left:right]
    height, width = painted.shape[:2]
    scale = side_px / (max(height, width) * (1 + 2 * padding))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    smooth = cv2.INTER_LINEAR if scale > 1 else cv2.INTER_AREA
    resized = cv2.resize(painted, size, interpolation=smooth)
    first_row, first_column = (side_px - size[1]) // 2, (side_px - size[0]) // 2
    picture[first_row : first_row + size[1], first_column : first_column + size[0]] = resized
    return picture


def extent(mask: np.ndarray) -> tuple[int, int, int, int] | None:
    """(left, top, right, bottom) of the pixels that are on; None: there is none."""
    columns, rows = np.flatnonzero(mask.any(0)), np.flatnonzero(mask.any(1))
    if not len(columns):
        return None
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def extents(masks: np.ndarray) -> Tensor:
    """(R, 4) boxes of masks (R, H, W); all zeros where one is empty."""
    found = [extent(mask) or (0, 0, 0, 0) for mask in masks]
    return torch.tensor(found, dtype=torch.float32).reshape(-1, 4)
