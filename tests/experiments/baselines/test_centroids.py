from pathlib import Path

import pytest
import torch
from torch import Tensor

from rncdl.discovery.bank import Bank, BankShape
from rncdl.discovery.extraction import ChosenRegions, ExtractedRegions
from rncdl.errors import UserError
from rncdl.experiments.baselines.centroids import (
    CentroidClassifier,
    ClassMeans,
    fit_centroids,
    soften,
)


def test_regions_take_the_label_of_the_nearest_centroid(tmp_path):
    """Two known classes and two novel blobs, far apart: each gets an output of its own."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.tensor([[9.0, 0.0], [0.0, 9.0], [-9.0, 0.0], [0.0, -9.0]])
    shape = BankShape(6, 2, 2, 8, 4, 2)
    Bank.create(tmp_path / "bank", shape, {})
    bank = Bank(tmp_path / "bank", writable=True)
    for index in range(6):
        which = torch.tensor([2, 3] * 4)
        features = centres[which] + 0.1 * torch.randn(8, 2, generator=generator)
        labels = torch.tensor([0, 1, 0, 1]) if index < 2 else torch.zeros(0, dtype=torch.int64)
        matched = centres[labels] + 0.1 * torch.randn(len(labels), 2, generator=generator)
        chosen = ChosenRegions(
            torch.zeros(8, 4), torch.zeros(8), torch.zeros(len(labels), 4), labels
        )
        bank.write(
            index, ExtractedRegions(chosen, features.expand(2, -1, -1), matched.expand(2, -1, -1))
        )
    classifier = fit_centroids(bank, num_known=3, num_clusters=2)
    outputs = classifier(centres)
    assert outputs.shape == (4, 5)
    assert outputs.sum(1).tolist() == [1.0] * 4
    found = outputs.argmax(1).tolist()
    assert found[:2] == [0, 1]
    assert sorted(found[2:]) == [3, 4]  # never 2: the known class without a region


def test_near_centroids_are_told_apart_even_under_autocast():
    """They differ in the fourth digit; bfloat16 has not quite three."""
    classifier = CentroidClassifier(torch.tensor([[1.0, 0.0], [1.001, 0.0]]))
    with torch.autocast("cpu", torch.bfloat16):
        found = classifier(torch.tensor([[1.0, 3.0], [1.001, 3.0]], dtype=torch.float32))
    assert found.tolist() == [[1, 0], [0, 1]]


def made_up_bank(tmp_path: Path, features: Tensor) -> Bank:
    """One image without annotations whose regions have these features."""
    count, width = features.shape
    Bank.create(tmp_path / "bank", BankShape(1, 1, 2, count, 1, width), {})
    bank = Bank(tmp_path / "bank", writable=True)
    nothing = torch.zeros(0, dtype=torch.int64)
    chosen = ChosenRegions(torch.zeros(count, 4), torch.zeros(count), torch.zeros(0, 4), nothing)
    bank.write(0, ExtractedRegions(chosen, features.expand(2, -1, -1), torch.zeros(2, 0, width)))
    return bank


def test_means_of_no_regions_are_out_of_reach():
    means = ClassMeans(2, 3)
    means.add(torch.tensor([[1.0, 2, 3], [3, 2, 1]]), torch.tensor([1, 1]))
    assert means.means()[1].tolist() == [2, 2, 2]
    assert means.means()[0].min() > 1e9


def test_soft_probabilities_fall_with_the_squared_distance(tmp_path):
    """By hand: every region lies 2 from its centroid, so the spread is 4."""
    bank = made_up_bank(tmp_path, torch.tensor([[0.0, 2], [0, -2], [4, 2], [4, -2]]))
    hard = CentroidClassifier(torch.tensor([[0.0, 0.0], [4.0, 0.0]]))
    soft = soften(hard, bank, seed=0)
    assert soft.spread == pytest.approx(4)
    found = soft(torch.tensor([[1.0, 0.0], [2.0, 0.0]]))
    expected = torch.tensor([[-1 / 4, -9 / 4], [-1.0, -1.0]]).softmax(1)
    torch.testing.assert_close(found, expected)
    assert soft(torch.zeros(0, 2)).shape == (0, 2)


def test_more_clusters_than_regions_are_refused(tmp_path):
    bank = made_up_bank(tmp_path, torch.rand(4, 2))
    with pytest.raises(UserError, match="5 clusters cannot be made of 4 regions"):
        fit_centroids(bank, num_known=1, num_clusters=5)
