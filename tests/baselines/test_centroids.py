import torch

from rncdl.baselines.centroids import fit_centroids
from rncdl.discovery.bank import Bank, BankShape
from rncdl.discovery.extraction import ChosenRegions, ExtractedRegions


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
