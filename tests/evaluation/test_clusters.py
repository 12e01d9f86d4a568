from dataclasses import replace

import numpy as np
import pytest

from rncdl.classes import ClassSplit
from rncdl.evaluation.assignment import UNMAPPED
from rncdl.evaluation.clusters import found_before, score_clusters

from .made_up import make_truth

SPLIT = ClassSplit(("class 1",))


def called_known(categories: list[int], outputs: list[int]) -> float | None:
    """Of annotations of these categories, of which 1 is known and has output 0."""
    box = (0.0, 0.0, 9.0, 9.0)
    truth = make_truth(
        [{"image": 0, "category": category, "box_xyxy": box} for category in categories],
        num_images=1,
        num_classes=3,
    )
    names = ("class 1", "novel_0000", "novel_0001")
    return score_clusters(np.array(outputs), truth, SPLIT, names=names).novel_called_known


def test_without_novel_boxes_none_can_be_called_known():
    assert called_known([1, 1], [0, 1]) is None


def test_novel_boxes_called_known_are_counted_and_known_or_skipped_ones_are_not():
    # Of the three novel boxes that were looked at, one went to the known output.
    assert called_known([1, 2, 2, 3, 3], [0, 0, 1, 2, -1]) == pytest.approx(1 / 3)


def test_names_of_people_are_classes_of_the_file_whatever_the_boxes_say():
    box = (0.0, 0.0, 9.0, 9.0)
    truth = make_truth(
        [{"image": 0, "category": category, "box_xyxy": box} for category in (2, 2, 3)],
        num_images=1,
        num_classes=3,
    )
    names = ("class 1", "Class 3", "novel_0001", "unheard of")
    found = score_clusters(np.array([1, 2, 3]), truth, SPLIT, names=names)
    columns = {
        protocol: assignment.class_columns.tolist()
        for protocol, assignment in found.assignments.items()
    }
    assert columns == {"fixed": [0, 2, 1, UNMAPPED], "named": [0, 2, UNMAPPED, UNMAPPED]}
    unnamed = score_clusters(np.array([1, 2, 3]), truth, SPLIT, names=("class 1", *["novel_0"] * 3))
    assert list(unnamed.assignments) == ["fixed", "paper"]


def test_classes_found_before_are_clusters_and_no_known_ones():
    """Of a detector of one real class and two found ones, as trained: it has no other outputs."""
    box = (0.0, 0.0, 9.0, 9.0)
    truth = make_truth(
        [{"image": 0, "category": category, "box_xyxy": box} for category in (1, 2, 2, 3, 3)],
        num_images=1,
        num_classes=3,
    )
    split = ClassSplit(("found_0004", "class 1", "found2_0000"))
    found = score_clusters(np.array([1, 0, 1, 2, 2]), truth, split, names=split.known)
    assert found.num_clusters == 2
    assert found.assignments["fixed"].class_columns.tolist() == [1, 0, 2]
    assert found.novel_called_known == pytest.approx(1 / 4)
    assert found.scores["known"] is not None
    assert found.scores["known"].num_samples == 1
    assert found.scores["novel"] is not None
    assert found.scores["novel"].accuracy == pytest.approx(3 / 4)


def test_a_class_that_the_file_has_was_not_found_before():
    truth = make_truth([], num_images=1, num_classes=1)
    renamed = replace(truth, categories=(replace(truth.categories[0], name="found_0004"),))
    split = ClassSplit(("found_0004", "found_0005"))
    assert found_before(split, truth) == [0, 1]
    assert found_before(split, renamed) == [1]
