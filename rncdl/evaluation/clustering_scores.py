"""How well clusters agree with classes: accuracy, NMI, ARI and purity of label vectors."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from rncdl.partitions import adjusted_rand_index, contingency


@dataclass(frozen=True)
class ClusteringScores:
    """Agreement of a clustering with classes; every score is 1 when they are the same partition."""

    accuracy: float
    """share of samples whose cluster is assigned to their class, by the best one-to-one choice"""
    nmi: float
    """mutual information over the mean of both entropies, in [0, 1]"""
    ari: float
    """pairs treated alike, corrected for chance: 0 is chance, it may be negative"""
    purity: float
    """share of samples that are of their cluster's most frequent class"""
    num_samples: int


def score_clustering(clusters: np.ndarray, classes: np.ndarray) -> ClusteringScores | None:
    """Scores of integer labels (n,) and (n,), whatever their values; None without samples."""
    if len(clusters) == 0:
        return None
    counts = contingency(clusters, classes)
    num = len(clusters)
    assigned = counts[linear_sum_assignment(counts, maximize=True)].sum()
    return ClusteringScores(
        accuracy=float(assigned / num),
        nmi=_normalised_mutual_information(counts),
        ari=adjusted_rand_index(counts),
        purity=float(counts.max(axis=1).sum() / num),
        num_samples=num,
    )


def _entropy(counts: np.ndarray) -> float:
    """In nats, of counts above zero."""
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def _normalised_mutual_information(counts: np.ndarray) -> float:
    """1 by definition where there is one cluster and one class."""
    rows, columns = counts.sum(axis=1), counts.sum(axis=0)
    mean_entropy = (_entropy(rows) + _entropy(columns)) / 2
    if mean_entropy == 0:
        return 1.0
    information = _entropy(rows) + _entropy(columns) - _entropy(counts[counts > 0])
    return float(np.clip(information / mean_entropy, 0, 1))
