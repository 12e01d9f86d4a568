"""Memberships of regions that were never seen, and heads, made up for tests."""

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from rncdl.discovery.heads import DiscoveryHeads
from rncdl.naming.membership import MEMBER, ClusterFacts, Membership

NUM_KNOWN, NUM_CLUSTERS = 2, 4
NO_OBJECT = NUM_KNOWN + NUM_CLUSTERS
FACTS = ClusterFacts(0.5, 0.5, 0, 0.1, (), (0.5, 0.5))


@dataclass(frozen=True)
class Region:
    """A region of a made-up bank."""

    key: tuple[int, int]
    output: int
    """below `NUM_KNOWN`: a known class; `NO_OBJECT`: taken for no object"""
    box: tuple[float, float, float, float] = (0, 0, 10, 10)


@dataclass(frozen=True)
class MadeUp:
    """Where memberships are made up."""

    folder: Path
    paths: Sequence[str] = field(default_factory=lambda: [f"/images/{i}.png" for i in range(9)])

    def membership(self, regions: Sequence[Region], *, bank: str = "a") -> Membership:
        """Of the regions, which come from the bank of that name."""
        members = np.zeros(len(regions), MEMBER)
        for row, one in enumerate(sorted(regions, key=lambda one: one.output)):
            members[row] = (one.output, *one.key, 1.0, 1.0, one.box)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "images.json").write_text(json.dumps(list(self.paths)))
        origin = {"known": NUM_KNOWN, "bank": bank, "regions": len(regions), "heads": "h"}
        return Membership(self.folder, members, [FACTS] * NUM_CLUSTERS, origin)


def with_background(heads: DiscoveryHeads) -> DiscoveryHeads:
    """A copy of the heads that takes for no object what cluster 0 had."""
    taught = copy.deepcopy(heads)
    (novel,) = taught.novel
    with torch.no_grad():
        novel.background = torch.nn.Parameter(novel.prototypes[:1].clone())
        novel.prototypes[0] = -novel.prototypes[0]
    return taught
