"""How many new classes are there? The known ones are the yardstick.

All objects, labelled or not, are divided without labels into small clusters, several to a known
class. Of two that hold known objects one knows whether they are of one class, and so how far apart
small clusters of one class are. Those that hold no known class are joined up to that distance: what
is left of them are, one must believe, the new classes.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist
from torch import Generator, Tensor

from rncdl.discovery.kmeans import kmeans, nearest
from rncdl.errors import UserError
from rncdl.files import write_atomically

_PER_KNOWN = 4
"""Small clusters of a known class, on average."""
_GROWTH = 1.3
_STARTS = 8
_ROUNDS = 15
_LEAST_OBJECTS = 8
"""Of a class: fewer are not told from chance."""


@dataclass(frozen=True)
class Point:
    """How well a distance tells known classes apart, over several starts."""

    num_clusters: int
    """N, what joining up to that distance leaves beside the known classes"""
    agreement: float
    """F1 of calling two small clusters with known objects one class, where they are nearer"""
    spread: float


@dataclass(frozen=True)
class Estimate:
    """The curve, and what follows from it."""

    num_clusters: int
    low: int
    high: int
    """half of the starts are between these"""
    curve: tuple[Point, ...]

    @property
    def with_room(self) -> int:
        """A quarter more clusters: background takes some, and too few cost more than too many
        (docs/results.md).
        """
        return -(-5 * self.num_clusters // 4)

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
        try:
            return cls(**{**noted, "curve": tuple(Point(**point) for point in noted["curve"])})
        except (KeyError, TypeError) as error:
            raise UserError(
                f"{path}: an estimate of another version; delete it, or make it anew with "
                "rncdl estimate-classes."
            ) from error


@dataclass(frozen=True)
class SmallClusters:
    """What all objects are divided into, without labels."""

    centroids: np.ndarray
    """(M, D)"""
    num_objects: np.ndarray
    """(M,)"""
    owners: np.ndarray
    """(M,) the known class of each; -1: none"""


@dataclass(frozen=True)
class Cut:
    """The clusters that are left after joining up to some distance."""

    num_clusters: int
    agreement: float


def estimate_clusters(features: Tensor, labelled: Tensor, labels: Tensor, *, seed: int) -> Estimate:
    """How many classes `features` (R, D) hold besides the known ones of `labelled` (L, D)."""
    num_known = len(labels.unique())
    if num_known < 2:
        raise UserError(
            "The number of classes is estimated by how known classes come out, and fewer than two "
            "have labelled objects here; say discover.heads=[N]."
        )
    if len(features) < 2 * _LEAST_OBJECTS:
        raise UserError(
            f"{len(features)} objects are too few to tell how many classes they are of; say "
            "discover.heads=[N]."
        )
    count = _number_of_small(features, labelled, labels, seed=seed)
    starts = [
        cut_everywhere(divide(features, labelled, labels, count=count, seed=seed + start))
        for start in range(_STARTS)
    ]
    readings = [read_cuts(cuts) for cuts in starts]
    low, middle, high = np.quantile(readings, (0.25, 0.5, 0.75))
    return Estimate(round(middle), round(low), round(high), _mean_curve(starts))


def divide(
    features: Tensor, labelled: Tensor, labels: Tensor, *, count: int, seed: int
) -> SmallClusters:
    """All objects in `count` clusters, and which of these are a known class's.

    Labelled objects are a part of a known class's, the same in each but for chance: a cluster in
    which they are less than half as many as they are around the median labelled object is new.
    """
    everything = torch.cat([features, labelled])
    generator = Generator().manual_seed(seed)
    centroids = kmeans(everything, count, rounds=_ROUNDS, generator=generator)
    places = nearest(everything, centroids).cpu().numpy()
    of_labelled = places[len(features) :]
    num_objects = np.bincount(places, minlength=count)
    by_class = np.zeros((count, int(labels.max()) + 1), dtype=np.int64)
    np.add.at(by_class, (of_labelled, labels.cpu().numpy()), 1)
    share = by_class.sum(1) / np.maximum(num_objects, 1)
    is_known = share > np.median(share[of_labelled]) / 2
    owners = np.where(is_known, by_class.argmax(1), -1)
    return SmallClusters(centroids.double().cpu().numpy(), num_objects, owners)


def cut_everywhere(small: SmallClusters) -> list[Cut]:
    """What is left at every distance at which two clusters are joined, the nearest first."""
    distances = pdist(small.centroids)
    tree = linkage(distances, "average")
    is_known = small.owners >= 0
    first, second = np.triu_indices(len(small.owners), 1)
    both_known = is_known[first] & is_known[second]
    of_known = distances[both_known]
    is_same = (small.owners[first] == small.owners[second])[both_known]
    cuts = []
    for height in tree[:, 2]:
        joined = fcluster(tree, height, "distance")
        sizes = np.bincount(joined[~is_known], weights=small.num_objects[~is_known])
        num_clusters = int((sizes >= _LEAST_OBJECTS).sum())
        cuts.append(Cut(max(1, num_clusters), _f1(of_known <= height, is_same)))
    return cuts


def read_cuts(cuts: Sequence[Cut]) -> int:
    """The number of new classes at the distance that tells known ones apart best."""
    best = max(cut.agreement for cut in cuts)
    return max(cut.num_clusters for cut in cuts if cut.agreement >= best - 1e-9)


def _f1(called: np.ndarray, is_so: np.ndarray) -> float:
    """Harmonic mean of precision and recall of bool (n,)."""
    return float(2 * (called & is_so).sum() / max(1, called.sum() + is_so.sum()))


def _number_of_small(features: Tensor, labelled: Tensor, labels: Tensor, *, seed: int) -> int:
    """As few as divide the known classes into enough parts."""
    num_known = len(labels.unique())
    most = (len(features) + len(labelled)) // 4
    count = min(2 * num_known, most)
    while count < most:
        owners = divide(features, labelled, labels, count=count, seed=seed).owners
        if (owners >= 0).sum() >= _PER_KNOWN * num_known:
            break
        count = min(round(_GROWTH * count) + 1, most)
    return count


def _mean_curve(starts: Sequence[Sequence[Cut]]) -> tuple[Point, ...]:
    """The starts' best agreement at each number of new classes that all of them have."""
    best: list[dict[int, float]] = []
    for cuts in starts:
        of_start: dict[int, float] = {}
        for cut in cuts:
            of_start[cut.num_clusters] = max(of_start.get(cut.num_clusters, -1.0), cut.agreement)
        best.append(of_start)
    shared = sorted(set.intersection(*(set(of_start) for of_start in best)))
    found = [[of_start[number] for of_start in best] for number in shared]
    return tuple(
        Point(number, float(np.mean(values)), float(np.std(values)))
        for number, values in zip(shared, found, strict=True)
    )
