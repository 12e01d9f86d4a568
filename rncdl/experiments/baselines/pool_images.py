"""The pool's images as the network sees them, and where their regions lie."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor

from rncdl.config import Settings
from rncdl.data.batches import EvaluationBatches, TrainingBatches
from rncdl.data.datasets import PlainImages
from rncdl.data.loading import BatchLoader
from rncdl.data.samples import Sample, to_sample_pixels
from rncdl.data.viewed_images import Pool
from rncdl.detector.boxes import has_area
from rncdl.detector.model import Detector, ImageBatch
from rncdl.discovery.bank import Bank
from rncdl.training.progress import ProgressLine


@dataclass(frozen=True)
class PoolImages:
    """Pool images in batches: drawn by the seed, endlessly, or all of them once.

    Boxes and labels are on the CPU, where choosing among them does not wait for the device.
    """

    detector: Detector
    """normalises the images, and says on which device"""
    bank: Bank
    pool: Pool
    settings: Settings
    seed: int
    precision: torch.dtype
    """of the networks that look at the images"""

    def draw(self, start: int = 0) -> Iterator[list[Sample]]:
        """Endless batches of pool images that have regions, from step `start` on."""
        return self._load(self._draw_keys(self.bank.counts() > 0, start=start, salt=0))

    def draw_labelled(self, start: int = 0) -> Iterator[list[Sample]]:
        """Endless batches of labelled images that have annotations, from step `start` on."""
        annotations = self.pool.labels.annotations
        rows = annotations.image_index[~annotations.is_crowd]
        annotated = np.bincount(rows, minlength=self.pool.num_labelled) > 0
        return self._load(self._draw_keys(annotated, start=start, salt=1))

    def look_at_first(self, num_images: int, *, title: str) -> Iterator[list[Sample]]:
        """The pool's first images once, counted on the screen."""
        batches = EvaluationBatches(num_images, batch_size=self.settings.predict.batch_size)
        with ProgressLine(title, num_images, unit="images") as progress:
            for samples in self._load(batches):
                if samples:
                    yield samples
                progress.advance(len(samples))

    def batch(self, samples: Sequence[Sample]) -> ImageBatch:
        """The images on the detector's device, normalised."""
        return self.detector.batch_images([sample.image for sample in samples])

    def bank_boxes(self, samples: Sequence[Sample]) -> list[Tensor]:
        """The bank's regions (r, 4) of each image, in pixels of the network's input."""
        counts = self.bank.counts().clip(0)
        return [
            to_sample_pixels(
                self.bank.read_boxes(sample.image_index, count=int(counts[sample.image_index])),
                sample,
            )
            for sample in samples
        ]

    def annotations(self, samples: Sequence[Sample]) -> tuple[list[Tensor], Tensor]:
        """Annotated boxes of each image in input pixels, and the labels (A,) of all of them."""
        found = [self.pool.annotations_of(sample.image_index) for sample in samples]
        boxes = [
            to_sample_pixels(own_boxes, sample)
            for (own_boxes, _), sample in zip(found, samples, strict=True)
        ]
        return boxes, torch.cat([labels for _, labels in found])

    def generator(self, step: int) -> Generator:
        """The source of a step's random draws."""
        return Generator().manual_seed(self.seed * 1_000_003 + step)

    def draw_boxes(self, boxes: Sequence[Tensor], generator: Generator) -> list[Tensor]:
        """At most `crops_per_image` boxes of each image, drawn from those that have an area."""
        drawn = []
        for own in boxes:
            usable = own[has_area(own)]
            order = torch.randperm(len(usable), generator=generator)
            drawn.append(usable[order[: self.settings.baselines.crops_per_image]])
        return drawn

    def _draw_keys(self, usable: np.ndarray, *, start: int, salt: int) -> TrainingBatches:
        """Endless batches of the usable ones among the pool's first images."""
        return TrainingBatches(
            self.pool.images[: len(usable)],
            batch_size=self.settings.baselines.batch_images,
            seed=2 * self.seed + salt,
            start_step=start,
            group_by_aspect=False,
            repeats=usable.astype(np.float64),
        )

    def _load(self, keys: TrainingBatches | EvaluationBatches) -> Iterator[list[Sample]]:
        data = self.settings.data
        dataset = PlainImages(
            self.pool.images,
            short_side_px=data.eval_short_side_px,
            long_side_px=data.long_side_px,
            on_bad_image=data.on_bad_image,
            cache_mb=data.cache_mb,
        )
        loader: BatchLoader[Sample] = BatchLoader(dataset, keys, workers=data.workers)
        for batch in loader:
            yield batch.samples
