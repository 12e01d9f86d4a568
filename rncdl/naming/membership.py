"""Which cluster each region of the bank belongs to: worked out once, kept beside the heads."""

import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rncdl.data.records import ImageRecord
from rncdl.discovery.bank import Bank
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.files import write_atomically
from rncdl.gallery.summaries import Block, ClusterTotals, look_at_regions, nearest_rows
from rncdl.naming.cluster_map import lay_out, looks_to_teacher
from rncdl.naming.edits import RegionKey
from rncdl.training.progress import ProgressLine

DOUBTFUL_BELOW = 0.2
"""A region whose output leads by less than this over the next one is doubtful."""
_FORMAT = 3
_NUM_NEAREST = 8
"""More than are shown at a time: those that people ignore or merge make room."""
_IMAGES_FILE, _MEMBERS_FILE, _CLUSTERS_FILE = "images.json", "members.npy", "clusters.json"
MEMBER = np.dtype(
    [
        *(("output", "i4"), ("image", "i4"), ("region", "i4")),
        *(("confidence", "f4"), ("margin", "f4"), ("box_xyxy", "f4", (4,))),
    ]
)
"""A region: the output that took it, its place in the bank, how certain, and where it is.

Outputs: K known classes, N clusters, and K + N where the head sees no object; the certainty is then
that of the most probable of the others."""


@dataclass(frozen=True)
class ClusterFacts:
    """What is known of a cluster without anybody having looked at it."""

    promise: float
    confidence: float
    nearest_known: int
    known_likeness: float
    nearest: tuple[int, ...]
    """clusters with the most similar prototypes, nearest first"""
    position: tuple[float, float]
    """on a map of all clusters, from 0 to 1: those that look alike to the teacher, or without one
    have similar prototypes, lie near each other"""


class Membership:
    """R regions by the output that took them, the most certain first; mapped from the disk."""

    def __init__(
        self, folder: Path, members: np.ndarray, facts: list[ClusterFacts], origin: dict[str, Any]
    ) -> None:
        self.facts, self.origin = facts, origin
        self.num_known: int = origin["known"]
        self._folder, self._members = folder, members
        self.no_object = self.num_known + len(facts)
        """the output of regions in which the head sees no object"""
        self._starts = np.searchsorted(members["output"], np.arange(self.no_object + 2))
        order = np.lexsort((members["region"], members["image"]))
        self.by_key = order.astype(np.int32)
        """(R,) rows by image and region"""
        self.keys = (members["image"].astype(np.int64) << 32 | members["region"])[order]
        """(R,) image * 2^32 + region, ascending"""

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
        found = int(np.searchsorted(self.keys, wanted))
        if found == len(self.keys) or self.keys[found] != wanted:
            return None
        return int(self.by_key[found])

    def key_of(self, row: int) -> RegionKey:
        """The region of a row."""
        member = self._members[row]
        return int(member["image"]), int(member["region"])

    def output_of(self, row: int) -> int:
        """The known class, K + the cluster, or `no_object`, that took a region."""
        return int(self._members["output"][row])

    @property
    def outputs(self) -> np.ndarray:
        """(R,) the output that took each region."""
        return self._members["output"]

    @property
    def boxes_xyxy(self) -> np.ndarray:
        """(R, 4) in pixels of the image on disk."""
        return self._members["box_xyxy"]

    def image_paths(self) -> list[str]:
        """The images' absolute paths, in the bank's order."""
        return json.loads((self._folder / _IMAGES_FILE).read_text("utf-8"))

    def cluster_of(self, row: int) -> int | None:
        """The cluster that the head has put a region into; None: into none."""
        output = self.output_of(row)
        return output - self.num_known if self.num_known <= output < self.no_object else None

    def confidence(self, rows: np.ndarray) -> np.ndarray:
        """(n,) probability of the output that took each region."""
        return self._members["confidence"][rows]

    def is_doubtful(self, rows: np.ndarray) -> np.ndarray:
        """(n,) whether the output barely leads over the next one."""
        return self._members["margin"][rows] < DOUBTFUL_BELOW


@dataclass(frozen=True)
class ChosenHead:
    """One of a discovery's heads, and what stands in for it where known classes are concerned."""

    heads: DiscoveryHeads
    head: int
    known: nn.Module | None
    """classifies the known classes in place of the heads"""


