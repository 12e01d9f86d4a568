"""Small square pictures for the teacher to look at: objects, with or without their background."""

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
    resized = _resized(painted, size, scale)
    first_row, first_column = (side_px - size[1]) // 2, (side_px - size[0]) // 2
    picture[first_row : first_row + size[1], first_column : first_column + size[0]] = resized
    return picture


def show_around(
    image: np.ndarray, box_xyxy: np.ndarray, *, side_px: int, padding: float
) -> np.ndarray:
    """(side_px, side_px, 3) uint8: the square of `image` (H, W, 3) around a box, as it is.

    The box's longer side, with `padding` of it at both ends, fills the square; grey outside the
    image.
    """
    left, top, right, bottom = box_xyxy.tolist()
    size = max(1, round(max(right - left, bottom - top) * (1 + 2 * padding)))
    first_row, first_column = round((top + bottom - size) / 2), round((left + right - size) / 2)
    square = np.full((size, size, 3), GREY, dtype=np.uint8)
    rows, columns = (
        slice(max(0, first), max(0, min(first + size, length)))
        for first, length in zip((first_row, first_column), image.shape, strict=False)
    )
    inside = image[rows, columns]
    row, column = rows.start - first_row, columns.start - first_column
    square[row : row + inside.shape[0], column : column + inside.shape[1]] = inside
    return _resized(square, (side_px, side_px), side_px / size)


def _resized(picture: np.ndarray, size_wh: tuple[int, int], scale: float) -> np.ndarray:
    smooth = cv2.INTER_LINEAR if scale > 1 else cv2.INTER_AREA
    return cv2.resize(picture, size_wh, interpolation=smooth)


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
