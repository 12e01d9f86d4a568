"""Every baseline by name: what it may look at, and the classifier it comes to."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from rncdl.baselines.centroids import CentroidClassifier, fit_centroids, soften
from rncdl.baselines.crop_centroids import fit_crop_centroids, train_known_classes
from rncdl.baselines.crop_feed import crop_batches
from rncdl.baselines.crops import CropClassifier, CropEncoder
from rncdl.baselines.orca import train_orca
from rncdl.baselines.pool_images import PoolImages
from rncdl.baselines.prototypes import fit_prototypes
from rncdl.baselines.uno import UnoHeads, train_uno
from rncdl.baselines.weng import CropEmbedding, draw_triplets, find_regions, train_embedding
from rncdl.config import Settings
from rncdl.data.samples import Sample
from rncdl.data.viewed_images import Pool
from rncdl.detector.inference import Classify, RegionClassifier
from rncdl.detector.model import Detector
from rncdl.discovery.bank import Bank
from rncdl.discovery.feeding import BankFeed, DiscoveryBatch
from rncdl.discovery.heads import KnownHead


@dataclass(frozen=True)
class Material:
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

    @property
    def num_known(self) -> int:
        """K."""
        return self.detector.num_known

    def images(self) -> PoolImages:
        """The pool's images, to be cut into crops."""
        self.detector.eval()
        return PoolImages(self.detector, self.bank, self.pool, self.settings, self.seed)

    def crop_encoder(self) -> CropEncoder:
        """A network of one's own: the detector's backbone with the weights it started from."""
        torch.manual_seed(self.seed)
        return CropEncoder(self.settings.detector).to(self.detector.device)


def _kmeans_features(material: Material) -> CentroidClassifier:
    return fit_centroids(
        material.bank,
        num_known=material.num_known,
        num_clusters=material.num_clusters,
        seed=material.seed,
        device=material.detector.device,
    )


def _kmeans_features_soft(material: Material) -> RegionClassifier:
    return soften(_kmeans_features(material), material.bank, seed=material.seed)


def _kmeans_crops(material: Material) -> RegionClassifier:
    images, encoder = material.images(), material.crop_encoder()
    train_known_classes(encoder, images, title="kmeans-crops")
    centroids = fit_crop_centroids(
        encoder, images, images.bank_boxes, num_clusters=material.num_clusters
    )
    return CropClassifier(encoder, centroids, material.settings.baselines.crop_px)


def _weng(material: Material) -> RegionClassifier:
    baselines = material.settings.baselines
    images, encoder = material.images(), material.crop_encoder()
    width = material.settings.discover.projection_width
    embedding = CropEmbedding(encoder, encoder.width, width).to(material.detector.device)
    train_embedding(
        embedding,
        draw_triplets(images),
        steps=baselines.steps,
        rate=baselines.rate,
        hyperbolic=baselines.weng_hyperbolic,
    )
    centroids = fit_crop_centroids(
        embedding,
        images,
        partial(_find_regions_once, material.found_regions, images),
        num_clusters=material.num_clusters,
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


def _orca(material: Material) -> RegionClassifier:
    baselines = material.settings.baselines
    inputs = _inputs(material)
    classify = train_orca(
        inputs.encoder,
        inputs.width,
        inputs.batches,
        num_classes=material.num_known + material.num_clusters,
        steps=baselines.steps,
        rate=baselines.rate,
        seed=material.seed,
        device=material.detector.device,
    )
    return inputs.read_with(classify)


def _uno(material: Material) -> RegionClassifier:
    baselines, discover = material.settings.baselines, material.settings.discover
    inputs = _inputs(material)
    if isinstance(inputs.encoder, CropEncoder):
        train_known_classes(inputs.encoder, material.images(), title="uno, known classes")
    heads = UnoHeads(
        inputs.width,
        num_known=material.num_known,
        num_clusters=material.num_clusters,
        num_heads=baselines.uno_heads,
        overclustering=baselines.uno_overclustering,
        hidden_width=discover.hidden_width,
        projection_width=discover.projection_width,
        temperature=discover.temperature,
    ).to(material.detector.device)
    classify = train_uno(
        inputs.encoder, heads, inputs.batches, steps=baselines.steps, rate=baselines.rate
    )
    return inputs.read_with(classify)


def _pandas(material: Material) -> RegionClassifier:
    head = material.detector.known_head
    return fit_prototypes(
        material.bank,
        KnownHead.from_classifier(head.weight, head.bias),
        num_known=material.num_known,
        num_clusters=material.num_clusters,
        seed=material.seed,
    )


METHODS: Mapping[str, Callable[[Material], RegionClassifier]] = {
    "kmeans-features": _kmeans_features,
    "kmeans-features-soft": _kmeans_features_soft,
    "kmeans-crops": _kmeans_crops,
    "weng": _weng,
    "orca": _orca,
    "uno": _uno,
    "pandas": _pandas,
}
"""Name -> training: from the material to scores (R, K + N) of regions, known classes first.

A training is one process's work; its classifier can be pickled, and so be handed to others.
"""


@dataclass(frozen=True)
class EncodedClassifier:
    """Classifies region features after a network of its own."""

    encoder: nn.Module
    classify: Classify

    def __call__(self, features: Tensor) -> Tensor:
        """(R, K + N) probabilities of features (R, F)."""
        return self.classify(self.encoder(features.float()))


@dataclass(frozen=True)
class _Inputs:
    """What UNO and ORCA learn from, by `baselines.features`."""

    encoder: nn.Module
    width: int
    """of the encoder's features"""
    batches: Iterator[DiscoveryBatch]
    """what the encoder takes, in two views, and labelled"""
    crop_px: int | None
    """None: the encoder takes region features"""

    def read_with(self, classify: Classify) -> RegionClassifier:
        """A classifier of regions, from one of the encoder's features."""
        if self.crop_px is not None:
            return CropClassifier(self.encoder, classify, self.crop_px)
        return EncodedClassifier(self.encoder, classify)


def _inputs(material: Material) -> _Inputs:
    settings = material.settings
    if settings.baselines.features == "crops":
        encoder = material.crop_encoder()
        batches = crop_batches(material.images())
        return _Inputs(encoder, encoder.width, batches, settings.baselines.crop_px)
    device = material.detector.device
    feed = BankFeed(
        material.bank,
        material.pool.images,
        batch_images=settings.baselines.batch_images,
        labelled_images=settings.baselines.batch_images,
        seed=material.seed,
    )
    width = material.bank.shape.num_features
    torch.manual_seed(material.seed)
    # What is trained in place of the crops' network; BatchNorm takes any bias away again.
    layer = nn.Sequential(nn.Linear(width, width, bias=False), nn.BatchNorm1d(width), nn.ReLU())
    moved = (batch.to(device) for batch in feed.batches())
    return _Inputs(layer.to(device), width, moved, None)
