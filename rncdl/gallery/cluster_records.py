"""Clusters as records for programs, one each."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rncdl.classes import cluster_name
from rncdl.data.records import ImageRecord
from rncdl.discovery.bank import Bank
from rncdl.gallery.exemplars import Kind
from rncdl.gallery.page import exemplar_regions
from rncdl.gallery.summaries import ClusterSummaries
from rncdl.naming.decisions import Decisions


@dataclass(frozen=True)
class ShownRegion:
    """A region that stands for its cluster."""

    image: Path
    box_xyxy: tuple[float, float, float, float]
    """in pixels of the image"""
    confidence: float
    """the cluster's probability, in [0, 1]"""
    kind: Kind
    """why it was chosen: confident, typical, random or doubtful"""


@dataclass(frozen=True)
class Cluster:
    """What is known of one cluster without any labels. Made by `rncdl.clusters`.

    number: from 0.
    name: what people called it; until then novel_0042.
    is_named: whether people gave it that name.
    is_ignored: whether people decided that it is no class.
    size: how many regions the novel head gave it; all means are over these.
    num_images: how many images they lie in.
    promise: the larger, the more it seems to be a class that nobody labelled; for sorting.
    confidence: mean probability of its regions.
    coherence: how alike they are: mean cosine with their mean.
    background_share: share of them that look like background to the detector as trained.
    nearest_known: the known class that the detector as trained is most inclined to see in it.
    known_likeness: that class's mean probability.
    nearest_clusters: numbers of the clusters most like it, the nearest first.
    examples: regions of different images, each with image, box_xyxy, confidence and kind.
    """

    number: int
    name: str
    is_named: bool
    is_ignored: bool
    size: int
    num_images: int
    promise: float
    confidence: float
    coherence: float
    background_share: float
    nearest_known: str
    known_likeness: float
    nearest_clusters: tuple[int, ...]
    examples: tuple[ShownRegion, ...]


def cluster_records(
    summaries: ClusterSummaries,
    bank: Bank,
    images: Sequence[ImageRecord],
    *,
    known: Sequence[str],
    decisions: Decisions,
) -> list[Cluster]:
    """Every cluster, in the order of their numbers. `images`: the bank's."""
    _, boxes = exemplar_regions(summaries, bank)
    remaining = iter(boxes.tolist())
    return [
        Cluster(
            number=number,
            name=decisions.names.get(number, cluster_name(number)),
            is_named=number in decisions.names,
            is_ignored=number in decisions.ignored,
            size=int(summaries.sizes[number]),
            num_images=int(summaries.num_images[number]),
            promise=float(promise),
            confidence=float(summaries.confidence[number]),
            coherence=float(summaries.coherence[number]),
            background_share=float(summaries.background_share[number]),
            nearest_known=known[int(summaries.nearest_known[number])],
            known_likeness=float(summaries.known_likeness[number]),
            nearest_clusters=tuple(summaries.nearest_clusters[number].tolist()),
            examples=tuple(
                ShownRegion(
                    images[one.image_index].path, tuple(next(remaining)), one.confidence, one.kind
                )
                for one in exemplars
            ),
        )
        for number, (promise, exemplars) in enumerate(
            zip(summaries.promise, summaries.exemplars, strict=True)
        )
    ]
