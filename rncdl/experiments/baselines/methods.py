"""Every baseline by name: what it may look at, and the classifier it comes to."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from rncdl.config import Settings
from rncdl.data.samples import Sample
from rncdl.data.viewed_images import Pool
from rncdl.detector.model import Detector
from rncdl.discovery.bank import Bank
from rncdl.discovery.feeding import BankFeed, BatchSize, DiscoveryBatch
from rncdl.discovery.heads import KnownHead, NovelHead
from rncdl.experiments.baselines.centroids import CentroidClassifier, fit_centroids, soften
from rncdl.experiments.baselines.crop_centroids import fit_crop_centroids, train_known_classes
from rncdl.experiments.baselines.crop_feed import crop_batches
from rncdl.experiments.baselines.crops import CropClassifier, CropEncoder
from rncdl.experiments.baselines.fitting import Fitting
from rncdl.experiments.baselines.orca import OrcaHead, train_orca
from rncdl.experiments.baselines.pool_images import PoolImages
from rncdl.experiments.baselines.prototypes import fit_prototypes
from rncdl.experiments.baselines.semi_supervised_kmeans import fit_groups
from rncdl.experiments.baselines.uno import UnoHeads, train_uno
from rncdl.experiments.baselines.weng import (
    CropEmbedding,
    draw_triplets,
    find_regions,
    train_embedding,
)
from rncdl.training.processes import autocast, choose_precision


@dataclass(frozen=True)
class BaselineTask:
    """What every baseline may look at: one detector, one bank, the known labels."""

    detector: Detector
    """frozen; what is trained goes to its device"""
    bank: Bank
    """regions of the pool with their features, and those on the labelled images' annotations"""
    pool: Pool
    num_clusters: int
    """N"""
    settings: Settings
    seed: int
    found_regions: dict[int, Tensor] = field(default_factory=dict, repr=False)
    """Weng et al.'s regions of each pool image: the same for every seed, so worth sharing"""
    folder: Path | None = None
    """for checkpoints, so that a training can stop and go on; None: none are kept"""

    @property
    def num_known(self) -> int:
        """K."""
        return self.detector.num_known

    def images(self) -> PoolImages:
        """The pool's images, to be cut into crops."""
        self.detector.eval()
        return PoolImages(
            self.detector, self.bank, self.pool, self.settings, self.seed, self._precision
        )

    def crop_encoder(self) -> CropEncoder:
        """A network of one's own: the detector's backbone with the weights it started from."""
        torch.manual_seed(self.seed)
        return CropEncoder(self.settings.detector).to(self.detector.device)

    def fitting(self, name: str) -> Fitting:
        """How one network is trained, by the settings; its checkpoints lie apart from others'."""
        baselines, discover = self.settings.baselines, self.settings.discover
        return Fitting(
            name,
            self.detector.device,
            steps=baselines.steps,
            rate=baselines.rate,
            seed=self.seed,
            precision=self._precision,
            folder=None if self.folder is None else self.folder / name,
            checkpoint_every=discover.checkpoint_every,
            log_every=discover.log_every,
        )

    @property
    def _precision(self) -> torch.dtype:
        """That of the detector, beside which a network on crops will run."""
        return choose_precision(self.settings.train.precision, self.detector.device)


def _kmeans_features(task: BaselineTask) -> CentroidClassifier:
    return fit_centroids(
        task.bank,
        num_known=task.num_known,
        num_clusters=task.num_clusters,
        seed=task.seed,
        device=task.detector.device,
    )


def _kmeans_features_soft(task: BaselineTask) -> nn.Module:
    return soften(_kmeans_features(task), task.bank, seed=task.seed)


def _semi_supervised_kmeans(task: BaselineTask) -> nn.Module:
    return fit_groups(
        task.bank,
        num_known=task.num_known,
        num_clusters=task.num_clusters,
        seed=task.seed,
        device=task.detector.device,
    )


def _kmeans_crops(task: BaselineTask) -> nn.Module:
    images, encoder = task.images(), task.crop_encoder()
    train_known_classes(encoder, images, task.fitting("kmeans-crops"))
    centroids = fit_crop_centroids(
        encoder, images, images.bank_boxes, num_clusters=task.num_clusters
    )
    return CropClassifier(encoder, centroids, task.settings.baselines.crop_px)


def _weng(task: BaselineTask) -> nn.Module:
    baselines = task.settings.baselines
    images, encoder = task.images(), task.crop_encoder()
    width = task.settings.discover.projection_width
    embedding = CropEmbedding(encoder, encoder.width, width)
    train_embedding(
        embedding,
        partial(draw_triplets, images),
        task.fitting("weng"),
    )
    centroids = fit_crop_centroids(
        embedding,
        images,
        partial(_find_regions_once, task.found_regions, images),
        num_clusters=task.num_clusters,
    )
    return CropClassifier(embedding, centroids, baselines.crop_px)


