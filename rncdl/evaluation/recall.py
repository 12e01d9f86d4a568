"""Class-agnostic recall of proposals: what no classifier behind them can exceed."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from rncdl.data.records import AnnotationSet
from rncdl.evaluation.matching import IOU_THRESHOLDS, box_pairs, match_greedily, rank_in_run

PROPOSAL_LIMITS = (50, 100, 300, 1000)
_CHUNK_IMAGES = 64


@dataclass(frozen=True)
class ProposalRecall:
    """Recall with the best k proposals of every image, in [0, 1]; empty without annotations."""

    average: dict[int, float]
    """k -> AR@k, the mean over the IoU thresholds 0.5, 0.55, ..., 0.95"""
    at_iou_50: dict[int, float]
    """k -> recall at IoU 0.5"""
    num_annotations: int


@dataclass(frozen=True)
class RecallResult:
    """Recall of the annotations of all, known and novel classes, each as if alone in its image."""

    all: ProposalRecall
    known: ProposalRecall
    novel: ProposalRecall


def measure_recall(
    proposals_xyxy: Iterable[np.ndarray],
    truth: AnnotationSet,
    *,
    known_category_ids: Collection[int],
    limits: Sequence[int] = PROPOSAL_LIMITS,
) -> RecallResult:
    """Recall of the annotations by the proposals (P, 4), best first, of every image of `truth`.

    Proposals are taken in their order, each for the free annotation it overlaps most, as in
    COCO's AR. Crowds are left out. An iterator is read a few images at a time.
    """
    is_known = np.isin(truth.category_ids, np.array(sorted(known_category_ids), dtype=np.int64))
    groups = [~truth.is_crowd, ~truth.is_crowd & is_known, ~truth.is_crowd & ~is_known]
    hits = np.zeros((len(groups), len(limits), len(IOU_THRESHOLDS)), dtype=np.int64)
    start = 0
    for chunk in _chunks(proposals_xyxy):
        stop = start + len(chunk)
        rows = np.arange(*np.searchsorted(truth.image_index, [start, stop]))
        for group, is_member in enumerate(groups):
            members = rows[is_member[rows]]
            hits[group] += _count_hits(
                chunk,
                truth.boxes_xyxy[members],
                image_index=truth.image_index[members] - start,
                limits=limits,
            )
        start = stop
    if start != len(truth.images):
        raise ValueError(f"proposals of {start} images for {len(truth.images)} images")
    results = [
        _summarise(found, int(is_member.sum()), limits)
        for found, is_member in zip(hits, groups, strict=True)
    ]
    return RecallResult(*results)


def _chunks(proposals_xyxy: Iterable[np.ndarray]) -> Iterator[list[np.ndarray]]:
    images = iter(proposals_xyxy)
    while chunk := list(islice(images, _CHUNK_IMAGES)):
        yield chunk


def _count_hits(
    proposals_xyxy: Sequence[np.ndarray],
    truth_xyxy: np.ndarray,
    *,
    image_index: np.ndarray,
    limits: Sequence[int],
) -> np.ndarray:
    """(limits, T) annotations (G, 4) found; `image_index` (G,) points into the proposals."""
    kept = [boxes[: max(limits)] for boxes in proposals_xyxy]
    groups = np.repeat(np.arange(len(kept)), [len(boxes) for boxes in kept])
    no_crowd = np.zeros(len(truth_xyxy), dtype=bool)
    pairs = box_pairs(
        np.concatenate(kept).astype(np.float64),
        truth_xyxy,
        detection_groups=groups,
        truth_groups=image_index,
        is_crowd=no_crowd,
    )
    matches = match_greedily(pairs, groups=groups, truth_ignored=no_crowd[None], is_crowd=no_crowd)
    # A proposal's match depends on better proposals only, so one pass serves every limit.
    rank = rank_in_run(groups)[matches.detection_rows]
    found = matches.is_matched[:, 0]
    return np.stack([found[:, rank < limit].sum(axis=1) for limit in limits])


def _summarise(hits: np.ndarray, num_annotations: int, limits: Sequence[int]) -> ProposalRecall:
    if num_annotations == 0:
        return ProposalRecall({}, {}, 0)
    recall = hits / num_annotations
    return ProposalRecall(
        average=dict(zip(limits, recall.mean(axis=1).tolist(), strict=True)),
        at_iou_50=dict(zip(limits, recall[:, 0].tolist(), strict=True)),
        num_annotations=num_annotations,
    )
