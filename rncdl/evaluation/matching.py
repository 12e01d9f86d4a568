"""Which detection takes which annotation: COCO's greedy matching, all classes at once.

T IoU thresholds, S area ranges, D detections, G annotations. Detections come sorted by score
within each group; a group is one class in one image, and only members of one group ever meet.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

IOU_THRESHOLDS = np.linspace(0.5, 0.95, 10)
"""(T,) COCO's; `linspace` and not `arange`, whose values lie slightly above."""

BLOCK_PAIRS = 1 << 20
"""Box pairs looked at together: bounds the memory, about 100 MB."""


@dataclass(frozen=True)
class Pairs:
    """P pairs of one detection and one annotation of its group that overlap enough to match."""

    detection_rows: np.ndarray
    """(P,) int64, ascending"""
    truth_rows: np.ndarray
    """(P,) int64"""
    ious: np.ndarray
    """(P,) float64, at least the lowest threshold"""


@dataclass(frozen=True)
class Matches:
    """What became of the M detections that overlap some annotation; the others match nothing."""

    detection_rows: np.ndarray
    """(M,) int64, ascending"""
    is_matched: np.ndarray
    """(T, S, M) bool"""
    is_ignored: np.ndarray
    """(T, S, M) bool, matched to an annotation that does not count in this area range"""


def run_starts(values: np.ndarray) -> np.ndarray:
    """Positions (int64) at which a run of equal values begins."""
    if len(values) == 0:
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))


def rank_in_run(values: np.ndarray) -> np.ndarray:
    """(L,) position of every value within its run of equal values, from 0."""
    starts = run_starts(values)
    lengths = np.diff(starts, append=len(values))
    return np.arange(len(values)) - np.repeat(starts, lengths)


def best_of_groups(groups: np.ndarray, scores: np.ndarray, *, limit: int) -> np.ndarray:
    """Rows, ascending, of the `limit` best scores of each group; of equals the first stay."""
    order = np.lexsort((-scores, groups))
    return np.sort(order[rank_in_run(groups[order]) < limit])


def box_pairs(
    detection_boxes_xyxy: np.ndarray,
    truth_boxes_xyxy: np.ndarray,
    *,
    detection_groups: np.ndarray,
    truth_groups: np.ndarray,
    is_crowd: np.ndarray,
) -> Pairs:
    """Pairs of boxes (D, 4) and (G, 4) of the same group; `truth_groups` is ascending.

    Overlap with a crowd is the share of the detection that it covers.
    """
    first = np.searchsorted(truth_groups, detection_groups, side="left")
    counts = np.searchsorted(truth_groups, detection_groups, side="right") - first
    parts = []
    for block in _blocks(counts):
        rows = np.repeat(np.arange(block.start, block.stop), counts[block])
        truth_rows = first[rows] + rank_in_run(rows)
        ious = _paired_iou(
            detection_boxes_xyxy[rows], truth_boxes_xyxy[truth_rows], is_crowd[truth_rows]
        )
        near = ious >= IOU_THRESHOLDS[0]
        parts.append((rows[near], truth_rows[near], ious[near]))
    return _join(parts)


def mask_pairs(
    detection_rles: list[dict[str, Any]],
    truth_rles: list[dict[str, Any]],
    *,
    detection_groups: np.ndarray,
    truth_groups: np.ndarray,
    is_crowd: np.ndarray,
) -> Pairs:
    """As `box_pairs`, for run-length masks."""
    order = np.argsort(detection_groups, kind="stable")
    starts = run_starts(detection_groups[order])
    stops = np.append(starts[1:], len(order))
    groups = detection_groups[order[starts]]
    first = np.searchsorted(truth_groups, groups, side="left")
    last = np.searchsorted(truth_groups, groups, side="right")
    parts = []
    for index in np.flatnonzero(last > first).tolist():
        rows = order[starts[index] : stops[index]]
        truth_rows = np.arange(first[index], last[index])
        ious = coco_mask.iou(
            [detection_rles[row] for row in rows.tolist()],
            [truth_rles[row] for row in truth_rows.tolist()],
            is_crowd[truth_rows].astype(np.uint8),
        )
        near, near_truth = np.nonzero(ious >= IOU_THRESHOLDS[0])
        parts.append((rows[near], truth_rows[near_truth], ious[near, near_truth]))
    return _join(parts)