def _find_regions_once(
    found: dict[int, Tensor], images: PoolImages, samples: Sequence[Sample]
) -> list[Tensor]:
    missing = [sample for sample in samples if sample.image_index not in found]
    if missing:
        boxes = find_regions(images, missing)
        found.update(zip((sample.image_index for sample in missing), boxes, strict=True))
    return [found[sample.image_index] for sample in samples]


def _orca(task: BaselineTask) -> nn.Module:
    inputs = _inputs(task)
    head = OrcaHead(inputs.width, task.num_known + task.num_clusters)
    return inputs.read_with(train_orca(inputs.encoder, head, inputs.feed, task.fitting("orca")))


def _uno(task: BaselineTask) -> nn.Module:
    inputs = _inputs(task)
    # Made before anything is trained: after a resumed training they would start otherwise.
    heads = _uno_heads(task, inputs.width)
    if isinstance(inputs.encoder, CropEncoder):
        train_known_classes(inputs.encoder, task.images(), task.fitting("uno-known-classes"))
    return inputs.read_with(train_uno(inputs.encoder, heads, inputs.feed, task.fitting("uno")))


def _uno_heads(task: BaselineTask, width: int) -> UnoHeads:
    baselines, discover = task.settings.baselines, task.settings.discover

    def heads(num_clusters: int) -> list[NovelHead]:
        return [
            NovelHead(
                width,
                num_clusters,
                hidden_width=discover.hidden_width,
                projection_width=discover.projection_width,
            )
            for _ in range(baselines.uno_heads)
        ]

    return UnoHeads(
        NovelHead(width, task.num_known, projection=False),
        heads(task.num_clusters),
        heads(baselines.uno_overclustering * task.num_clusters),
    )


def _pandas(task: BaselineTask) -> nn.Module:
    head = task.detector.known_head
    return fit_prototypes(
        task.bank,
        KnownHead.from_classifier(head.weight, head.bias),
        num_known=task.num_known,
        num_clusters=task.num_clusters,
        seed=task.seed,
    )


METHODS: Mapping[str, Callable[[BaselineTask], nn.Module]] = {
    "kmeans-features": _kmeans_features,
    "kmeans-features-soft": _kmeans_features_soft,
    "semi-supervised-kmeans": _semi_supervised_kmeans,
    "kmeans-crops": _kmeans_crops,
    "weng": _weng,
    "orca": _orca,
    "uno": _uno,
    "pandas": _pandas,
}
"""Name -> training: from the task to a classifier of regions, known classes first.

It gives scores (R, K + N) of region features, or of boxes where it is a `LooksAtPixels`. A training
is one process's work; its classifier is on the detector's device and can be pickled and moved
(`.to(device)`), and so be handed to others. It may raise `Interrupted`, with all saved that it
needs to go on, and `Diverged`.
"""


class EncodedClassifier(nn.Module):
    """Classifies region features after a network of its own."""

    def __init__(self, encoder: nn.Module, classify: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.classify = classify

    def forward(self, features: Tensor) -> Tensor:
        """(R, K + N) probabilities of features (R, F)."""
        with autocast(features.device, torch.float32):
            return self.classify(self.encoder(features.float()))


@dataclass(frozen=True)
class _Inputs:
    """What UNO and ORCA learn from, by `baselines.features`."""

    encoder: nn.Module
    width: int
    """of the encoder's features"""
    feed: Callable[[int], Iterator[DiscoveryBatch | None]]
    """what the encoder takes, in two views, and labelled, from a step on"""
    crop_px: int | None
    """None: the encoder takes region features"""

    def read_with(self, classify: nn.Module) -> nn.Module:
        """A classifier of regions, from one of the encoder's features."""
        if self.crop_px is not None:
            return CropClassifier(self.encoder, classify, self.crop_px)
        return EncodedClassifier(self.encoder, classify)


def _inputs(task: BaselineTask) -> _Inputs:
    settings = task.settings
    if settings.baselines.features == "crops":
        encoder = task.crop_encoder()
        feed = partial(crop_batches, task.images())
        return _Inputs(encoder, encoder.width, feed, settings.baselines.crop_px)
    device = task.detector.device
    bank_feed = BankFeed(
        task.bank,
        task.pool.images,
        size=BatchSize(settings.baselines.batch_images, settings.baselines.batch_images),
        seed=task.seed,
    )
    width = task.bank.shape.num_features
    torch.manual_seed(task.seed)
    # What is trained in place of the crops' network; BatchNorm takes any bias away again.
    layer = nn.Sequential(nn.Linear(width, width, bias=False), nn.BatchNorm1d(width), nn.ReLU())

    def from_bank(start: int) -> Iterator[DiscoveryBatch]:
        return (batch.to(device) for batch in bank_feed.batches(start))

    return _Inputs(layer, width, from_bank, None)
