"""Weng et al.: an embedding of crops learned from masks and overlapping boxes, then k-means.

Weng, Ogut, Limonchik, Yeung, Unsupervised Discovery of the Long-Tail in Instance Segmentation
Using Hierarchical Self-Supervision, 2021.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from rncdl.data.samples import Sample
from rncdl.detector.locating import Search, locate
from rncdl.detector.model import ImageBatch
from rncdl.experiments.baselines.crop_feed import draw_view
from rncdl.experiments.baselines.crops import cut_crops, places_of, square_boxes
from rncdl.experiments.baselines.fitting import Fitting, encode_jointly, fit
from rncdl.experiments.baselines.pool_images import PoolImages
from rncdl.training.processes import autocast

PROPOSAL_NMS = 0.75
PROPOSALS = 50
MARGIN = 0.2
_BALL_RADIUS = 1 - 1e-3
"""Points of the Poincaré ball stay within this radius: float32 is too coarse beyond."""
_SMALLEST = 1e-12


class CropEmbedding(nn.Module):
    """A crop encoder and a small MLP on it."""

    def __init__(self, encoder: nn.Module, num_features: int, width: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.projection = nn.Sequential(
            nn.Linear(num_features, num_features),
            nn.ReLU(inplace=True),
            nn.Linear(num_features, width),
        )

    def forward(self, crops: Tensor) -> Tensor:
        """(R, D) embeddings; with hyperbolic distances, tangent vectors at the ball's centre."""
        return self.projection(self.encoder(crops))


def to_ball(tangents: Tensor) -> Tensor:
    """(R, D) points of the Poincaré ball that lie `2 |tangent|` from its centre, curvature -1."""
    lengths = tangents.square().sum(-1, keepdim=True).clamp_min(_SMALLEST).sqrt()
    return tangents / lengths * lengths.tanh().clamp_max(_BALL_RADIUS)


def poincare_distance(x: Tensor, y: Tensor) -> Tensor:
    """(R,) hyperbolic distances of points x, y (R, D) of the unit ball."""
    squared = (x - y).square().sum(-1).clamp_min(_SMALLEST)
    room = (1 - x.square().sum(-1)) * (1 - y.square().sum(-1))
    # The same as arcosh(1 + 2 squared / room), without its loss of digits near zero.
    return 2 * (squared / room).sqrt().asinh()


def triplet_loss(
    anchors: Tensor, positives: Tensor, negatives: Tensor, *, hyperbolic: bool
) -> Tensor:
    """Mean of what positives lie farther from the anchors than negatives less a margin.

    Embeddings (R, D); with `hyperbolic`, tangent vectors that are compared in the Poincaré ball.
    """
    if hyperbolic:
        anchors, positives, negatives = map(to_ball, (anchors, positives, negatives))
        near, far = poincare_distance(anchors, positives), poincare_distance(anchors, negatives)
    else:
        near = functional.pairwise_distance(anchors, positives)
        far = functional.pairwise_distance(anchors, negatives)
    return (near - far + MARGIN).relu().mean()


@dataclass
class Triplets:
    """Crops (R, 3, S, S) of R regions, each in several ways."""

    whole: Tensor
    """the box as it is"""
    near: Tensor
    """a view of a box that overlaps it"""
    objects: Tensor | None
    """the box without its background, by the mask head; None where there is none"""
    backgrounds: Tensor | None
    """the box without its object"""
    others: Tensor
    """(R,) for each region one of another image (of its own where there is but one)"""


@torch.no_grad()
def find_regions(images: PoolImages, samples: Sequence[Sample]) -> list[Tensor]:
    """Each image's best 50 proposals after NMS 0.75, refined once, (r, 4) in input pixels.

    On the CPU, as all of the pool's boxes are.
    """
    batch = images.batch(samples)
    with autocast(batch.pixels.device, images.precision):
        return _find_regions(images, batch, images.detector.feature_maps(batch))


