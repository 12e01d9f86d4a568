import numpy as np
import pytest
import torch

from rncdl.discovery.joining import join_clusters, most_agreed


def test_nothing_is_joined_where_there_is_nothing():
    nothing = torch.zeros(0, dtype=torch.int64)
    assert join_clusters(torch.zeros(0, 2), nothing, num_known=1, num_clusters=3).tolist() == []
    known = torch.tensor([0, 0])
    assert join_clusters(torch.zeros(2, 2), known, num_known=1, num_clusters=3).tolist() == [0, 0]


def test_the_nearest_clusters_are_joined_and_known_objects_stay():
    """Two parts of one class lie at 5 and 6, another class at 0; a known object lies between."""
    features = torch.tensor([[0.0], [5.0], [6.0], [5.5], [5.1]])
    found = torch.tensor([2, 3, 4, 0, 3])
    joined = join_clusters(features, found, num_known=2, num_clusters=2)
    assert joined[3] == 0
    assert joined[1] == joined[2] == joined[4] != joined[0]
    assert sorted(set(joined.tolist())) == [0, 2, 3]


def test_sizes_do_not_count():
    """The lone object at 3 is farther from all others than the large halves from each other."""
    features = torch.tensor([[0.0]] * 50 + [[1.0]] * 50 + [[3.0]])
    found = torch.tensor([1] * 50 + [2] * 50 + [3])
    joined = join_clusters(features, found, num_known=1, num_clusters=2)
    assert sorted(joined.unique(return_counts=True)[1].tolist()) == [1, 100]


@pytest.mark.parametrize("num_clusters", [2, 5])
def test_no_more_clusters_than_there_are_keep_their_members(num_clusters):
    features, found = torch.tensor([[0.0], [9.0], [9.0]]), torch.tensor([7, 4, 4])
    joined = join_clusters(features, found, num_known=3, num_clusters=num_clusters)
    assert joined[1] == joined[2] != joined[0]
    assert set(joined.tolist()) == {3, 4}


def test_the_labelling_that_others_agree_with_is_chosen_whatever_its_numbers():
    alike = [np.array([0, 0, 1, 1, 2, 2]), np.array([5, 5, 3, 3, 4, 4])]
    other = np.array([0, 1, 2, 0, 1, 2])
    assert most_agreed([other, *alike]) in (1, 2)
    assert most_agreed([other]) == 0
