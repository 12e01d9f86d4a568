import numpy as np
import pytest

from rncdl.classes import ClassSplit
from rncdl.evaluation.clusters import score_clusters

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
    return score_clusters(np.array(outputs), truth, SPLIT, num_clusters=2).novel_called_known


def test_without_novel_boxes_none_can_be_called_known():
    assert called_known([1, 1], [0, 1]) is None


def test_novel_boxes_called_known_are_counted_and_known_or_skipped_ones_are_not():
    # Of the three novel boxes that were looked at, one went to the known output.
    assert called_known([1, 2, 2, 3, 3], [0, 0, 1, 2, -1]) == pytest.approx(1 / 3)
