"""k-means on region features: the paper's baseline on the detector's own features."""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional

from rncdl.discovery.bank import Bank
from rncdl.discovery.kmeans import kmeans, nearest

MAX_REGIONS = 200_000
"""k-means looks at so many regions at the most, drawn evenly from the pool."""


@dataclass(frozen=True)
class CentroidClassifier:
    """Every region is of the class or cluster whose centroid is nearest, with confidence 1."""

    centroids: Tensor
    """(K + N, F): means of the known classes' regions, then k-means of the pool's"""

    def __call__(self, features: Tensor) -> Tensor:
        """(R, K + N) one-hot probabilities of features (R, F)."""
        labels = nearest(features.float(), self.centroids)
        return functional.one_hot(labels, len(self.centroids)).float()


def fit_centroids(
    bank: Bank, *, num_known: int, num_clusters: int, rounds: int = 30, seed: int = 0
) -> CentroidClassifier:
    """Known centroids from the matched regions of labelled images, clusters from all regions."""
    known = _known_means(bank, num_known)
    pool = _read_pool(bank, most=MAX_REGIONS, seed=seed)
    novel = kmeans(pool, num_clusters, rounds=rounds, generator=Generator().manual_seed(seed))
    return CentroidClassifier(torch.cat([known, novel]))


def _known_means(bank: Bank, num_known: int) -> Tensor:
    """(K, F) mean feature of each known class; out of reach for a class without regions."""
    sums = torch.zeros(num_known, bank.shape.num_features)
    counts = torch.zeros(num_known)
    for index, count in enumerate(bank.matched_counts().tolist()):
        if count:
            features, labels = bank.read_matched(index, 0, count=count)
            sums.index_add_(0, labels, features.float())
            counts += torch.bincount(labels, minlength=num_known)
    means = sums / counts[:, None].clamp_min(1)
    means[counts == 0] = torch.finfo(torch.float32).max ** 0.25
    return means


def _read_pool(bank: Bank, *, most: int, seed: int) -> Tensor:
    """(R, F) features of whole images, drawn until `most` regions are together."""
    counts = bank.counts()
    order = torch.randperm(len(counts), generator=Generator().manual_seed(seed)).tolist()
    parts, total = [torch.zeros(0, bank.shape.num_features)], 0
    for index in order:
        if counts[index] > 0 and total < most:
            parts.append(bank.read(index, 0, count=int(counts[index])).float())
            total += int(counts[index])
    return torch.cat(parts)
