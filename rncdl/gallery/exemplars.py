"""Which regions stand for a cluster: the best few by several keys, gathered as regions stream by.

What is held does not grow with the number of regions: of each cluster and kind only the best
candidates of different images.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

Kind = Literal["confident", "typical", "random", "doubtful"]


@dataclass(frozen=True)
class Exemplar:
    """A region that stands for its cluster."""

    kind: Kind
    image_index: int
    region: int
    """position among the regions of its image"""
    confidence: float


@dataclass(frozen=True)
class Candidates:
    """n regions of any clusters, in columns."""

    clusters: np.ndarray
    """(n,) int64"""
    image_index: np.ndarray
    """(n,) int64"""
    regions: np.ndarray
    """(n,) int64"""
    confidence: np.ndarray
    """(n,) float32"""
    keys: np.ndarray
    """(n,) float32: the larger, the better"""

    def select(self, rows: np.ndarray) -> "Candidates":
        """The chosen rows, in their order."""
        return Candidates(
            self.clusters[rows],
            self.image_index[rows],
            self.regions[rows],
            self.confidence[rows],
            self.keys[rows],
        )

    def join(self, other: "Candidates") -> "Candidates":
        """Both, one after the other."""
        return Candidates(
            np.concatenate((self.clusters, other.clusters)),
            np.concatenate((self.image_index, other.image_index)),
            np.concatenate((self.regions, other.regions)),
            np.concatenate((self.confidence, other.confidence)),
            np.concatenate((self.keys, other.keys)),
        )

    def best(self, per_cluster: int) -> "Candidates":
        """The best of each cluster, the best first, at most one of any image."""
        order = np.lexsort((-self.keys, self.image_index, self.clusters))
        sorted_by_image = self.select(order)
        first = _begins(sorted_by_image.clusters) | _begins(sorted_by_image.image_index)
        of_images = sorted_by_image.select(np.flatnonzero(first))
        ranked = of_images.select(np.lexsort((-of_images.keys, of_images.clusters)))
        starts = np.flatnonzero(_begins(ranked.clusters))
        lengths = np.diff(starts, append=len(ranked.clusters))
        rank = np.arange(len(ranked.clusters)) - np.repeat(starts, lengths)
        return ranked.select(np.flatnonzero(rank < per_cluster))


def _begins(values: np.ndarray) -> np.ndarray:
    """(n,) bool: True where a value differs from the one before."""
    return np.concatenate((np.ones(len(values[:1]), dtype=bool), values[1:] != values[:-1]))


class ExemplarSearch:
    """Keeps, of all regions it is shown, the candidates of each cluster and kind.

    All regions of an image must be shown at once.
    """

    def __init__(self, wanted: Mapping[Kind, int]) -> None:
        self._wanted = dict(wanted)
        # An image may be the best by several keys but is shown once, so runners-up are needed.
        self._held = sum(self._wanted.values())
        self._best: dict[Kind, Candidates] = {}

    def show(self, kind: Kind, fresh: Candidates) -> None:
        """Consider more regions."""
        held = self._best.get(kind)
        joined = fresh if held is None else held.join(fresh)
        self._best[kind] = joined.best(self._held)

    def chosen(self, num_clusters: int) -> list[list[Exemplar]]:
        """For each cluster its exemplars, kind by kind, no two of them of the same image."""
        found: list[list[Exemplar]] = [[] for _ in range(num_clusters)]
        used: list[set[int]] = [set() for _ in range(num_clusters)]
        for kind, wanted in self._wanted.items():
            taken = np.zeros(num_clusters, dtype=np.int64)
            candidates = self._best.get(kind)
            if candidates is None:
                continue
            for cluster, image_index, region, confidence in zip(
                candidates.clusters.tolist(),
                candidates.image_index.tolist(),
                candidates.regions.tolist(),
                candidates.confidence.tolist(),
                strict=True,
            ):
                if taken[cluster] < wanted and image_index not in used[cluster]:
                    taken[cluster] += 1
                    used[cluster].add(image_index)
                    found[cluster].append(Exemplar(kind, image_index, region, confidence))
        return found
