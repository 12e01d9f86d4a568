"""What can be said about clusters without any labels, from the bank and the heads."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rncdl.discovery.bank import Bank
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.gallery.exemplars import Candidates, Exemplar, ExemplarSearch, Kind
from rncdl.training.progress import ProgressLine

BLOCK_REGIONS = 4096
"""Regions that are looked at together."""
NUM_NEAREST = 3
_FEW_IMAGES = 10
"""A cluster found in this many images promises half of what one found everywhere does."""
_BACKGROUND_BELOW = 0.5
"""A region that the detector as trained gives less than this of being a known class, any of
them, looks like background to it."""


@dataclass(frozen=True)
class ClusterSummaries:
    """N clusters of one novel head, in columns. A region belongs to its most probable output."""

    known_sizes: np.ndarray
    """(K,) int64: regions that the known classes took"""
    sizes: np.ndarray
    """(N,) int64: regions that each cluster took"""
    num_images: np.ndarray
    """(N,) int64: images they lie in"""
    confidence: np.ndarray
    """(N,) mean probability of its regions, 0 where it took none; likewise below"""
    coherence: np.ndarray
    """(N,) mean cosine of its regions' embeddings with their mean"""
    background_share: np.ndarray
    """(N,) share of its regions that the known head's old background row claims"""
    nearest_known: np.ndarray
    """(N,) int64: the known class that the detector as trained is most inclined to see in it"""
    known_likeness: np.ndarray
    """(N,) that class's mean probability over its regions, background among the alternatives"""
    nearest_clusters: np.ndarray
    """(N, up to `NUM_NEAREST`) int64: clusters whose prototypes have the largest cosine with its"""
    exemplars: list[list[Exemplar]]
    """(N,) regions to be shown, of different images, kind by kind"""

    @property
    def promise(self) -> np.ndarray:
        """(N,) the larger, the more a cluster seems to be a class that nobody labelled.

        Its regions are alike, neither known classes nor background, and lie on each other:
        proposals heap up on whole objects, and fall singly between them. And it was met in more
        than a few images.
        """
        regions_per_image = self.sizes / np.maximum(1, self.num_images)
        is_new = (1 - self.known_likeness) * (1 - self.background_share)
        is_common = self.num_images / (self.num_images + _FEW_IMAGES)
        return self.coherence * is_new * regions_per_image * is_common


@dataclass(frozen=True)
class Block:
    """R regions of whole images, and what the heads make of them."""

    image_index: np.ndarray
    regions: np.ndarray
    outputs: Tensor
    """(R,) the most probable of the K + N outputs; K + N where the heads see no object"""
    clusters: Tensor
    """(R,) the cluster that this is; -1 where it is none"""
    confidence: Tensor
    """(R,) the largest probability of the K + N outputs"""
    margin: Tensor
    """(R,) by how much it leads over the second, or "no object" leads over it"""
    embeddings: Tensor
    """(R, D) of length one"""
    typicality: Tensor
    """(R,) cosine with the prototype of the most probable cluster"""
    as_trained: Tensor
    """(R, K) probabilities of the known classes with the background row back in place"""


@torch.inference_mode()
def summarise_clusters(
    bank: Bank,
    heads: DiscoveryHeads,
    *,
    head: int = 0,
    exemplars: Mapping[Kind, int],
    known: nn.Module | None = None,
    seed: int = 0,
    shown: bool = False,
) -> ClusterSummaries:
    """All clusters of a head, from one pass over the first view of every region in the bank.

    exemplars: how many regions of each kind are wanted for a cluster, in the order in which a
    region is claimed. `known`: classifies the known classes in place of the heads, so that a
    cluster holds only what the detector did not take for one of them. Memory does not grow with
    the bank.
    """
    heads = heads.eval()
    totals = ClusterTotals(heads.num_known, heads.novel[head].prototypes.cpu())
    search = ExemplarSearch(exemplars)
    random = np.random.default_rng(seed)
    num_regions = int(bank.counts().clip(min=0).sum())
    with ProgressLine("summarise", num_regions, unit="regions", shown=shown) as progress:
        for block in look_at_regions(bank, heads, head=head, known=known):
            totals.add(block)
            _show_candidates(search, block, random=random)
            progress.advance(len(block.regions))
    return totals.summaries(search.chosen(heads.num_clusters[head]))


def look_at_regions(
    bank: Bank, heads: DiscoveryHeads, *, head: int = 0, known: nn.Module | None = None
) -> Iterator[Block]:
    """What the heads, in evaluation mode, make of the first view of every region in the bank."""
    for image_index, regions, features in _blocks(bank):
        yield _look(heads, head, features, known=known, image_index=image_index, regions=regions)


def _blocks(bank: Bank) -> Iterator[tuple[np.ndarray, np.ndarray, Tensor]]:
    """Image index (R,), region (R,) and features (R, F) of about `BLOCK_REGIONS` at a time."""
    counts = bank.counts()
    filled = np.flatnonzero(counts > 0)
    parts = np.cumsum(counts[filled]) // BLOCK_REGIONS
    for part in np.split(filled, np.flatnonzero(np.diff(parts)) + 1):
        if not len(part):
            continue
        features = [bank.read(int(i), 0, count=int(counts[i])) for i in part]
        yield (
            np.repeat(part, counts[part]),
            np.concatenate([np.arange(counts[i]) for i in part]),
            torch.cat(features).float(),
        )


