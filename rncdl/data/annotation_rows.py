"""The annotations of a file as columns, each judged usable or not."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from rncdl.data.annotation_file import AnnotationFile, FileAnnotation
from rncdl.data.problems import Problem, ProblemKind

ROUNDING_PX = 0.02
"""A box this far outside is a matter of rounding (files keep two decimals), not a problem."""
MIN_SIDE_PX = 0.005
"""Thinner boxes have no area, for the same reason."""

_MAX_TABLE_ROWS_PER_VALUE = 8
"""Ids that are no sparser are looked up in a table, which is 20 times as fast as a search."""
_BLOCK_ROWS = 16_000
"""Boxes judged at once: what they need stays in the cache; fresh memory costs far more."""
_BOX_PROBLEMS = (
    ProblemKind.BOX_NOT_FINITE,
    ProblemKind.BOX_WITHOUT_AREA,
    ProblemKind.BOX_OUTSIDE,
    ProblemKind.CLIPPED_BOX,
)


@dataclass(frozen=True)
class AnnotationRows:
    """The A annotations of a file in its own order."""

    file: AnnotationFile
    annotation_ids: np.ndarray
    """(A,) int64"""
    image_index: np.ndarray
    """(A,) int64, position in the file's images, -1 where the image id is unknown"""
    category_ids: np.ndarray
    """(A,) int64"""
    boxes_xyxy: np.ndarray
    """(A, 4) float64, clipped to the image"""
    areas: np.ndarray
    """(A,) float64, the clipped box's where the file has none"""
    is_crowd: np.ndarray
    """(A,) bool"""
    rows_by_problem: dict[ProblemKind, np.ndarray]
    """the rows each problem was found in"""
    usable: np.ndarray
    """(U,) int64 rows that can be used"""

    def describe(self, kind: ProblemKind, row: int, *, value: str | None = None) -> Problem:
        """The problem of a row, for a reader; `value` where the kind alone cannot tell it."""
        annotation = self.file.annotations[row]
        values = {
            ProblemKind.UNKNOWN_CATEGORY: f"category_id {annotation.category_id}",
            ProblemKind.UNKNOWN_IMAGE: f"image_id {annotation.image_id}",
            ProblemKind.DUPLICATE_ANNOTATION_ID: f"id {annotation.id}",
        }
        box = f"bbox [{', '.join('NaN' if n is None else f'{n:g}' for n in annotation.bbox)}]"
        return Problem(kind, self.file.place_of(row), value or values.get(kind, box))


def judge_annotations(
    file: AnnotationFile, *, heights: np.ndarray, widths: np.ndarray
) -> AnnotationRows:
    """The file's annotations as columns, with the problems found in each.

    heights, widths: (I,) size of each of the file's images in pixels, infinite where unknown.
    """
    annotations = file.annotations
    ids = _column(annotations, "id", np.int64)
    category_ids = _column(annotations, "category_id", np.int64)
    image_ids = _column(annotations, "image_id", np.int64)
    image_index = _positions(image_ids, np.array([image.id for image in file.images], np.int64))
    known_image = image_index >= 0
    known_category = np.isin(category_ids, [category.id for category in file.categories])
    areas = np.array([a.area for a in annotations], dtype=np.float64)  # None becomes NaN
    boxes, box_problems = clip_boxes(
        _box_columns(annotations),
        # An unknown image, at position -1, is as large as one likes.
        heights=np.append(heights, np.inf)[image_index],
        widths=np.append(widths, np.inf)[image_index],
    )
    box_areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    dropped = ~known_image | ~known_category
    for kind, found in box_problems.items():
        if kind is not ProblemKind.CLIPPED_BOX:
            dropped |= found
    problems = {
        ProblemKind.UNKNOWN_IMAGE: ~known_image,
        ProblemKind.UNKNOWN_CATEGORY: ~known_category,
        ProblemKind.DUPLICATE_ANNOTATION_ID: _repeats(ids),
        **box_problems,
    }
    return AnnotationRows(
        file=file,
        annotation_ids=ids,
        image_index=image_index,
        category_ids=category_ids,
        boxes_xyxy=boxes,
        areas=np.where(np.isnan(areas), box_areas, areas),
        is_crowd=_column(annotations, "iscrowd", np.bool_),
        rows_by_problem={k: np.flatnonzero(found) for k, found in problems.items() if found.any()},
        usable=np.flatnonzero(~dropped),
    )


