import pytest
import torch
from torch import Tensor

from rncdl.discovery.semi_supervised import (
    Grouping,
    PartlyLabelled,
    best_grouping,
    semi_supervised_kmeans,
)


def group(
    features: Tensor, labelled: Tensor, labels: Tensor, *, clusters: int, per_known: int = 1
) -> Grouping:
    return semi_supervised_kmeans(
        PartlyLabelled(features, labelled, labels, num_known=2),
        num_clusters=clusters,
        per_known=per_known,
        rounds=10,
        generator=torch.Generator().manual_seed(0),
    )


NO_LABELS = torch.zeros(0, dtype=torch.int64)


def test_without_labels_it_is_kmeans():
    """The known classes have no centroid then, and the clusters share everything."""
    features = torch.tensor([[0.0, 0.0], [0.0, 2.0], [9.0, 0.0], [9.0, 2.0]])
    found = group(features, torch.zeros(0, 2), NO_LABELS, clusters=2)
    assert found.outputs.tolist() == [2, 3]
    assert sorted(found.centroids.tolist()) == [[0.0, 1.0], [9.0, 1.0]]
    assert found.inertia == pytest.approx(4)


def test_known_objects_stay_known_and_the_rest_is_clustered():
    """Unlabelled features near a known class move its centroid; a cluster takes what is far."""
    labelled, labels = torch.tensor([[0.0, 0.0], [0.0, 9.0]]), torch.tensor([0, 1])
    features = torch.tensor([[2.0, 0.0], [9.0, 9.0], [9.0, 7.0]])
    found = group(features, labelled, labels, clusters=1)
    assert found.outputs.tolist() == [0, 1, 2]
    assert found.centroids.tolist() == [[1.0, 0.0], [0.0, 9.0], [9.0, 8.0]]
    assert found.inertia == pytest.approx(1 + 1 + 1 + 1)


def test_labelled_features_never_leave_their_class():
    """One of class 0 lies in the midst of class 1: it stays, and pulls its centroid there."""
    labelled = torch.tensor([[0.0, 0.0], [8.0, 0.0], [9.0, 0.0], [9.0, 0.0]])
    found = group(torch.tensor([[0.0, 9.0]]), labelled, torch.tensor([0, 0, 1, 1]), clusters=1)
    assert found.centroids.tolist() == [[4.0, 0.0], [9.0, 0.0], [0.0, 9.0]]


def test_what_is_surely_new_goes_to_clusters_and_to_classes_whose_labels_are_incomplete():
    labelled = torch.tensor([[0.0, 0.0], [10.0, 0.0]])
    features = torch.tensor([[0.0, 1.0], [10.0, 1.0], [5.0, 90.0]])
    for incomplete, expected in (((), [2, 2, 2]), ((1,), [1, 1, 2]), ((0, 1), [0, 1, 2])):
        given = PartlyLabelled(
            features,
            labelled,
            torch.tensor([0, 1]),
            num_known=2,
            surely_new=torch.ones(3, dtype=torch.bool),
            incomplete=incomplete,
        )
        grouping = semi_supervised_kmeans(
            given,
            num_clusters=1,
            per_known=1,
            rounds=3,
            generator=torch.Generator().manual_seed(0),
        )
        assert grouping.found.tolist() == expected


def test_a_known_class_of_two_kinds_keeps_both_with_two_centroids():
    """With one centroid, halfway between its kinds, a cluster would take the unlabelled of one."""
    labelled = torch.tensor([[0.0, 0.0], [0.0, 0.0], [8.0, 0.0], [8.0, 0.0]])
    features = torch.tensor([[0.0, 0.0], [8.0, 0.0], [4.0, 30.0]])
    found = group(features, labelled, torch.zeros(4, dtype=torch.int64), clusters=1, per_known=2)
    assert found.outputs.tolist() == [0, 0, 2]
    assert sorted(found.centroids[:2].tolist()) == [[0.0, 0.0], [8.0, 0.0]]
    assert found.centroids[2].tolist() == [4.0, 30.0]
    assert found.inertia == pytest.approx(0)


def test_the_best_of_several_starts_has_the_least_inertia():
    nothing = torch.zeros(0, 2)
    groupings = [Grouping(nothing, NO_LABELS, NO_LABELS, inertia) for inertia in (3.0, 1.0, 2.0)]
    assert best_grouping(groupings) is groupings[1]
