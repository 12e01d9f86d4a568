import numpy as np

from rncdl.evaluation.results import mean_by_group

from .made_up import make_truth


def test_without_annotations_no_mean_is_defined():
    truth = make_truth([], num_images=1, num_classes=2)
    means = mean_by_group(np.zeros(0), truth, [1])
    assert means == {"known": None, "novel": None, "all": None}


def test_the_mean_of_a_group_leaves_out_what_is_not_defined():
    box = (0.0, 0.0, 9.0, 9.0)
    truth = make_truth(
        [{"image": 0, "category": category, "box_xyxy": box} for category in (1, 2, 2, 1)],
        num_images=1,
        num_classes=2,
    )
    means = mean_by_group(np.array([0.25, 0.5, np.nan, 0.75]), truth, [1])
    assert means == {"known": 0.5, "novel": 0.5, "all": 0.5}
    assert mean_by_group(np.full(4, np.nan), truth, [1])["novel"] is None