def match_greedily(
    pairs: Pairs, *, groups: np.ndarray, truth_ignored: np.ndarray, is_crowd: np.ndarray
) -> Matches:
    """The best detection of each group chooses first, then the second, and so on.

    A detection takes the free annotation it overlaps most (of equals the later one), and one that
    does not count only where no other is left. A crowd is never used up.

    groups: (D,) of the detections; truth_ignored: (S, G) bool; is_crowd: (G,) bool.
    """
    candidates, candidate_of_pair = np.unique(pairs.detection_rows, return_inverse=True)
    by_group = np.argsort(groups[candidates], kind="stable")
    turn = np.empty(len(candidates), dtype=np.int64)
    turn[by_group] = rank_in_run(groups[candidates][by_group])

    order = np.lexsort((pairs.truth_rows, pairs.ious, candidate_of_pair, turn[candidate_of_pair]))
    turns = turn[candidate_of_pair][order]
    bounds = [*run_starts(turns).tolist(), len(turns)]

    shape = (len(IOU_THRESHOLDS), len(truth_ignored))
    is_taken = np.zeros((*shape, len(is_crowd)), dtype=bool)
    is_matched = np.zeros((*shape, len(candidates)), dtype=bool)
    is_ignored = np.zeros((*shape, len(candidates)), dtype=bool)
    for start, stop in pairwise(bounds):
        now = order[start:stop]
        candidate, truth = candidate_of_pair[now], pairs.truth_rows[now]
        reaches = pairs.ious[now] >= IOU_THRESHOLDS[:, None]
        is_free = reaches[:, None, :] & ~is_taken[:, :, truth]
        # Pairs are sorted by overlap, so a pair's position is its rank; those that count go first.
        rank = 1 + np.arange(len(now)) + len(now) * ~truth_ignored[:, truth]
        first_of = run_starts(candidate)
        best = np.maximum.reduceat(np.where(is_free, rank, 0), first_of, axis=2)
        threshold, area, which = np.nonzero(best)
        taken = truth[(best[threshold, area, which] - 1) % len(now)]
        is_taken[threshold, area, taken] = ~is_crowd[taken]
        is_matched[threshold, area, candidate[first_of][which]] = True
        is_ignored[threshold, area, candidate[first_of][which]] = truth_ignored[area, taken]
    return Matches(candidates, is_matched, is_ignored)


def _blocks(counts: np.ndarray) -> Iterator[slice]:
    """Consecutive rows whose counts sum to about `BLOCK_PAIRS`; rows before or after have none."""
    cumulative = np.cumsum(counts)
    total = int(cumulative[-1]) if len(counts) else 0
    cuts = np.searchsorted(cumulative, np.arange(0, total, BLOCK_PAIRS), side="right").tolist()
    for start, stop in pairwise([*cuts, len(counts)]):
        yield slice(start, stop)


def _paired_iou(boxes_xyxy: np.ndarray, truth_xyxy: np.ndarray, is_crowd: np.ndarray) -> np.ndarray:
    """(P,) overlap of row i with row i."""
    corner = np.minimum(boxes_xyxy[:, 2:], truth_xyxy[:, 2:])
    sides = np.maximum(corner - np.maximum(boxes_xyxy[:, :2], truth_xyxy[:, :2]), 0)
    shared = sides[:, 0] * sides[:, 1]
    area = box_areas(boxes_xyxy)
    union = np.where(is_crowd, area, area + box_areas(truth_xyxy) - shared)
    return np.divide(shared, union, out=np.zeros_like(shared), where=shared > 0)


def box_areas(boxes_xyxy: np.ndarray) -> np.ndarray:
    """(B,) areas of (B, 4) boxes."""
    return (boxes_xyxy[:, 2] - boxes_xyxy[:, 0]) * (boxes_xyxy[:, 3] - boxes_xyxy[:, 1])


def _join(parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Pairs:
    if not parts:
        none = np.zeros(0, dtype=np.int64)
        return Pairs(none, none, np.zeros(0))
    rows, truth_rows, ious = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(rows, kind="stable")
    return Pairs(rows[order], truth_rows[order], ious[order])
