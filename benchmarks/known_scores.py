"""Scores that are higher for boxes of known classes than for new ones, and how good they are.

The arithmetic of `known_or_new.py`.
"""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor
from torch.nn import functional

LOST_SHARE = 0.05
"""Of the known boxes, at the threshold."""
COMPARED = "energy - background logit"
"""The score that rules without a threshold are compared with."""
SHRINKAGE = 0.1
"""Of the covariance inside the classes towards a round one, which can be inverted."""


@dataclass(frozen=True)
class Measured:
    """How well a score tells known boxes from new ones."""

    auc: float
    """chance that a known box has a higher score than a new one; ties count half"""
    called_known: float
    """share of the new boxes above the threshold"""


def measure(known: np.ndarray, new: np.ndarray) -> Measured:
    """How well scores of known and of new boxes are told apart."""
    ranks = rankdata(np.concatenate([known, new]))[: len(known)]
    wins = ranks.sum() - len(known) * (len(known) + 1) / 2
    called_known = share_called_known(known, new, lost_share=LOST_SHARE)
    return Measured(wins / (len(known) * len(new)), called_known)


def share_called_known(known: np.ndarray, new: np.ndarray, *, lost_share: float) -> float:
    """Of the new boxes, at the highest threshold that loses no more of the known ones."""
    most_lost = round(lost_share * len(known), 6)  # 0.05 · 60 is a little less than 3
    threshold = np.sort(known)[min(int(most_lost), len(known) - 1)]
    return float((new >= threshold).mean())


def logit_scores(logits: Tensor) -> dict[str, Tensor]:
    """(A,) each, higher for known, of logits (A, K + 1) with the background last."""
    known, background = logits[:, :-1], logits[:, -1]
    best, second = known.topk(2).values.unbind(1)
    energy = known.logsumexp(1)
    return {
        "highest probability": logits.softmax(1)[:, :-1].amax(1),
        "the same without background": known.softmax(1).amax(1),
        "highest logit": best,
        "logit margin, best - second": best - second,
        "energy": energy,
        COMPARED: energy - background,
        "highest - background logit": best - background,
    }


def agreement_scores(logits: Tensor, features: Tensor) -> dict[str, Tensor]:
    """(A,) each, higher for known: how far two views (2, A, ...) agree."""
    logs = logits.log_softmax(2)
    divergence = ((logs[0].exp() - logs[1].exp()) * (logs[0] - logs[1])).sum(1)
    best = logits.argmax(2)
    return {
        "two views: same output": (best[0] == best[1]).float(),
        "two views: - symmetric KL": -divergence,
        "two views: cosine of features": functional.cosine_similarity(
            features[0], features[1], dim=1
        ),
    }


@dataclass(frozen=True)
class KnownClasses:
    """Where the known classes lie among the features."""

    means: Tensor
    """(K, F)"""
    precision: Tensor
    """(F, F) inverse of the covariance that all classes share"""

    @classmethod
    def of(cls, features: Tensor, classes: Tensor) -> "KnownClasses":
        """Of features (L, F) of annotated boxes; `classes` (L,) in 0..K-1, each at least once."""
        features = features.double()
        counts = classes.bincount()
        means = features.new_zeros(len(counts), features.shape[1])
        means = means.index_add(0, classes, features) / counts[:, None]
        offsets = features - means[classes]
        covariance = offsets.T @ offsets / len(offsets)
        round_one = covariance.diagonal().mean() * torch.eye(len(covariance), dtype=torch.float64)
        return cls(means, torch.linalg.inv(torch.lerp(covariance, round_one, SHRINKAGE)))

    def scores(self, features: Tensor) -> dict[str, Tensor]:
        """(A,) each, higher for known, of features (A, F)."""
        features = features.double()
        cosines = functional.normalize(features) @ functional.normalize(self.means).T
        offsets = features[:, None] - self.means
        squares = torch.einsum("akf,fg,akg->ak", offsets, self.precision, offsets)
        return {
            "cosine to the nearest class mean": cosines.amax(1),
            "- Mahalanobis distance to it": -squares.amin(1).sqrt(),
        }
