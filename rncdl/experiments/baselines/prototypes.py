"""PANDAS: prototypes on a sphere, compared by distance, with the detector's own background.

Hayes et al., PANDAS: Prototype-based Novel Class Discovery and Detection, 2024.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from rncdl.discovery.bank import Bank
from rncdl.discovery.heads import KnownHead
from rncdl.experiments.baselines.centroids import (
    ClassMeans,
    cluster_regions,
    read_matched,
    read_pool,
)
from rncdl.training.processes import autocast

# As in the authors' code; keeps a region that lies on a prototype finite.
_EPSILON = 1e-12


class PrototypeClassifier(nn.Module):
    """Class probabilities by inverse squared distance; the background's share goes to no class.

    `prototypes` (K + N, F): means of the known classes' normalised features, then k-means
    centroids. `known_head`: the detector's own, whose background row tells objects from background.
    """

    prototypes: Tensor

    def __init__(self, prototypes: Tensor, known_head: KnownHead) -> None:
        super().__init__()
        self.register_buffer("prototypes", prototypes)
        self.known_head = known_head

    def forward(self, features: Tensor) -> Tensor:
        """(R, K + N) probabilities of features (R, F); a row sums to that of an object."""
        features = features.float()
        with autocast(features.device, torch.float32):
            scores = inverse_squared_scores(functional.normalize(features), self.prototypes)
            return scores * self.known_head.foreground(features)[:, None]


def inverse_squared_scores(features: Tensor, prototypes: Tensor) -> Tensor:
    """(R, C) scores that sum to one, proportional to 1 / (d² / 2)², d the Euclidean distance.

    The authors' distance is half the squared Euclidean one; the score is its inverse square.
    """
    distances = 0.5 * torch.cdist(features, prototypes).square()
    return functional.normalize(1 / (distances.square() + _EPSILON), p=1, dim=1)


def fit_prototypes(
    bank: Bank, known_head: KnownHead, *, num_known: int, num_clusters: int, seed: int
) -> PrototypeClassifier:
    """Known prototypes from regions on annotations, novel ones from the unlabelled images."""
    device = known_head.linear.weight.device
    means = ClassMeans(num_known, bank.shape.num_features)
    for features, labels in read_matched(bank):
        means.add(functional.normalize(features), labels)
    pool = read_pool(bank, seed=seed, first_image=bank.shape.num_labelled)
    novel = cluster_regions(functional.normalize(pool.to(device)), num_clusters, seed=seed)
    return PrototypeClassifier(torch.cat([means.means().to(device), novel]), known_head)
