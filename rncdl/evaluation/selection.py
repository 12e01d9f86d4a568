"""Which detections and annotations an evaluation looks at, by LVIS's rules or by COCO's.

LVIS (https://github.com/lvis-dataset/lvis-api): the best 300 of an image count; a detection is
judged only where its class is annotated in the image or listed as absent, and an unmatched one is
forgiven where the class is not annotated exhaustively; a crowd is an annotation like any other;
whatever has no area is left out.
COCO (https://github.com/cocodataset/cocoapi): the best of an image *and class* count, all are
judged, and a crowd neither counts nor is used up.
"""

from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np
from pycocotools import mask as coco_mask

from rncdl.data.records import AnnotationSet
from rncdl.evaluation.matching import best_of_groups, box_areas
from rncdl.prediction.detections import Detections


@dataclass(frozen=True)
class Selection:
    """The D detections and G annotations that may meet, sorted for the matching.

    A group is one class in one image, as a number.
    """

    detection_rows: np.ndarray
    """(D,) rows of the detections: by class, then from the best score, then by image"""
    class_index: np.ndarray
    """(D,) int64, ascending"""
    groups: np.ndarray
    """(D,) int64"""
    areas: np.ndarray
    """(D,) float64, of the box or of the mask"""
    is_forgiven: np.ndarray
    """(D,) bool: unmatched, it does not count"""
    truth_rows: np.ndarray
    """(G,) rows of the annotations, by group"""
    truth_class_index: np.ndarray
    """(G,) int64, ascending"""
    truth_groups: np.ndarray
    """(G,) int64, ascending"""
    is_crowd: np.ndarray
    """(G,) bool"""


def select_evaluated(
    truth: AnnotationSet,
    detections: Detections,
    *,
    category_ids: np.ndarray,
    iou_type: Literal["bbox", "segm"],
    max_detections: int,
) -> Selection:
    """What the rules let in. `category_ids`: (C,) ascending; class c is `category_ids[c]`.

    Detections of other categories are left out; one of an image that the truth does not have is
    a ValueError.
    """
    index = _GroupIndex(category_ids, np.array([image.id for image in truth.images], np.int64))
    truth_rows, truth_groups = _truth_groups(truth, index)

    rows, groups = _cut(
        detections, index, per_class=not truth.is_federated, max_detections=max_detections
    )
    is_forgiven = np.zeros(len(rows), dtype=bool)
    if truth.is_federated:
        absent = index.of_lists([image.neg_category_ids for image in truth.images])
        is_judged = np.isin(groups, np.concatenate([truth_groups, absent]))
        rows, groups = rows[is_judged], groups[is_judged]
        partial = index.of_lists([image.not_exhaustive_category_ids for image in truth.images])
        is_forgiven = np.isin(groups, partial)
    areas = _areas(detections, rows, iou_type)
    order = np.lexsort((groups, -detections.scores[rows], groups // index.num_images))
    if truth.is_federated:
        order = order[areas[order] > 0]
    return Selection(
        detection_rows=rows[order],
        class_index=groups[order] // index.num_images,
        groups=groups[order],
        areas=areas[order],
        is_forgiven=is_forgiven[order],
        truth_rows=truth_rows,
        truth_class_index=truth_groups // index.num_images,
        truth_groups=truth_groups,
        is_crowd=truth.is_crowd[truth_rows] & (not truth.is_federated),
    )


class _GroupIndex:
    """Numbers the groups: class index * number of images + rank of the image's id."""

    def __init__(self, category_ids: np.ndarray, image_ids: np.ndarray) -> None:
        self.category_ids = category_ids
        self.image_ids = image_ids
        self.sorted_image_ids = np.sort(image_ids)
        self.num_images = max(len(image_ids), 1)

    def of_columns(self, category_ids: np.ndarray, image_ids: np.ndarray) -> np.ndarray:
        """(L,) groups of ids that are all known to the index."""
        classes = np.searchsorted(self.category_ids, category_ids)
        return classes * self.num_images + np.searchsorted(self.sorted_image_ids, image_ids)

    def of_lists(self, category_ids_of_images: list[tuple[int, ...]]) -> np.ndarray:
        """(L,) groups of every image with each category of its list."""
        lengths = [len(ids) for ids in category_ids_of_images]
        listed = np.fromiter(chain.from_iterable(category_ids_of_images), np.int64, sum(lengths))
        images = np.repeat(self.image_ids, lengths)
        is_class = np.isin(listed, self.category_ids)
        return self.of_columns(listed[is_class], images[is_class])


def _truth_groups(truth: AnnotationSet, index: _GroupIndex) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the annotations that enter, and their groups, ascending."""
    enters = np.isin(truth.category_ids, index.category_ids)
    if truth.is_federated:
        enters &= truth.areas > 0
    rows = np.flatnonzero(enters)
    groups = index.of_columns(truth.category_ids[rows], index.image_ids[truth.image_index[rows]])
    order = np.argsort(groups, kind="stable")
    return rows[order], groups[order]


def _cut(
    detections: Detections, index: _GroupIndex, *, per_class: bool, max_detections: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the detections that survive the cut, and their groups."""
    is_foreign = ~np.isin(detections.image_ids, index.image_ids)
    if is_foreign.any():
        image_id = detections.image_ids[is_foreign.argmax()]
        raise ValueError(f"a detection's image id {image_id} is not among the truth's images")
    rows = np.arange(len(detections))
    if not per_class:
        rows = best_of_groups(detections.image_ids, detections.scores, limit=max_detections)
    rows = rows[np.isin(detections.category_ids[rows], index.category_ids)]
    groups = index.of_columns(detections.category_ids[rows], detections.image_ids[rows])
    if per_class:
        best = best_of_groups(groups, detections.scores[rows], limit=max_detections)
        rows, groups = rows[best], groups[best]
    return rows, groups


def _areas(
    detections: Detections, rows: np.ndarray, iou_type: Literal["bbox", "segm"]
) -> np.ndarray:
    """(L,) areas of the boxes or of the masks."""
    if iou_type == "bbox":
        return box_areas(detections.boxes_xyxy[rows].astype(np.float64))
    if detections.rles is None:
        raise ValueError("the detections have no masks")
    # One at a time: pycocotools 2.0.11 fails on a list of more than 255 masks.
    areas = (coco_mask.area(detections.rles[row]) for row in rows.tolist())
    return np.fromiter(areas, dtype=np.float64, count=len(rows))
