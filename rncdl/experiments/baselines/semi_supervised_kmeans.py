"""Semi-supervised k-means on region features (Vaze et al., 2022), on the unit sphere."""

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from rncdl.discovery.bank import Bank
from rncdl.discovery.kmeans import nearest
from rncdl.discovery.semi_supervised import PartlyLabelled, best_grouping, semi_supervised_kmeans
from rncdl.errors import UserError
from rncdl.experiments.baselines.centroids import MAX_REGIONS, read_matched, read_pool
from rncdl.training.processes import autocast

_ROUNDS = 30
_STARTS = 5
_PER_KNOWN = 3
"""Centroids of a known class: with one, known objects overflow into the clusters."""


class GroupClassifier(nn.Module):
    """Every region is of the class or cluster that owns the nearest centroid, with confidence 1.

    `centroids` (J, F) of length-one features; `outputs` (J,) in 0..C-1.
    """

    centroids: Tensor
    outputs: Tensor

    def __init__(self, centroids: Tensor, outputs: Tensor, num_outputs: int) -> None:
        super().__init__()
        self.register_buffer("centroids", centroids)
        self.register_buffer("outputs", outputs)
        self.num_outputs = num_outputs

    def forward(self, features: Tensor) -> Tensor:
        """(R, C) one-hot probabilities of features (R, F)."""
        with autocast(features.device, torch.float32):
            places = nearest(functional.normalize(features.float()), self.centroids)
        return functional.one_hot(self.outputs[places], self.num_outputs).float()


def fit_groups(
    bank: Bank,
    *,
    num_known: int,
    num_clusters: int,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> GroupClassifier:
    """The best of several starts, from the pool's regions and those that lie on annotations."""
    pool = functional.normalize(read_pool(bank, seed=seed)).to(device)
    if len(pool) < num_clusters:
        raise UserError(
            f"{num_clusters} clusters cannot be made of {len(pool)} regions: "
            "ask for fewer clusters, or give more unlabelled images."
        )
    labelled, labels = _read_labelled(bank)
    generator = Generator().manual_seed(seed)
    groupings = [
        semi_supervised_kmeans(
            PartlyLabelled(pool, labelled.to(device), labels.to(device), num_known),
            num_clusters=num_clusters,
            per_known=_PER_KNOWN,
            rounds=_ROUNDS,
            generator=generator,
        )
        for _ in range(_STARTS)
    ]
    best = best_grouping(groupings)
    return GroupClassifier(best.centroids, best.outputs, num_known + num_clusters)


def _read_labelled(bank: Bank) -> tuple[Tensor, Tensor]:
    """Features (L, F) of length one and labels (L,) of the first matched regions."""
    features = [torch.zeros(0, bank.shape.num_features)]
    labels = [torch.zeros(0, dtype=torch.int64)]
    total = 0
    for own, own_labels in read_matched(bank):
        if total < MAX_REGIONS:
            features.append(functional.normalize(own))
            labels.append(own_labels)
            total += len(own)
    return torch.cat(features), torch.cat(labels)
