"""Semi-supervised k-means: known classes keep what is labelled, all else finds its own place.

Vaze, Han, Vedaldi, Zisserman, Generalized Category Discovery, CVPR 2022.
"""

from collections.abc import Sequence
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
    found: Tensor
    """(R,) in 0..K+N-1: what each unlabelled feature belongs to"""
    inertia: float
    """sum of the squared distances of all features, labelled ones too, from their centroids"""


@dataclass(frozen=True)
class PartlyLabelled:
    """What is grouped: features without labels, and labelled ones."""

    features: Tensor
    """(R, F)"""
    labelled: Tensor
    """(L, F)"""
    labels: Tensor
    """(L,) their classes in 0..K-1"""
    num_known: int
    """K"""
    surely_new: Tensor | None = None
    """(R,) bool: features that are of no known class but an `incomplete` one; None: none surely is
    """
    incomplete: Sequence[int] = ()
    """known classes that have objects without a label in labelled images, too"""


def semi_supervised_kmeans(
    given: PartlyLabelled,
    *,
    num_clusters: int,
    per_known: int,
    rounds: int,
    generator: Generator,
) -> Grouping:
    """Groups of the features without labels, guided by the labelled ones.

    Each known class starts with the k-means centroids, `per_known` at most, of its labelled
    features; a cluster starts far from these and from other clusters, as in k-means++. In every
    round labelled features stay with their own class, the others go to the nearest centroid of all,
    and all move the centroids.
    """
    labelled, num_known = given.labelled, given.num_known
    starts, owners = [labelled.new_zeros(0, labelled.shape[1])], []
    for known in range(num_known):
        own = labelled[given.labels == known]
        count = min(per_known, len(own))
        if count:
            starts.append(kmeans(own, count, rounds=rounds, generator=generator))
            owners += [known] * count
    first = torch.cat(starts)
    seeds = draw_seeds(given.features, num_clusters, generator, away_from=first)
    outputs = torch.tensor([*owners, *range(num_known, num_known + num_clusters)])
    return _refine(
        torch.cat([first, seeds]),
        outputs.to(labelled.device),
        given,
        rounds=rounds,
    )


def best_grouping(groupings: list[Grouping]) -> Grouping:
    """The one that serves its features best, whose inertia is the least."""
    return min(groupings, key=lambda one: one.inertia)


def _refine(centroids: Tensor, outputs: Tensor, given: PartlyLabelled, *, rounds: int) -> Grouping:
    everything = torch.cat([given.features, given.labelled])
    for _ in range(rounds):
        places, _ = _places(centroids, outputs, given)
        counts = places.bincount(minlength=len(centroids))
        sums = torch.zeros_like(centroids).index_add_(0, places, everything)
        # A centroid that nothing is nearest to stays where it is.
        centroids = torch.where(counts[:, None] > 0, sums / counts.clamp_min(1)[:, None], centroids)
    places, distances = _places(centroids, outputs, given)
    found = outputs[places[: len(given.features)]]
    return Grouping(centroids, outputs, found, float(distances.sum()))


def _places(centroids: Tensor, outputs: Tensor, given: PartlyLabelled) -> tuple[Tensor, Tensor]:
    """Centroid and squared distance (R + L,) of each feature, the unlabelled ones first."""
    places, distances = nearest_distances(given.features, centroids)
    if given.surely_new is not None:
        incomplete = torch.tensor([*given.incomplete], dtype=outputs.dtype, device=outputs.device)
        is_open = (outputs >= given.num_known) | torch.isin(outputs, incomplete)
        rows, open_ones = given.surely_new, is_open.nonzero().flatten()
        found, squared = nearest_distances(given.features[rows], centroids[open_ones])
        places[rows], distances[rows] = open_ones[found], squared
    labelled, labels = given.labelled, given.labels
    of_labelled, far = torch.empty_like(labels), labelled.new_empty(len(labels))
    for known in labels.unique().tolist():
        rows, own = labels == known, (outputs == known).nonzero().flatten()
        found, squared = nearest_distances(labelled[rows], centroids[own])
        of_labelled[rows], far[rows] = own[found], squared
    return torch.cat([places, of_labelled]), torch.cat([distances, far])