def clip_boxes(
    boxes_xywh: np.ndarray, *, heights: np.ndarray, widths: np.ndarray
) -> tuple[np.ndarray, dict[ProblemKind, np.ndarray]]:
    """(A, 4) boxes x1, y1, x2, y2 clipped to their images, and (A,) bool for each problem.

    A box has at most one problem. heights, widths: (A,) of the box's image.
    """
    clipped = np.empty(boxes_xywh.shape)
    problems = {kind: np.zeros(len(boxes_xywh), dtype=bool) for kind in _BOX_PROBLEMS}
    for first in range(0, len(boxes_xywh), _BLOCK_ROWS):
        rows = slice(first, first + _BLOCK_ROWS)
        clipped[rows], *found = _clip_columns(
            boxes_xywh[rows].T.copy(), heights=heights[rows], widths=widths[rows]
        )
        for kind, is_so in zip(_BOX_PROBLEMS, found, strict=True):
            problems[kind][rows] = is_so
    return clipped, problems


def _clip_columns(
    boxes_xywh: np.ndarray, *, heights: np.ndarray, widths: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(B, 4) clipped boxes of `boxes_xywh` (4, B), and (B,) bool for each of _BOX_PROBLEMS."""
    left_top, sides = np.split(boxes_xywh, 2)
    boxes = np.concatenate([left_top, left_top + sides])
    clipped = np.clip(boxes, 0, np.stack([widths, heights, widths, heights]))
    finite = np.isfinite(boxes).all(axis=0)
    has_area = finite & (sides >= MIN_SIDE_PX).all(axis=0)
    inside = has_area & (clipped[2:] - clipped[:2] >= MIN_SIDE_PX).all(axis=0)
    moved = inside & (np.abs(clipped - boxes) > ROUNDING_PX).any(axis=0)
    return clipped.T, ~finite, finite & ~has_area, has_area & ~inside, moved


def _column(annotations: Sequence[FileAnnotation], field: str, dtype: npt.DTypeLike) -> np.ndarray:
    """(A,) the annotations' values of a field."""
    return np.fromiter(map(attrgetter(field), annotations), dtype, len(annotations))


def _box_columns(annotations: Sequence[FileAnnotation]) -> np.ndarray:
    """(A, 4) float64 x, y, width, height; NaN where the file has no finite number."""
    try:
        numbers = chain.from_iterable(map(attrgetter("bbox"), annotations))
        return np.fromiter(numbers, np.float64, 4 * len(annotations)).reshape(-1, 4)
    except TypeError:  # a None: the slower way turns it into NaN
        return np.array([annotation.bbox for annotation in annotations], dtype=np.float64)


def _positions(values: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """(A,) int64, the position of each value in `ids`, the first of equals; -1 where absent."""
    if len(ids) == 0:
        return np.full(len(values), -1)
    lowest, highest = int(ids.min()), int(ids.max())
    if highest - lowest < _MAX_TABLE_ROWS_PER_VALUE * (len(ids) + len(values)):
        table = np.full(highest - lowest + 1, -1)
        table[ids[::-1] - lowest] = np.arange(len(ids))[::-1]
        place = values.clip(lowest, highest)
        return np.where(place == values, table[place - lowest], -1)
    order = np.argsort(ids, kind="stable")
    place = np.minimum(np.searchsorted(ids, values, sorter=order), len(ids) - 1)
    return np.where(ids[order[place]] == values, order[place], -1)


def _repeats(ids: np.ndarray) -> np.ndarray:
    """(A,) bool, True where the same id stands in an earlier row too."""
    _, first = np.unique(ids, return_index=True)
    repeats = np.ones(len(ids), dtype=bool)
    repeats[first] = False
    return repeats
