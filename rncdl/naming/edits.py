"""What a decision changes about clusters and regions."""

from collections.abc import Mapping
from dataclasses import dataclass, field

RegionKey = tuple[int, int]
"""(image of the bank, region of the image)"""


@dataclass(frozen=True)
class ClusterState:
    """What people have made of a cluster; the default: nothing yet."""

    name: str | None = None
    ignored: bool = False
    looked_at: bool = False


@dataclass(frozen=True)
class Edit:
    """What one decision changes."""

    said: str
    """for the history: a sentence without its full stop"""
    clusters: Mapping[int, ClusterState] = field(default_factory=dict)
    """cluster -> what it becomes"""
    regions: Mapping[RegionKey, int | None] = field(default_factory=dict)
    """region -> the cluster it goes to; None: back to where the head has put it"""
