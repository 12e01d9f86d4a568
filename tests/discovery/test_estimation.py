from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from rncdl.discovery.estimation import (
    Cut,
    Estimate,
    Point,
    SmallClusters,
    cut_everywhere,
    divide,
    estimate_clusters,
    read_cuts,
)
from rncdl.errors import UserError

NUM_KNOWN, DIMENSIONS = 6, 32


def objects(num_new: int, per_class: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    """Compact classes far apart: unlabelled objects of all, labelled ones of the known."""
    generator = torch.Generator().manual_seed(num_new)
    centres = torch.randn(NUM_KNOWN + num_new, DIMENSIONS, generator=generator)
    classes = torch.arange((NUM_KNOWN + num_new) * per_class) % (NUM_KNOWN + num_new)
    labels = torch.arange(NUM_KNOWN * per_class) % NUM_KNOWN
    features, labelled = (
        torch.nn.functional.normalize(
            centres[own] + 0.25 * torch.randn(len(own), DIMENSIONS, generator=generator)
        )
        for own in (classes, labels)
    )
    return features, labelled, labels


def test_nothing_labelled_is_no_yardstick():
    features, labelled, labels = objects(3)
    with pytest.raises(UserError, match="fewer than two"):
        estimate_clusters(features, labelled[:0], labels[:0], seed=0)


def test_a_handful_of_objects_is_too_few():
    _, labelled, labels = objects(3)
    with pytest.raises(UserError, match="0 objects are too few"):
        estimate_clusters(labelled[:0], labelled[:12], labels[:12], seed=0)


@pytest.mark.parametrize("num_new", [5, 15, 40])
def test_the_estimate_is_near_the_truth(num_new: int):
    features, labelled, labels = objects(num_new)
    found = estimate_clusters(features, labelled, labels, seed=0)
    assert num_new / 1.5 <= found.num_clusters <= 1.5 * num_new
    assert found.low <= found.num_clusters <= found.high


def test_a_known_class_owns_the_clusters_that_its_labelled_objects_are_in():
    features, labelled, labels = objects(2)
    small = divide(features, labelled, labels, count=8, seed=0)
    assert small.num_objects.sum() == len(features) + len(labelled)
    assert sorted(small.owners.tolist()) == [-1, -1, 0, 1, 2, 3, 4, 5]


def test_cuts_are_read_where_known_classes_are_told_apart():
    """Two parts of each of two known classes, and three new classes, of one in two parts."""
    places = [[0.0, 0], [0, 1], [20, 0], [20, 1], [40, 0], [40, 1], [60, 0], [0, 20]]
    small = SmallClusters(np.array(places), np.full(8, 10), np.array([0, 0, 1, 1, -1, -1, -1, -1]))
    cuts = cut_everywhere(small)
    best = [cut for cut in cuts if cut.agreement == 1]
    assert best[0].num_clusters == 3
    assert read_cuts(cuts) == 3
    assert read_cuts([Cut(16, 0.5), Cut(9, 1.0), Cut(4, 1.0), Cut(2, 0.3)]) == 9


def test_a_small_group_is_no_class():
    places = np.array([[0.0, 0], [0, 1], [20, 0], [20, 1], [40, 0], [60, 0]])
    owners = np.array([0, 0, 1, 1, -1, -1])
    small = SmallClusters(places, np.array([10, 10, 10, 10, 10, 3]), owners)
    assert max(cut.num_clusters for cut in cut_everywhere(small)) == 1


def test_the_estimate_in_words_and_in_a_file(tmp_path: Path):
    found = Estimate(12, 6, 13, (Point(6, 0.9, 0.1),))
    assert found.with_room == 15
    assert "About 12 new classes (between 6 and 13)" in found.line()
    found.save(tmp_path / "estimate.json")
    assert Estimate.load(tmp_path / "estimate.json") == found


def test_an_estimate_of_another_version_is_told_of(tmp_path: Path):
    path = tmp_path / "estimate.json"
    point = '{"num_clusters": 2, "accuracy": 1, "spread": 0}'
    path.write_text('{"num_clusters": 2, "low": 2, "high": 2, "curve": [' + point + "]}")
    with pytest.raises(UserError, match="another version"):
        Estimate.load(path)
