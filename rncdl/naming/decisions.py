"""What people decided about the clusters of one discovery's head."""

from collections.abc import Mapping
from dataclasses import dataclass, field

NOT_AN_OBJECT = -1
"""Where a region was moved to that shows no object."""


@dataclass(frozen=True)
class Decisions:
    """Names, merges, ignores and moves, as they stand now.

    Clusters are numbered as in the head, 0 to N - 1; those that people made go on from N.
    Clusters of one name are one class, and a cluster with a known class's name belongs to it.
    """

    names: Mapping[int, str] = field(default_factory=dict)
    """cluster -> its class's name; a merged cluster has the name of what it was merged into"""
    ignored: frozenset[int] = frozenset()
    """clusters that are no class: not detected, not suggested again"""
    moved: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """(image of the bank, region of the image) -> the cluster it belongs to, or `NOT_AN_OBJECT`"""
    looked_at: frozenset[int] = frozenset()
    """clusters that somebody has decided something about, or has skipped"""
