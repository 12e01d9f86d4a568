"""AP of detections over all, known and novel classes.

T IoU thresholds, S area ranges, C classes.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rncdl.data.masks import to_rle
from rncdl.data.records import AnnotationSet
from rncdl.errors import UserError
from rncdl.evaluation.matching import (
    IOU_THRESHOLDS,
    Matches,
    Pairs,
    box_pairs,
    mask_pairs,
    match_greedily,
)
from rncdl.evaluation.selection import Selection, select_evaluated
from rncdl.prediction.detections import Detections

AREA_RANGES = np.array([[0, 1e10], [0, 32**2], [32**2, 96**2], [96**2, 1e10]], dtype=np.float64)
"""(S, 2) square pixels, both ends inside: all, small, medium, large."""

RECALLS = np.linspace(0, 1, 101)
"""(R,) at which precision is read."""

_AP50, _AP75 = 0, 5
_ALL, _SMALL, _MEDIUM, _LARGE = range(4)


@dataclass(frozen=True)
class GroupAP:
    """Means over the classes of a group, in [0, 1]. None where no class has an annotation."""

    ap: float | None
    ap50: float | None
    ap75: float | None
    ap_small: float | None
    ap_medium: float | None
    ap_large: float | None
    ap_rare: float | None
    ap_common: float | None
    ap_frequent: float | None
    average_recall: float | None
    num_classes: int
    """Classes with an annotation that counts."""


@dataclass(frozen=True)
class ClassAP:
    """The same, class by class: columns (C,) float64, NaN where a class has no annotation."""

    ap: np.ndarray
    ap50: np.ndarray
    ap75: np.ndarray
    ap_small: np.ndarray
    ap_medium: np.ndarray
    ap_large: np.ndarray
    average_recall: np.ndarray
    num_annotations: np.ndarray
    """(C,) int64, those that count"""


@dataclass(frozen=True)
class APResult:
    """AP of boxes or masks, each number over all, known and novel classes."""

    iou_type: Literal["bbox", "segm"]
    max_detections: int
    all: GroupAP
    known: GroupAP
    novel: GroupAP
    category_ids: np.ndarray
    """(C,) int64 ascending: the rows of `per_class`"""
    is_known: np.ndarray
    """(C,) bool"""
    per_class: ClassAP


def evaluate_detections(
    truth: AnnotationSet,
    detections: Detections,
    *,
    iou_type: Literal["bbox", "segm"],
    known_category_ids: Collection[int],
    max_detections: int = 300,
    frequencies: Mapping[int, str] | None = None,
) -> APResult:
    """AP by LVIS's rules where the truth is federated, by COCO's where it is not.

    frequencies: category id -> "r", "c" or "f"; the categories' own where not given.
    """
    category_ids = np.array(sorted(category.id for category in truth.categories), dtype=np.int64)
    selected = select_evaluated(
        truth,
        detections,
        category_ids=category_ids,
        iou_type=iou_type,
        max_detections=max_detections,
    )
    truth_ignored = _is_outside(truth.areas[selected.truth_rows]) | selected.is_crowd
    matches = match_greedily(
        _find_pairs(truth, detections, selected, iou_type=iou_type),
        groups=selected.groups,
        truth_ignored=truth_ignored,
        is_crowd=selected.is_crowd,
    )
    per_class = _score_classes(selected, matches, truth_ignored, num_classes=len(category_ids))
    if frequencies is None:
        frequencies = {c.id: c.frequency for c in truth.categories if c.frequency is not None}
    letters = np.array([frequencies.get(i, "") for i in category_ids.tolist()], dtype=np.str_)
    is_known = np.isin(category_ids, np.array(sorted(known_category_ids), dtype=np.int64))
    return APResult(
        iou_type=iou_type,
        max_detections=max_detections,
        all=_mean_over_classes(per_class, np.ones_like(is_known), letters),
        known=_mean_over_classes(per_class, is_known, letters),
        novel=_mean_over_classes(per_class, ~is_known, letters),
        category_ids=category_ids,
        is_known=is_known,
        per_class=per_class,
    )


def _is_outside(areas: np.ndarray) -> np.ndarray:
    """(S, L) bool: which areas (L,) lie outside each range."""
    return (areas < AREA_RANGES[:, :1]) | (areas > AREA_RANGES[:, 1:])


def _find_pairs(
    truth: AnnotationSet,
    detections: Detections,
    selected: Selection,
    *,
    iou_type: Literal["bbox", "segm"],
) -> Pairs:
    if iou_type == "bbox":
        return box_pairs(
            detections.boxes_xyxy[selected.detection_rows].astype(np.float64),
            truth.boxes_xyxy[selected.truth_rows],
            detection_groups=selected.groups,
            truth_groups=selected.truth_groups,
            is_crowd=selected.is_crowd,
        )
    rles = detections.rles or []
    return mask_pairs(
        [rles[row] for row in selected.detection_rows.tolist()],
        [_truth_rle(truth, row) for row in selected.truth_rows.tolist()],
        detection_groups=selected.groups,
        truth_groups=selected.truth_groups,
        is_crowd=selected.is_crowd,
    )


def _truth_rle(truth: AnnotationSet, row: int) -> dict[str, Any]:
    segmentation = truth.segmentations[row]
    if segmentation is None:
        raise UserError(
            f"Annotation {truth.annotation_ids[row]} has no segmentation, so mask AP cannot be "
            "computed: evaluate boxes only, or give every annotation a segmentation."
        )
    image = truth.images[truth.image_index[row]]
    return to_rle(segmentation, image.height, image.width)


def _score_classes(
    selected: Selection, matches: Matches, truth_ignored: np.ndarray, *, num_classes: int
) -> ClassAP:
    """Precision and recall of every class, from what its detections matched."""
    shape = (len(IOU_THRESHOLDS), len(AREA_RANGES))
    precision = np.full((*shape, num_classes), np.nan)
    recall = np.full((*shape, num_classes), np.nan)
    is_counted = ~(_is_outside(selected.areas) | selected.is_forgiven)
    every_class = np.arange(num_classes + 1)
    bounds = np.searchsorted(selected.class_index, every_class)
    match_bounds = np.searchsorted(matches.detection_rows, bounds)
    truth_bounds = np.searchsorted(selected.truth_class_index, every_class)
    num_truth = np.zeros((len(AREA_RANGES), num_classes), dtype=np.int64)
    for c in range(num_classes):
        counts = ~truth_ignored[:, truth_bounds[c] : truth_bounds[c + 1]]
        num_truth[:, c] = counts.sum(axis=1)
        if not num_truth[_ALL, c]:
            continue
        of_matches = slice(match_bounds[c], match_bounds[c + 1])
        precision[:, :, c], recall[:, :, c] = _precision_and_recall(
            is_matched=matches.is_matched[:, :, of_matches],
            is_ignored=matches.is_ignored[:, :, of_matches],
            positions=matches.detection_rows[of_matches] - bounds[c],
            is_counted=is_counted[:, bounds[c] : bounds[c + 1]],
            num_truth=num_truth[:, c],
        )
    return ClassAP(
        ap=precision[:, _ALL].mean(axis=0),
        ap50=precision[_AP50, _ALL],
        ap75=precision[_AP75, _ALL],
        ap_small=precision[:, _SMALL].mean(axis=0),
        ap_medium=precision[:, _MEDIUM].mean(axis=0),
        ap_large=precision[:, _LARGE].mean(axis=0),
        average_recall=recall[:, _ALL].mean(axis=0),
        num_annotations=num_truth[_ALL],
    )


def _precision_and_recall(
    *,
    is_matched: np.ndarray,
    is_ignored: np.ndarray,
    positions: np.ndarray,
    is_counted: np.ndarray,
    num_truth: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Mean precision over `RECALLS`, and final recall, of one class: (T, S), NaN without truth.

    is_matched, is_ignored: (T, S, M), of the detections that overlap an annotation;
    positions: (M,) their places among the class's D detections, best first;
    is_counted: (S, D), whether a detection is a false positive when unmatched; num_truth: (S,).
    """
    is_hit = is_matched & ~is_ignored
    counted = np.repeat(is_counted[None], len(is_hit), axis=0)
    counted[:, :, positions] = np.where(is_matched, ~is_ignored, counted[:, :, positions])
    num_hits = is_hit.sum(axis=2)

    # Precision falls from hit to hit, so its best value at or after a recall is found at a hit:
    # entry n of `at_hit` is the precision at the hit n + 1, and zero after the last one.
    at_hit = np.zeros((*num_hits.shape, num_hits.max(initial=0) + 1))
    threshold, area, match = np.nonzero(is_hit)
    nth = is_hit.cumsum(axis=2)[threshold, area, match]
    seen = counted.cumsum(axis=2, dtype=np.int64)[threshold, area, positions[match]]
    at_hit[threshold, area, nth - 1] = nth / (seen + np.spacing(1))
    best_after = np.maximum.accumulate(at_hit[:, :, ::-1], axis=2)[:, :, ::-1]

    precision = np.full(num_hits.shape, np.nan)
    recall = np.full(num_hits.shape, np.nan)
    for s in np.flatnonzero(num_truth).tolist():
        hits_needed = np.searchsorted(np.arange(num_truth[s] + 1) / num_truth[s], RECALLS)
        hit = np.clip(hits_needed - 1, 0, best_after.shape[2] - 1)
        precision[:, s] = best_after[:, s, hit].mean(axis=1)
        recall[:, s] = num_hits[:, s] / num_truth[s]
    return precision, recall


def _mean_over_classes(per_class: ClassAP, is_member: np.ndarray, letters: np.ndarray) -> GroupAP:
    """Means over the member classes ((C,) bool) that have annotations; letters: (C,) of r, c, f."""

    def mean(values: np.ndarray, rows: np.ndarray = is_member) -> float | None:
        defined = values[rows & ~np.isnan(values)]
        return float(defined.mean()) if len(defined) else None

    return GroupAP(
        ap=mean(per_class.ap),
        ap50=mean(per_class.ap50),
        ap75=mean(per_class.ap75),
        ap_small=mean(per_class.ap_small),
        ap_medium=mean(per_class.ap_medium),
        ap_large=mean(per_class.ap_large),
        ap_rare=mean(per_class.ap, is_member & (letters == "r")),
        ap_common=mean(per_class.ap, is_member & (letters == "c")),
        ap_frequent=mean(per_class.ap, is_member & (letters == "f")),
        average_recall=mean(per_class.average_recall),
        num_classes=int((is_member & (per_class.num_annotations > 0)).sum()),
    )
