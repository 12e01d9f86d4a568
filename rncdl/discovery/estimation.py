"""How many new classes are there? The known ones are the yardstick (Vaze et al., 2022).

All objects, labelled or not, are clustered without labels, into more and more clusters. As long as
there are too few, known classes stay whole, and the new ones share clusters; once there are too
many, known classes are torn apart, and so, one must believe, are the new ones. The estimate is the
largest number that leaves the known classes as whole as they can be.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Generator, Tensor

from rncdl.discovery.kmeans import kmeans, nearest, nearest_distances
from rncdl.errors import UserError
from rncdl.files import write_atomically

_FEWEST = 2
_GROWTH = 1.2
_STARTS, _KEPT = 8, 4
"""Clusterings of each size, and those of them that count: the ones that serve objects best."""
_ROUNDS = 15
_GIVE_UP = 0.6
"""Of the best accuracy: below, more clusters can only be worse."""
_OBJECTS_PER_CLUSTER = 8
"""At least, on average: smaller ones are not told from chance."""


@dataclass(frozen=True)
class Point:
    """How well known classes survive a clustering, over several starts."""

    num_clusters: int
    """N, beside the known classes"""
    accuracy: float
    """of the labelled objects, each class with one cluster of its own"""
    spread: float


@dataclass(frozen=True)
class Estimate:
    """The curve, and what follows from it."""

    num_clusters: int
    low: int
    high: int
    """it is between these, as far as the starts differ"""
    curve: tuple[Point, ...]

    @property
    def with_room(self) -> int:
        """Half as many clusters again: background takes some, and too few cost more than too many
        (docs/results.md).
        """
        return -(-3 * self.num_clusters // 2)

    def line(self) -> str:
        """In one line."""
        return f"About {self.num_clusters} new classes (between {self.low} and {self.high})."

    def save(self, path: Path) -> None:
        """To a json."""
        write_atomically(path, json.dumps(asdict(self), indent=2).encode())

    @classmethod
    def load(cls, path: Path) -> "Estimate":
        """What `save` has written."""
        noted = json.loads(path.read_text("utf-8"))
        return cls(**{**noted, "curve": tuple(Point(**point) for point in noted["curve"])})


def estimate_clusters(
    features: Tensor, labelled: Tensor, labels: Tensor, *, num_known: int, seed: int
) -> Estimate:
    """How many classes `features` (R, D) hold besides the known ones of `labelled` (L, D)."""
    if len(labels) == 0 or len(labels.unique()) < 2:
        raise UserError(
            "The number of classes is estimated by how known classes survive, and fewer than two "
            "have labelled objects here; say discover.heads=[N]."
        )
    everything = torch.cat([features, labelled])
    curve: list[Point] = []
    for num_clusters in _candidates(most=len(everything) // _OBJECTS_PER_CLUSTER - num_known):
        tries = [
            _survival(
                everything,
                labelled,
                labels,
                k=num_known + num_clusters,
                generator=Generator().manual_seed(seed + start),
            )
            for start in range(_STARTS)
        ]
        found = [one.accuracy for one in sorted(tries, key=lambda one: one.inertia)[:_KEPT]]
        curve.append(Point(num_clusters, float(np.mean(found)), float(np.std(found))))
        if curve[-1].accuracy < _GIVE_UP * max(point.accuracy for point in curve):
            break
    if not curve:
        raise UserError(
            f"{len(features)} objects are too few to tell how many classes they are of; say "
            "discover.heads=[N]."
        )
    return read_curve(curve)


def read_curve(curve: list[Point]) -> Estimate:
    """The last N at which accuracy is the best, as far as the starts can tell.

    Within one deviation of the best; the least and the most it may be: the best itself, and the
    last within two deviations.
    """
    best = max(curve, key=lambda point: point.accuracy)
    deviation = float(np.sqrt(np.mean([point.spread**2 for point in curve])))

    def last_within(distance: float) -> int:
        return max(p.num_clusters for p in curve if p.accuracy >= best.accuracy - distance)

    return Estimate(
        last_within(deviation), best.num_clusters, last_within(2 * deviation), tuple(curve)
    )


def _candidates(*, most: int) -> Iterator[int]:
    """2, 3, 4, ..., each about a fifth more than the one before."""
    number = _FEWEST
    while number <= most:
        yield number
        number = max(number + 1, round(number * _GROWTH))


@dataclass(frozen=True)
class _Try:
    accuracy: float
    inertia: float


def _survival(
    everything: Tensor, labelled: Tensor, labels: Tensor, *, k: int, generator: Generator
) -> _Try:
    """Share of labelled objects in their class's cluster, by the best one-to-one choice."""
    centroids = kmeans(everything, k, rounds=_ROUNDS, generator=generator)
    counts = np.zeros((k, int(labels.max()) + 1))
    np.add.at(counts, (nearest(labelled, centroids).cpu().numpy(), labels.cpu().numpy()), 1)
    _, distances = nearest_distances(everything, centroids)
    right = counts[linear_sum_assignment(-counts)].sum()
    return _Try(float(right / len(labels)), float(distances.sum()))
