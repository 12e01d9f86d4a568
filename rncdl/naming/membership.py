"""Which cluster each region of the bank belongs to: worked out once, kept beside the heads."""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from rncdl.discovery.bank import Bank
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.files import write_atomically
from rncdl.gallery.summaries import Block, ClusterTotals, look_at_regions
from rncdl.naming.edits import RegionKey
from rncdl.training.progress import ProgressLine

DOUBTFUL_BELOW = 0.2
"""A region whose output leads by less than this over the next one is doubtful."""
_FORMAT = 1
_MEMBER = np.dtype(
    [("output", "i4"), ("image", "i4"), ("region", "i4"), ("confidence", "f4"), ("margin", "f4")]
)


@dataclass(frozen=True)
class ClusterFacts:
    """What is known of a cluster without anybody having looked at it."""

    promise: float
    confidence: float
    nearest_known: int
    known_likeness: float
    nearest: tuple[int, ...]
    """clusters with the most similar prototypes, nearest first"""


class Membership:
    """R regions by the output that took them, the most certain first; mapped from the disk."""

    def __init__(self, members: np.ndarray, facts: list[ClusterFacts], *, num_known: int) -> None:
        self.num_known = num_known
        self.facts = facts
        self._members = members
        outputs = np.arange(num_known + len(facts) + 1)
        self._starts = np.searchsorted(members["output"], outputs)
        order = np.lexsort((members["region"], members["image"]))
        self._by_key = order.astype(np.int32)
        self._keys = (members["image"].astype(np.int64) << 32 | members["region"])[order]

    @property
    def num_clusters(self) -> int:
        """Clusters of the head."""
        return len(self.facts)

    def rows_of_output(self, output: int) -> np.ndarray:
        """Rows of an output's regions, the most certain first."""
        return np.arange(self._starts[output], self._starts[output + 1])

    def rows_of_cluster(self, cluster: int) -> np.ndarray:
        """Rows of a cluster's regions, the most certain first."""
        return self.rows_of_output(self.num_known + cluster)

    def row_of(self, key: RegionKey) -> int | None:
        """The row of a region; None where the bank has no such region."""
        image, region = key
        if not (0 <= image < 2**31 and 0 <= region < 2**31):
            return None
        wanted = image << 32 | region
        found = int(np.searchsorted(self._keys, wanted))
        if found == len(self._keys) or self._keys[found] != wanted:
            return None
        return int(self._by_key[found])

    def key_of(self, row: int) -> RegionKey:
        """The region of a row."""
        member = self._members[row]
        return int(member["image"]), int(member["region"])

    def output_of(self, row: int) -> int:
        """The known class, or K + the cluster, that took a region."""
        return int(self._members["output"][row])

    def cluster_of(self, row: int) -> int | None:
        """The cluster that the head has put a region into; None: a known class took it."""
        output = self.output_of(row)
        return output - self.num_known if output >= self.num_known else None

    def confidence(self, rows: np.ndarray) -> np.ndarray:
        """(n,) probability of the output that took each region."""
        return self._members["confidence"][rows]

    def is_doubtful(self, rows: np.ndarray) -> np.ndarray:
        """(n,) whether the output barely leads over the next one."""
        return self._members["margin"][rows] < DOUBTFUL_BELOW


def open_membership(
    folder: Path,
    bank: Bank,
    heads: DiscoveryHeads,
    *,
    head: int,
    known: nn.Module | None,
    origin: Mapping[str, Any],
) -> Membership:
    """The membership as it was kept, or made anew where it comes from something else."""
    noted = {**origin, "format": _FORMAT, "head": head, "known": heads.num_known}
    kept = _read_kept(folder, noted)
    if kept is None:
        _make(folder, bank, heads, head=head, known=known, noted=noted)
        kept = _read_kept(folder, noted)
    assert kept is not None
    return kept


def _read_kept(folder: Path, noted: Mapping[str, Any]) -> Membership | None:
    """None where nothing is kept, or it was made from something else, or is damaged."""
    try:
        described = json.loads((folder / "clusters.json").read_text("utf-8"))
        if described["origin"] != dict(noted):
            return None
        members = np.load(folder / "members.npy", mmap_mode="r", allow_pickle=False)
        if members.dtype != _MEMBER or len(members) != described["num_regions"]:
            return None
        facts = [
            ClusterFacts(**{**one, "nearest": tuple(one["nearest"])})
            for one in described["clusters"]
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Membership(members, facts, num_known=described["origin"]["known"])


@torch.inference_mode()
def _make(
    folder: Path,
    bank: Bank,
    heads: DiscoveryHeads,
    *,
    head: int,
    known: nn.Module | None,
    noted: Mapping[str, Any],
) -> None:
    """One pass over the bank. The description is written last: with it, all is there."""
    heads = heads.eval()
    totals = ClusterTotals(heads.num_known, heads.novel[head].prototypes.cpu())
    blocks = [np.zeros(0, _MEMBER)]
    num_regions = int(bank.counts().clip(min=0).sum())
    with ProgressLine("sort regions into clusters", num_regions, unit="regions") as progress:
        for block in look_at_regions(bank, heads, head=head, known=known):
            totals.add(block)
            blocks.append(_members(block))
            progress.advance(len(block.regions))
    members = np.concatenate(blocks)
    members = members[np.lexsort((-members["confidence"], members["output"]))]
    content = io.BytesIO()
    np.save(content, members)
    (folder / "clusters.json").unlink(missing_ok=True)
    write_atomically(folder / "members.npy", content.getvalue())
    described = {
        "origin": dict(noted),
        "num_regions": len(members),
        "clusters": _cluster_facts(totals),
    }
    write_atomically(folder / "clusters.json", json.dumps(described).encode())


def _members(block: Block) -> np.ndarray:
    found = np.zeros(len(block.regions), _MEMBER)
    found["output"] = block.outputs.numpy()
    found["image"] = block.image_index
    found["region"] = block.regions
    found["confidence"] = block.confidence.numpy()
    found["margin"] = block.margin.numpy()
    return found


def _cluster_facts(totals: ClusterTotals) -> list[dict[str, Any]]:
    found = totals.summaries(exemplars=[])
    return [
        {
            "promise": round(float(found.promise[cluster]), 6),
            "confidence": round(float(found.confidence[cluster]), 6),
            "nearest_known": int(found.nearest_known[cluster]),
            "known_likeness": round(float(found.known_likeness[cluster]), 6),
            "nearest": found.nearest_clusters[cluster].tolist(),
        }
        for cluster in range(len(found.sizes))
    ]
