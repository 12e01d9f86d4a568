"""k-means on region features: the paper's baseline on the detector's own features."""

from collections.abc import Iterator

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from rncdl.discovery.bank import Bank
from rncdl.discovery.kmeans import kmeans, nearest
from rncdl.errors import UserError
from rncdl.training.processes import autocast

MAX_REGIONS = 200_000
"""k-means looks at so many regions at the most, drawn evenly from the pool."""
_ROUNDS = 30
_OUT_OF_REACH = torch.finfo(torch.float32).max ** 0.25


class CentroidClassifier(nn.Module):
    """Every region is of the class or cluster whose centroid is nearest, with confidence 1.

    `centroids` (K + N, F): means of the known classes' regions, then k-means of the pool's.
    """

    centroids: Tensor

    def __init__(self, centroids: Tensor) -> None:
        super().__init__()
        self.register_buffer("centroids", centroids)

    def forward(self, features: Tensor) -> Tensor:
        """(R, K + N) one-hot probabilities of features (R, F)."""
        with autocast(features.device, torch.float32):
            labels = nearest(features.float(), self.centroids)
        return functional.one_hot(labels, len(self.centroids)).float()


class SoftCentroidClassifier(nn.Module):
    """Probabilities that fall with the squared distance from the centroids. Ours, not the paper's.

    p_j is proportional to exp(-d_j² / spread); the centroids are (K + N, F), the spread is the mean
    squared distance of the pool's regions from their nearest centroid.
    """

    centroids: Tensor

    def __init__(self, centroids: Tensor, spread: float) -> None:
        super().__init__()
        self.register_buffer("centroids", centroids)
        self.spread = spread

    def forward(self, features: Tensor) -> Tensor:
        """(R, K + N) probabilities of features (R, F)."""
        with autocast(features.device, torch.float32):
            squared = torch.cdist(features.float(), self.centroids).square()
        return (-squared / self.spread).softmax(1)


class ClassMeans:
    """Mean feature of each class, from features that come in parts."""

    def __init__(self, num_classes: int, num_features: int) -> None:
        self._sums = torch.zeros(num_classes, num_features)
        self._counts = torch.zeros(num_classes)

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Count features (R, F) of classes (R,)."""
        self._sums.index_add_(0, labels.cpu(), features.float().cpu())
        self._counts += torch.bincount(labels.cpu(), minlength=len(self._counts))

    def means(self) -> Tensor:
        """(K, F), out of reach of every region for a class that has none."""
        means = self._sums / self._counts[:, None].clamp_min(1)
        means[self._counts == 0] = _OUT_OF_REACH
        return means


def fit_centroids(
    bank: Bank,
    *,
    num_known: int,
    num_clusters: int,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> CentroidClassifier:
    """Known centroids from the matched regions of labelled images, clusters from all regions."""
    means = ClassMeans(num_known, bank.shape.num_features)
    for features, labels in read_matched(bank):
        means.add(features, labels)
    pool = read_pool(bank, seed=seed).to(device)
    novel = cluster_regions(pool, num_clusters, seed=seed)
    return CentroidClassifier(torch.cat([means.means().to(device), novel]))


def soften(classifier: CentroidClassifier, bank: Bank, *, seed: int) -> SoftCentroidClassifier:
    """The same centroids with graded probabilities, the spread measured on the pool's regions."""
    centroids = classifier.centroids
    pool = read_pool(bank, seed=seed).to(centroids.device)
    offsets = pool - centroids[nearest(pool, centroids)]
    spread = offsets.square().sum(1).mean().clamp_min(torch.finfo(torch.float32).tiny)
    return SoftCentroidClassifier(centroids, float(spread))


def cluster_regions(features: Tensor, num_clusters: int, *, seed: int) -> Tensor:
    """(N, F) k-means centroids of features (R, F)."""
    if len(features) < num_clusters:
        raise UserError(
            f"{num_clusters} clusters cannot be made of {len(features)} regions: "
            "ask for fewer clusters, or give more unlabelled images."
        )
    generator = Generator().manual_seed(seed)
    return kmeans(features, num_clusters, rounds=_ROUNDS, generator=generator)


def read_matched(bank: Bank) -> Iterator[tuple[Tensor, Tensor]]:
    """Features (M, F) and labels (M,) of each labelled image's matched regions, in view 0."""
    for index, count in enumerate(bank.matched_counts().tolist()):
        if count:
            features, labels = bank.read_matched(index, 0, count=count)
            yield features.float(), labels


def read_pool(bank: Bank, *, seed: int, first_image: int = 0, most: int = MAX_REGIONS) -> Tensor:
    """(R, F) features in view 0 of whole images, drawn until `most` regions are together.

    `first_image`: images before this place in the pool are left out.
    """
    counts = bank.counts()
    order = torch.randperm(len(counts), generator=Generator().manual_seed(seed)).tolist()
    parts, total = [torch.zeros(0, bank.shape.num_features)], 0
    for index in order:
        if index >= first_image and counts[index] > 0 and total < most:
            parts.append(bank.read(index, 0, count=int(counts[index])).float())
            total += int(counts[index])
    return torch.cat(parts)
