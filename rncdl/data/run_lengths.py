"""Run lengths along the rows of a mask's box, as CVAT keeps them; COCO's run down the columns."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from rncdl.data.masks import encode_rle
from rncdl.errors import UserError

BoxXywh = tuple[int, int, int, int]
"""left, top, width, height"""


def row_major_counts(rle: dict[str, Any]) -> tuple[BoxXywh, list[int]]:
    """The mask's tight box, and the lengths of its runs along the rows, the first one of zeros.

    An empty mask has no runs.
    """
    left, top, width, height = (int(side) for side in coco_mask.toBbox(rle))
    pixels = coco_mask.decode(rle)[top : top + height, left : left + width]
    return (left, top, width, height), runs_of(pixels.ravel())


def runs_of(values: np.ndarray) -> list[int]:
    """Lengths of runs of zeros and ones in turn; the first one, of zeros, may be empty."""
    if not len(values):
        return []
    changes = np.flatnonzero(np.diff(values)) + 1
    lengths = np.diff([0, *changes.tolist(), len(values)]).tolist()
    return [0, *lengths] if values[0] else lengths


def from_row_major_counts(
    counts: Sequence[int], box_xywh: BoxXywh, *, image_size: tuple[int, int]
) -> dict[str, Any]:
    """COCO's compressed run lengths of a mask given along the rows of its box.

    image_size: (height, width). What of the box lies outside the image is left out.
    """
    left, top, width, height = box_xywh
    if sum(counts) != width * height or min(counts, default=0) < 0:
        raise UserError(
            f"a mask's run lengths cover {sum(counts)} pixels, its box has {width} × {height}"
        )
    within = np.repeat(np.arange(len(counts)) % 2, counts).reshape(height, width).astype(bool)
    pixels = np.zeros(image_size, dtype=bool)
    rows = slice(max(0, -top), max(0, image_size[0] - top))
    columns = slice(max(0, -left), max(0, image_size[1] - left))
    seen = within[rows, columns]
    first_row, first_column = max(0, top), max(0, left)
    pixels[first_row : first_row + seen.shape[0], first_column : first_column + seen.shape[1]] = (
        seen
    )
    return encode_rle(pixels)