def _find_regions(images: PoolImages, batch: ImageBatch, maps: Sequence[Tensor]) -> list[Tensor]:
    search = Search(
        before_nms=images.settings.predict.proposals_before_nms,
        nms=PROPOSAL_NMS,
        per_image=PROPOSALS,
    )
    refined = locate(images.detector, maps, batch, search=search).boxes
    return list(torch.cat(refined).cpu().split([len(own) for own in refined]))


def place_masks(masks: Tensor, boxes_xyxy: Tensor, side_px: int) -> Tensor:
    """(R, side_px, side_px) masks (R, 28, 28) of boxes, in the frame of the boxes' square crops."""
    squares = square_boxes(boxes_xyxy)
    box_sides = (boxes_xyxy[:, 2:] - boxes_xyxy[:, :2]).clamp_min(_SMALLEST)
    stretch = (squares[:, 2:] - squares[:, :2]) / box_sides
    cells = (2 * torch.arange(side_px, device=masks.device) + 1) / side_px - 1
    x, y = cells * stretch[:, :1], cells * stretch[:, 1:]
    grid = torch.stack(
        [x[:, None, :].expand(-1, side_px, -1), y[:, :, None].expand(-1, -1, side_px)], -1
    )
    return functional.grid_sample(masks[:, None], grid, align_corners=False)[:, 0]


def draw_others(images: Tensor, generator: Generator) -> Tensor:
    """(R,) for each region one of another image, where there is one.

    `images` (R,), on the CPU as the generator is: the image of each region.
    """
    differs = images[:, None] != images[None]
    weights = (differs | ~differs.any(1, keepdim=True)).float()
    return torch.multinomial(weights, 1, generator=generator)[:, 0]


@torch.no_grad()
def draw_triplets(images: PoolImages, start: int = 0) -> Iterator[Triplets | None]:
    """Endlessly, from step `start` on: triplets of drawn proposals of the pool.

    None for a step whose images cannot be read or have no proposals.
    """
    for step, samples in enumerate(images.draw(start), start):
        yield _cut_triplets(images, samples, images.generator(step)) if samples else None


def _cut_triplets(
    images: PoolImages, samples: Sequence[Sample], generator: Generator
) -> Triplets | None:
    side_px, detector = images.settings.baselines.crop_px, images.detector
    batch = images.batch(samples)
    device = batch.pixels.device
    with autocast(device, images.precision):
        maps = detector.feature_maps(batch)
        boxes = images.draw_boxes(_find_regions(images, batch, maps), generator)
    places = places_of(boxes)
    if not len(places):
        return None
    all_boxes = torch.cat(boxes).to(device, non_blocking=True)
    whole = cut_crops(
        batch.pixels, all_boxes, images=places.to(device, non_blocking=True), side_px=side_px
    )
    objects = backgrounds = None
    if detector.mask_head is not None:
        with autocast(device, images.precision):
            logits = detector.mask_logits(maps, all_boxes.split([len(own) for own in boxes]))
        is_object = (place_masks(logits.float().sigmoid(), all_boxes, side_px) > 0.5)[:, None]
        objects, backgrounds = whole * is_object, whole * ~is_object
    return Triplets(
        whole=whole,
        near=draw_view(images, batch.pixels, boxes, generator),
        objects=objects,
        backgrounds=backgrounds,
        others=draw_others(places, generator).to(device, non_blocking=True),
    )


def train_embedding(
    embedding: CropEmbedding,
    feed: Callable[[int], Iterator[Triplets | None]],
    fitting: Fitting,
    *,
    hyperbolic: bool,
) -> None:
    """Teach the embedding: a box is near its object and its overlapping boxes."""

    def loss_of(batch: Triplets) -> Tensor:
        parts = [batch.whole, batch.near]
        if batch.objects is not None and batch.backgrounds is not None:
            parts += [batch.objects, batch.backgrounds]
        whole, near, *by_mask = encode_jointly(embedding, *parts, precision=fitting.precision)
        loss = triplet_loss(whole, near, whole[batch.others], hyperbolic=hyperbolic)
        if by_mask:
            objects, backgrounds = by_mask
            loss = loss + triplet_loss(whole, objects, backgrounds, hyperbolic=hyperbolic)
        return loss

    fit(embedding, loss_of, feed, fitting)
