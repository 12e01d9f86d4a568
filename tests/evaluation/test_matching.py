import numpy as np
import pytest
from pycocotools import mask as coco_mask

from rncdl.evaluation import matching
from rncdl.evaluation.matching import (
    Pairs,
    best_of_groups,
    box_pairs,
    mask_pairs,
    match_greedily,
    rank_in_run,
    run_starts,
)

NONE = np.zeros(0, dtype=np.int64)


def test_runs():
    assert run_starts(NONE).tolist() == []
    assert rank_in_run(NONE).tolist() == []
    values = np.array([7, 7, 3, 7, 7, 7])
    assert run_starts(values).tolist() == [0, 2, 3]
    assert rank_in_run(values).tolist() == [0, 1, 0, 0, 1, 2]


def test_best_of_groups_keeps_the_first_of_equals():
    assert best_of_groups(NONE, np.zeros(0), limit=2).tolist() == []
    groups = np.array([5, 1, 5, 5, 1, 5])
    scores = np.array([0.1, 0.9, 0.5, 0.5, 0.2, 0.5])
    assert best_of_groups(groups, scores, limit=2).tolist() == [1, 2, 3, 4]
    assert best_of_groups(groups, scores, limit=1).tolist() == [1, 2]


def random_boxes(rng: np.random.Generator, num: int) -> np.ndarray:
    corners = rng.integers(0, 20, size=(num, 2))
    return np.concatenate([corners, corners + rng.integers(1, 30, size=(num, 2))], axis=1).astype(
        float
    )


@pytest.mark.parametrize("block_pairs", [1, 7, 1 << 20])
def test_box_pairs_are_all_that_overlap_by_half(block_pairs, monkeypatch):
    monkeypatch.setattr(matching, "BLOCK_PAIRS", block_pairs)
    rng = np.random.default_rng(0)
    boxes, truth = random_boxes(rng, 200), random_boxes(rng, 100)
    groups, truth_groups = rng.integers(0, 5, 200), np.sort(rng.integers(1, 6, 100))
    is_crowd = rng.random(100) < 0.3
    xywh, truth_xywh = boxes.copy(), truth.copy()
    xywh[:, 2:] -= xywh[:, :2]
    truth_xywh[:, 2:] -= truth_xywh[:, :2]
    ious = coco_mask.iou(xywh, truth_xywh, is_crowd.astype(np.uint8))
    expected = (ious >= 0.5) & (groups[:, None] == truth_groups)
    pairs = box_pairs(
        boxes, truth, detection_groups=groups, truth_groups=truth_groups, is_crowd=is_crowd
    )
    found = np.zeros_like(expected)
    found[pairs.detection_rows, pairs.truth_rows] = True
    assert expected.sum() > 20
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(pairs.ious, ious[pairs.detection_rows, pairs.truth_rows])
    assert (np.diff(pairs.detection_rows) >= 0).all()


def test_no_pairs():
    pairs = box_pairs(
        np.zeros((0, 4)),
        np.zeros((0, 4)),
        detection_groups=NONE,
        truth_groups=NONE,
        is_crowd=np.zeros(0, dtype=bool),
    )
    assert len(pairs.ious) == 0
    pairs = mask_pairs(
        [], [], detection_groups=NONE, truth_groups=NONE, is_crowd=np.zeros(0, dtype=bool)
    )
    assert len(pairs.ious) == 0


def match(
    rows: list[tuple[int, int, float]], *, groups, ignored: list[bool], crowd: list[bool]
) -> np.ndarray:
    """(T, D): 0 unmatched, 1 matched, 2 matched to an annotation that does not count."""
    detection_rows, truth_rows, ious = (np.array(column) for column in zip(*rows, strict=True))
    matches = match_greedily(
        Pairs(detection_rows, truth_rows, ious),
        groups=np.array(groups),
        truth_ignored=np.array([ignored]),
        is_crowd=np.array(crowd),
    )
    answer = np.zeros((10, len(groups)), dtype=int)
    answer[:, matches.detection_rows] = (
        matches.is_matched[:, 0].astype(int) + matches.is_ignored[:, 0]
    )
    return answer


def test_the_better_detection_chooses_first():
    """The second one keeps what the first left, at thresholds that it reaches."""
    answer = match(
        [(0, 0, 0.9), (0, 1, 0.8), (1, 0, 0.95), (1, 1, 0.6)],
        groups=[0, 0],
        ignored=[False, False],
        crowd=[False, False],
    )
    assert answer[:, 0].tolist() == [1] * 9 + [0]
    assert answer[:, 1].tolist() == [1, 1, 1, 0, 0, 0, 0, 0, 0, 1]


def test_annotations_that_do_not_count_come_last_whatever_their_overlap():
    answer = match(
        [(0, 0, 0.95), (0, 1, 0.7)], groups=[0], ignored=[True, False], crowd=[False, False]
    )
    assert answer[:, 0].tolist() == [1] * 5 + [2] * 5


def test_a_crowd_is_never_used_up():
    pairs = [(0, 0, 0.95), (1, 0, 0.95), (2, 0, 0.95)]
    answer = match(pairs, groups=[0, 0, 0], ignored=[True], crowd=[True])
    assert (answer == 2).all()
    answer = match(pairs, groups=[0, 0, 0], ignored=[True], crowd=[False])
    assert answer[0].tolist() == [2, 0, 0]
