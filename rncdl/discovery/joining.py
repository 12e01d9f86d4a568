"""From many small clusters to classes: what lies nearest together is one.

k-means with one centroid for each class divides large classes before it tells small ones apart.
With more centroids than classes it finds the small ones, and the parts of large ones lie near each
other (docs/results.md).
"""

from collections.abc import Sequence

import numpy as np
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist
from torch import Tensor

from rncdl.partitions import adjusted_rand_index, contingency

FINER = 2
"""Small clusters for each that is wanted."""


def join_clusters(features: Tensor, found: Tensor, *, num_known: int, num_clusters: int) -> Tensor:
    """`found` (R,) with clusters joined until at most `num_clusters` are left, from K on.

    The pair is joined whose centroids are nearest on average (UPGMA): sizes do not count, so that
    a small class is not swallowed.
    """
    clusters = found[found >= num_known].unique()
    if not len(clusters):
        return found
    centroids = torch.stack([features[found == one].mean(0) for one in clusters])
    numbers = list(range(len(clusters)))
    if len(clusters) > num_clusters:
        tree = linkage(pdist(centroids.double().cpu().numpy()), "average")
        numbers = (fcluster(tree, num_clusters, "maxclust") - 1).tolist()
    joined = found.clone()
    for one, number in zip(clusters, numbers, strict=True):
        joined[found == one] = num_known + number
    return joined


def most_agreed(labellings: Sequence[np.ndarray]) -> int:
    """Index of the labelling that agrees best with the others.

    What several starts find alike lies in the data; what one finds alone is an accident of it.
    """
    return int(agreements(labellings).argmax())


def agreements(labellings: Sequence[np.ndarray]) -> np.ndarray:
    """(S,) mean adjusted Rand index of each of S labellings (n,) with the others; one alone: 0."""
    pairs = np.zeros((len(labellings), len(labellings)))
    for i, first in enumerate(labellings):
        for j, second in enumerate(labellings[:i]):
            pairs[i, j] = adjusted_rand_index(contingency(first, second))
    return (pairs + pairs.T).sum(axis=1) / max(1, len(labellings) - 1)