def open_membership(
    folder: Path,
    bank: Bank,
    *,
    images: Sequence[ImageRecord],
    origin: Mapping[str, Any],
    open_head: Callable[[], ChosenHead],
    objects: Bank | None = None,
) -> Membership:
    """The membership as it was kept, or made anew where it comes from something else.

    images: of the bank, in its order. `origin`: what it depends on, with the number of known
    classes as `known`. The head is opened only where it is needed. `objects`: what a teacher has
    seen in the same images.
    """
    noted = {**origin, "format": _FORMAT}
    kept = read_membership(folder)
    if kept is None or kept.origin != noted:
        members, totals = _sort_regions(bank, open_head())
        facts = _cluster_facts(totals, _looks(totals, members, objects, origin["known"]))
        paths = [os.path.abspath(image.path) for image in images]
        _write(folder, members, paths, {"origin": noted, "clusters": facts})
        kept = read_membership(folder)
    assert kept is not None
    return kept


def read_membership(folder: Path) -> Membership | None:
    """What was kept; None where there is nothing, or it is damaged or of another version."""
    try:
        described = json.loads((folder / _CLUSTERS_FILE).read_text("utf-8"))
        members = np.load(folder / _MEMBERS_FILE, mmap_mode="r", allow_pickle=False)
        if members.dtype != MEMBER or len(members) != described["num_regions"]:
            return None
        if described["origin"]["format"] != _FORMAT:
            return None
        facts = [ClusterFacts(**_as_tuples(one)) for one in described["clusters"]]
        return Membership(folder, members, facts, described["origin"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _as_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}


@torch.inference_mode()
def _sort_regions(bank: Bank, chosen: ChosenHead) -> tuple[np.ndarray, ClusterTotals]:
    """One pass over the bank: its regions by output and certainty, and what they add up to."""
    heads, head = chosen.heads.eval(), chosen.head
    totals = ClusterTotals(heads.num_known, heads.novel[head].prototypes.detach().cpu())
    blocks = [np.zeros(0, MEMBER)]
    counts = bank.counts().clip(min=0)
    with ProgressLine("sort regions into clusters", int(counts.sum()), unit="regions") as progress:
        for block in look_at_regions(bank, heads, head=head, known=chosen.known):
            totals.add(block)
            blocks.append(_members(block, bank, counts))
            progress.advance(len(block.regions))
    members = np.concatenate(blocks)
    return members[np.lexsort((-members["confidence"], members["output"]))], totals


def _write(
    folder: Path, members: np.ndarray, paths: list[str], description: Mapping[str, Any]
) -> None:
    """The description is written last: with it, all is there."""
    content = io.BytesIO()
    np.save(content, members)
    (folder / _CLUSTERS_FILE).unlink(missing_ok=True)
    write_atomically(folder / _MEMBERS_FILE, content.getvalue())
    write_atomically(folder / _IMAGES_FILE, json.dumps(paths).encode())
    described = {**description, "num_regions": len(members)}
    write_atomically(folder / _CLUSTERS_FILE, json.dumps(described).encode())


def _members(block: Block, bank: Bank, counts: np.ndarray) -> np.ndarray:
    found = np.zeros(len(block.regions), MEMBER)
    found["output"] = block.outputs.numpy()
    found["image"] = block.image_index
    found["region"] = block.regions
    found["confidence"] = block.confidence.numpy()
    found["margin"] = block.margin.numpy()
    for image in np.unique(block.image_index).tolist():
        rows = block.image_index == image
        boxes = bank.read_boxes(image, count=int(counts[image])).numpy()
        found["box_xyxy"][rows] = boxes[block.regions[rows]]
    return found


def _looks(
    totals: ClusterTotals, members: np.ndarray, objects: Bank | None, num_known: int
) -> Tensor:
    """(N, D) what clusters look like: to the teacher where there is one, otherwise to the head."""
    prototypes = totals.prototypes
    if objects is None:
        return prototypes
    seen = looks_to_teacher(objects, members, prototypes, num_known=num_known)
    return prototypes if seen is None else seen


def _cluster_facts(totals: ClusterTotals, looks: Tensor) -> list[dict[str, Any]]:
    found = totals.summaries(exemplars=[])
    nearest = nearest_rows(totals.prototypes, _NUM_NEAREST)
    positions = lay_out(looks)
    return [
        {
            "promise": round(float(found.promise[cluster]), 6),
            "confidence": round(float(found.confidence[cluster]), 6),
            "nearest_known": int(found.nearest_known[cluster]),
            "known_likeness": round(float(found.known_likeness[cluster]), 6),
            "nearest": nearest[cluster].tolist(),
            "position": [round(value, 4) for value in positions[cluster].tolist()],
        }
        for cluster in range(len(found.sizes))
    ]
