"""Batches of crops to learn from."""

from collections.abc import Iterator, Sequence

from torch import Generator, Tensor

from rncdl.baselines.crops import draw_crops, join_boxes
from rncdl.baselines.pool_images import PoolImages
from rncdl.data.colours import STRENGTHS
from rncdl.data.samples import Sample
from rncdl.discovery.feeding import DiscoveryBatch


def labelled_crops(images: PoolImages) -> Iterator[tuple[Tensor, Tensor]]:
    """Endlessly: a view of the annotated crops (L, 3, S, S) of some images, and labels (L,)."""
    for step, samples in enumerate(images.draw_labelled()):
        if samples:
            yield _cut_annotations(images, samples, images.generator(step))


def crop_batches(images: PoolImages) -> Iterator[DiscoveryBatch]:
    """Endlessly: two views (B, 3, S, S) of drawn regions of the pool, and labelled crops."""
    drawn = zip(images.draw(), images.draw_labelled(), strict=True)
    for step, (of_pool, labelled) in enumerate(drawn):
        if of_pool and labelled:
            generator = images.generator(step)
            boxes = images.draw_boxes(images.bank_boxes(of_pool), generator)
            views = (
                draw_view(images, of_pool, boxes, generator),
                draw_view(images, of_pool, boxes, generator),
            )
            crops, labels = _cut_annotations(images, labelled, generator)
            yield DiscoveryBatch(views, crops, labels)


def draw_view(
    images: PoolImages, samples: Sequence[Sample], boxes: Sequence[Tensor], generator: Generator
) -> Tensor:
    """(B, 3, S, S) a random view of the crop at each box, (b, 4) per image in input pixels."""
    settings = images.settings
    all_boxes, places = join_boxes(boxes)
    return draw_crops(
        images.batch(samples).pixels,
        all_boxes,
        images=places,
        side_px=settings.baselines.crop_px,
        strength=STRENGTHS[settings.baselines.augmentation],
        flip_chance=settings.data.flip,
        generator=generator,
    )


def _cut_annotations(
    images: PoolImages, samples: Sequence[Sample], generator: Generator
) -> tuple[Tensor, Tensor]:
    boxes, labels = images.annotations(samples)
    return draw_view(images, samples, boxes, generator), labels
