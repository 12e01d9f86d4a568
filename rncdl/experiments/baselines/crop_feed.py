"""Batches of crops to learn from."""

from collections.abc import Iterator, Sequence

import torch
from torch import Generator, Tensor

from rncdl.data.colours import STRENGTHS
from rncdl.data.samples import Sample
from rncdl.discovery.feeding import DiscoveryBatch
from rncdl.experiments.baselines.crops import draw_crops, places_of
from rncdl.experiments.baselines.pool_images import PoolImages


def labelled_crops(images: PoolImages, start: int = 0) -> Iterator[tuple[Tensor, Tensor] | None]:
    """Endlessly, from step `start` on: a view of annotated crops (L, 3, S, S), and labels (L,).

    None for a step none of whose images can be read.
    """
    for step, samples in enumerate(images.draw_labelled(start), start):
        yield _cut_annotations(images, samples, images.generator(step)) if samples else None


def crop_batches(images: PoolImages, start: int = 0) -> Iterator[DiscoveryBatch | None]:
    """Endlessly, from step `start` on: two views of drawn regions of the pool, and labelled crops.

    Crops are (B, 3, S, S). None for a step whose images, on either side, cannot be read.
    """
    drawn = zip(images.draw(start), images.draw_labelled(start), strict=True)
    for step, (of_pool, labelled) in enumerate(drawn, start):
        if not (of_pool and labelled):
            yield None
            continue
        generator = images.generator(step)
        boxes = images.draw_boxes(images.bank_boxes(of_pool), generator)
        pixels = images.batch(of_pool).pixels
        views = (
            draw_view(images, pixels, boxes, generator),
            draw_view(images, pixels, boxes, generator),
        )
        crops, labels = _cut_annotations(images, labelled, generator)
        yield DiscoveryBatch(views, crops, labels)


def draw_view(
    images: PoolImages, pixels: Tensor, boxes: Sequence[Tensor], generator: Generator
) -> Tensor:
    """(B, 3, S, S) a random view of the crop at each box, (b, 4) per image in input pixels.

    `pixels`: the images, normalised, on their device.
    """
    settings, device = images.settings, pixels.device
    return draw_crops(
        pixels,
        torch.cat(list(boxes)).to(device, non_blocking=True),
        images=places_of(boxes).to(device, non_blocking=True),
        side_px=settings.baselines.crop_px,
        strength=STRENGTHS[settings.baselines.augmentation],
        flip_chance=settings.data.flip,
        generator=generator,
    )


def _cut_annotations(
    images: PoolImages, samples: Sequence[Sample], generator: Generator
) -> tuple[Tensor, Tensor]:
    boxes, labels = images.annotations(samples)
    pixels = images.batch(samples).pixels
    return (
        draw_view(images, pixels, boxes, generator),
        labels.to(pixels.device, non_blocking=True),
    )
