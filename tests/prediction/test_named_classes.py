"""What people decided, as classes and their probabilities."""

import pytest
import torch

from rncdl.naming.decisions import Decisions
from rncdl.prediction.named_classes import JoinClusters, name_classes

KNOWN = ("car", "dog")
DECIDED = Decisions(names={0: "cup", 2: "car", 3: "cup", 9: "made by hand"}, ignored=frozenset({4}))


def test_without_decisions_every_cluster_is_a_class_of_its_own():
    classes = name_classes(KNOWN, 2, Decisions())
    assert classes.names == ("car", "dog", "novel_0000", "novel_0001")
    assert classes.clusters == ((), (), (0,), (1,))


def test_one_name_is_one_class_and_ignored_clusters_are_none():
    classes = name_classes(KNOWN, 6, DECIDED)
    assert classes.names == ("car", "dog", "cup", "novel_0001", "novel_0005")
    assert classes.clusters == ((2,), (), (0, 3), (1,), (5,))


def test_all_clusters_may_be_ignored():
    classes = name_classes(KNOWN, 2, Decisions(ignored=frozenset({0, 1})))
    joined = JoinClusters(classes)(torch.rand(3, 2), torch.rand(3, 2), together=True)
    assert joined.shape == (3, 2)


def test_probabilities_of_one_softmax_are_added():
    outputs = torch.tensor([[0.1, 0.2, 0.05, 0.15, 0.2, 0.1, 0.12, 0.08]])
    joining = JoinClusters(name_classes(KNOWN, 6, DECIDED))
    joined = joining(outputs[:, :2], outputs[:, 2:], together=True)
    expected = torch.tensor([[0.1 + 0.2, 0.2, 0.05 + 0.1, 0.15, 0.08]])
    torch.testing.assert_close(joined, expected)


def test_two_judges_of_a_known_class_never_pass_one():
    known, novel = torch.tensor([[0.9, 0.1]]), torch.tensor([[0.0, 0.0, 0.8, 0.2, 0.0, 0.0]])
    joining = JoinClusters(name_classes(KNOWN, 6, DECIDED))
    joined = joining(known, novel, together=False)
    assert joined[0, 0].item() == pytest.approx(0.9 + 0.8 - 0.72)
    assert joined[0, 1].item() == pytest.approx(0.1)