def _look(
    heads: DiscoveryHeads,
    head: int,
    features: Tensor,
    *,
    known: nn.Module | None,
    image_index: np.ndarray,
    regions: np.ndarray,
) -> Block:
    novel = heads.novel[head]
    features = features.to(novel.prototypes.device)
    embeddings = novel.embed(features)
    known_logits = heads.known(features)
    all_probabilities = torch.cat([known_logits, novel.classify(embeddings)], 1).softmax(1)
    num_outputs = heads.num_known + len(novel.prototypes)
    is_object = all_probabilities.argmax(1) < num_outputs
    probabilities = all_probabilities[:, :num_outputs]
    if known is not None:
        probabilities[:, : heads.num_known] = known(features)
    best, ranked = probabilities.topk(min(2, num_outputs), 1)
    outputs = ranked[:, 0].where(is_object, num_outputs)
    # Without an output for "no object" the last column is a cluster, and `is_object` everywhere.
    no_object_leads_by = all_probabilities[:, -1] - best[:, 0]
    embeddings = functional.normalize(embeddings)
    prototypes = functional.normalize(novel.prototypes)
    of_cluster = prototypes[(ranked[:, 0] - heads.num_known).clamp(min=0)]
    return Block(
        image_index=image_index,
        regions=regions,
        outputs=outputs.cpu(),
        clusters=(outputs - heads.num_known).where(is_object, -1).clamp(min=-1).cpu(),
        confidence=best[:, 0].cpu(),
        margin=(best[:, 0] - best[:, -1]).where(is_object, no_object_leads_by).cpu(),
        embeddings=embeddings.cpu(),
        typicality=((embeddings * of_cluster).sum(1)).cpu(),
        as_trained=(known_logits.softmax(1) * heads.foreground(features)[:, None]).cpu(),
    )


def _show_candidates(search: ExemplarSearch, block: Block, *, random: np.random.Generator) -> None:
    rows = (block.clusters >= 0).nonzero().flatten()
    if not len(rows):
        return
    keys: dict[Kind, np.ndarray] = {
        "confident": block.confidence[rows].numpy(),
        "typical": block.typicality[rows].numpy(),
        "random": random.random(len(rows), dtype=np.float32),
        "doubtful": -block.margin[rows].numpy(),
    }
    for kind, values in keys.items():
        search.show(
            kind,
            Candidates(
                clusters=block.clusters[rows].numpy(),
                image_index=block.image_index[rows.numpy()],
                regions=block.regions[rows.numpy()],
                confidence=block.confidence[rows].numpy(),
                keys=values,
            ),
        )


class ClusterTotals:
    """Sums over the regions of each cluster, from which every mean follows."""

    def __init__(self, num_known: int, prototypes: Tensor) -> None:
        num_clusters = len(prototypes)
        self._num_known, self._num_clusters = num_known, num_clusters
        self.prototypes = prototypes
        self._known_sizes = torch.zeros(num_known, dtype=torch.int64)
        self._num_images = np.zeros(num_clusters, dtype=np.int64)
        # Columns: one, probability, background. Doubles: half a million terms are added.
        self._sums = torch.zeros(num_clusters, 3, dtype=torch.float64)
        self._embeddings = torch.zeros(num_clusters, prototypes.shape[1], dtype=torch.float64)
        self._as_trained = torch.zeros(num_clusters, num_known, dtype=torch.float64)

    def add(self, block: Block) -> None:
        """Take in the regions of more images."""
        is_known = block.outputs < self._num_known
        self._known_sizes += block.outputs[is_known].bincount(minlength=self._num_known)
        rows = (block.clusters >= 0).nonzero().flatten()
        clusters = block.clusters[rows]
        background = (block.as_trained[rows].sum(1) < _BACKGROUND_BELOW).float()
        columns = torch.stack(
            [torch.ones(len(rows)), block.confidence[rows], background], 1
        ).double()
        self._sums.index_add_(0, clusters, columns)
        self._embeddings.index_add_(0, clusters, block.embeddings[rows].double())
        self._as_trained.index_add_(0, clusters, block.as_trained[rows].double())
        pairs = np.unique(np.stack([clusters.numpy(), block.image_index[rows.numpy()]]), axis=1)
        self._num_images += np.bincount(pairs[0], minlength=self._num_clusters)

    def summaries(self, exemplars: list[list[Exemplar]]) -> ClusterSummaries:
        """The clusters, from all that was taken in."""
        sizes = self._sums[:, 0]
        divisor = sizes.clamp(min=1)[:, None]
        means = self._sums / divisor
        known_likeness, nearest_known = (self._as_trained / divisor).max(1)
        return ClusterSummaries(
            known_sizes=self._known_sizes.numpy(),
            sizes=sizes.long().numpy(),
            num_images=self._num_images,
            confidence=means[:, 1].numpy(),
            # The mean cosine of unit vectors with their mean is that mean's length.
            coherence=(self._embeddings / divisor).norm(dim=1).numpy(),
            background_share=means[:, 2].numpy(),
            nearest_known=nearest_known.numpy(),
            known_likeness=known_likeness.numpy(),
            nearest_clusters=nearest_rows(self.prototypes, NUM_NEAREST),
            exemplars=exemplars,
        )


def nearest_rows(prototypes: Tensor, count: int) -> np.ndarray:
    """(N, up to `count`) of each row the others with the largest cosine, nearest first."""
    directions = functional.normalize(prototypes)
    similarity = directions @ directions.T
    similarity.fill_diagonal_(-torch.inf)
    return similarity.topk(min(count, len(prototypes) - 1), 1).indices.numpy()
