"""The classes that known outputs and clusters make up once people have decided."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rncdl.classes import cluster_name
from rncdl.naming.decisions import Decisions


@dataclass(frozen=True)
class NamedClasses:
    """C classes: the K known ones, then one for each other name and each cluster without one."""

    names: tuple[str, ...]
    """(C,) no two of them the same; the novel ones in the order of their first clusters"""
    clusters: tuple[tuple[int, ...], ...]
    """(C,) the clusters that each class is made of; a known class may have some too"""
    num_known: int
    """K"""

    @property
    def class_of_cluster(self) -> dict[int, int]:
        """Cluster -> its class; ignored ones are missing."""
        return {cluster: c for c, members in enumerate(self.clusters) for cluster in members}


def name_classes(known: Sequence[str], num_clusters: int, decisions: Decisions) -> NamedClasses:
    """Clusters of one name are one class, those with a known class's name belong to it.

    Ignored clusters belong to none. Clusters that people made have no output of the head's, so
    only those from 0 to N - 1 are looked at.
    """
    members: dict[str, list[int]] = {name: [] for name in known}
    for cluster in range(num_clusters):
        if cluster not in decisions.ignored:
            name = decisions.names.get(cluster, cluster_name(cluster))
            members.setdefault(name, []).append(cluster)
    return NamedClasses(tuple(members), tuple(map(tuple, members.values())), len(known))


class JoinClusters(nn.Module):
    """From the probabilities of K known classes and N clusters to those of the C classes."""

    def __init__(self, classes: NamedClasses) -> None:
        super().__init__()
        self.num_classes, self.num_known = len(classes.names), classes.num_known
        class_of = classes.class_of_cluster
        self.register_buffer("clusters", torch.tensor([*class_of], dtype=torch.int64))
        self.register_buffer("targets", torch.tensor([*class_of.values()], dtype=torch.int64))

    clusters: Tensor
    targets: Tensor

    def forward(self, known: Tensor, novel: Tensor, *, together: bool) -> Tensor:
        """(R, C) of `known` (R, K) and `novel` (R, N).

        A region is of one cluster, so a class has the sum of its clusters' probabilities. To a
        known class they are added too where both come out of one softmax (`together`); where
        somebody else classifies the known classes, the sum could pass one, and p + q - p q is
        taken: that at least one of two independent judges is right.
        """
        nothing = novel.new_zeros(len(novel), self.num_classes)
        # Not index_add, which the ONNX exporter gets wrong for targets that come twice.
        targets = self.targets.expand(len(novel), -1)
        joined = nothing.scatter_add(1, targets, novel[:, self.clusters])
        added = joined[:, : self.num_known]
        both = known + added if together else known + added - known * added
        return torch.cat([both, joined[:, self.num_known :]], 1)
