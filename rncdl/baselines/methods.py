"""The systems to compare with, by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rncdl.baselines.centroids import fit_centroids
from rncdl.config import Settings
from rncdl.data.viewed_images import Pool
from rncdl.detector.inference import Classify
from rncdl.detector.model import Detector
from rncdl.discovery.bank import Bank


@dataclass(frozen=True)
class Material:
    """What a baseline may learn from."""

    detector: Detector
    bank: Bank
    pool: Pool
    num_clusters: int
    settings: Settings
    seed: int


def _kmeans_features(material: Material) -> Classify:
    return fit_centroids(
        material.bank,
        num_known=material.pool.labels.split.num_known,
        num_clusters=material.num_clusters,
        seed=material.seed,
    )


METHODS: Mapping[str, Callable[[Material], Classify]] = {"kmeans-features": _kmeans_features}
