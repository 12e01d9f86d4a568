"""k-means on crops: centroids in the space of a network that looks at crops."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from rncdl.data.samples import Sample
from rncdl.experiments.baselines.centroids import (
    MAX_REGIONS,
    CentroidClassifier,
    ClassMeans,
    cluster_regions,
)
from rncdl.experiments.baselines.crop_feed import labelled_crops
from rncdl.experiments.baselines.crops import CropEncoder, encode_boxes
from rncdl.experiments.baselines.fitting import Fitting, encode_jointly, fit
from rncdl.experiments.baselines.pool_images import PoolImages
from rncdl.training.processes import autocast

ChooseBoxes = Callable[[Sequence[Sample]], list[Tensor]]
"""The regions (r, 4) of each image that are to be clustered, in pixels of the network's input."""


def train_known_classes(encoder: CropEncoder, images: PoolImages, fitting: Fitting) -> None:
    """Teach the encoder the known classes by cross-entropy on annotated crops."""
    classifier = nn.Linear(encoder.width, images.detector.num_known)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        crops, labels = batch
        (features,) = encode_jointly(encoder, crops, precision=fitting.precision)
        return functional.cross_entropy(classifier(features), labels)

    fit(nn.ModuleList([encoder, classifier]), loss_of, partial(labelled_crops, images), fitting)


@torch.no_grad()
def fit_crop_centroids(
    encoder: nn.Module, images: PoolImages, choose: ChooseBoxes, *, num_clusters: int
) -> CentroidClassifier:
    """Means of the known classes' annotated crops, and k-means of the pool's chosen regions.

    Both in the space of the encoder's features; `crops_per_image` regions of each image, at most
    `MAX_REGIONS` in all.
    """
    encoder.eval()
    pool = torch.cat(list(_embed_pool(encoder, images, choose)))
    means = ClassMeans(images.detector.num_known, pool.shape[1])
    for samples in images.look_at_first(images.pool.num_labelled, title="known crops"):
        boxes, labels = images.annotations(samples)
        means.add(_embed(encoder, images, samples, boxes), labels)
    novel = cluster_regions(pool, num_clusters, seed=images.seed)
    return CentroidClassifier(torch.cat([means.means().to(novel), novel]))


def _embed_pool(encoder: nn.Module, images: PoolImages, choose: ChooseBoxes) -> Iterator[Tensor]:
    """Features (r, D) of some regions of each batch of pool images."""
    generator = images.generator(0)
    total = 0
    for samples in images.look_at_first(len(images.pool), title="pool crops"):
        boxes = images.draw_boxes(choose(samples), generator)
        yield _embed(encoder, images, samples, boxes)
        total += sum(len(own) for own in boxes)
        if total >= MAX_REGIONS:
            return


def _embed(
    encoder: nn.Module, images: PoolImages, samples: Sequence[Sample], boxes: Sequence[Tensor]
) -> Tensor:
    """(R, D) features of the images' boxes, in the precision in which they will be classified."""
    pixels = images.batch(samples).pixels
    with autocast(pixels.device, images.precision):
        return encode_boxes(encoder, pixels, boxes, side_px=images.settings.baselines.crop_px)
