"""Semi-supervised k-means: known classes keep what is labelled, all else finds its own place.

Vaze, Han, Vedaldi, Zisserman, Generalized Category Discovery, CVPR 2022.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from rncdl.discovery.kmeans import draw_seeds, kmeans, nearest_distances


@dataclass(frozen=True)
class Grouping:
    """Centroids, and which of the K known classes or N clusters each belongs to."""

    centroids: Tensor
    """(J, F): the known classes' first, then one for each cluster"""
    outputs: Tensor
    """(J,) ascending: 0..K-1 known classes, which may have several centroids or none, K.. clusters
    """
    inertia: float
    """sum of the squared distances of all features, labelled ones too, from their centroids"""


def semi_supervised_kmeans(
    features: Tensor,
    labelled: Tensor,
    labels: Tensor,
    *,
    num_known: int,
    num_clusters: int,
    per_known: int,
    rounds: int,
    generator: Generator,
) -> Grouping:
    """Groups of unlabelled `features` (R, F), guided by `labelled` ones (L, F) of classes (L,).

    Each known class starts with the k-means centroids, `per_known` at most, of its labelled
    features; a cluster starts far from these and from other clusters, as in k-means++. In every
    round labelled features stay with their own class, the others go to the nearest centroid of all,
    and all move the centroids.
    """
    starts, owners = [labelled.new_zeros(0, labelled.shape[1])], []
    for known in range(num_known):
        own = labelled[labels == known]
        count = min(per_known, len(own))
        if count:
            starts.append(kmeans(own, count, rounds=rounds, generator=generator))
            owners += [known] * count
    first = torch.cat(starts)
    seeds = draw_seeds(features, num_clusters, generator, away_from=first)
    outputs = torch.tensor([*owners, *range(num_known, num_known + num_clusters)])
    return _refine(
        torch.cat([first, seeds]),
        outputs.to(features.device),
        (features, labelled, labels),
        rounds=rounds,
    )


def best_grouping(groupings: list[Grouping]) -> Grouping:
    """The one that serves its features best, whose inertia is the least."""
    return min(groupings, key=lambda one: one.inertia)


def _refine(
    centroids: Tensor, outputs: Tensor, material: tuple[Tensor, Tensor, Tensor], *, rounds: int
) -> Grouping:
    features, labelled, _ = material
    everything = torch.cat([features, labelled])
    for _ in range(rounds):
        places, _ = _places(centroids, outputs, material)
        counts = places.bincount(minlength=len(centroids))
        sums = torch.zeros_like(centroids).index_add_(0, places, everything)
        # A centroid that nothing is nearest to stays where it is.
        centroids = torch.where(counts[:, None] > 0, sums / counts.clamp_min(1)[:, None], centroids)
    _, distances = _places(centroids, outputs, material)
    return Grouping(centroids, outputs, float(distances.sum()))


def _places(
    centroids: Tensor, outputs: Tensor, material: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Centroid and squared distance (R + L,) of each feature, the unlabelled ones first."""
    features, labelled, labels = material
    places, distances = nearest_distances(features, centroids)
    of_labelled, far = torch.empty_like(labels), labelled.new_empty(len(labels))
    for known in labels.unique().tolist():
        rows, own = labels == known, (outputs == known).nonzero().flatten()
        found, squared = nearest_distances(labelled[rows], centroids[own])
        of_labelled[rows], far[rows] = own[found], squared
    return torch.cat([places, of_labelled]), torch.cat([distances, far])
