"""What each step of discovery learns from: read from the bank, or made on the spot."""

import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rncdl.data.batches import TrainingBatches
from rncdl.data.records import ImageRecord
from rncdl.discovery.bank import Bank
from rncdl.discovery.extraction import ExtractedRegions
from rncdl.discovery.neighbours import Neighbours
from rncdl.discovery.partners import draw_partners
from rncdl.errors import UserError
from rncdl.training.processes import Processes


@dataclass
class DiscoveryBatch:
    """Features of one step in one process."""

    views: tuple[Tensor, Tensor]
    """(B, F) each: the same regions in two views; with partners, the same objects; with neighbours,
    objects that look alike"""
    labelled: Tensor
    """(L, F) regions that lie on annotations"""
    labels: Tensor
    """(L,) their known classes"""
    targets: Tensor | None = None
    """(B, H) the teacher's labels of the regions for each head, `UNTAUGHT` where it has none; None:
    no teacher"""

    def to(self, device: torch.device) -> "DiscoveryBatch":
        """The same batch on a device."""
        return self._with_each(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> "DiscoveryBatch":
        """The same batch in memory from which a GPU can fetch it while it computes."""
        return self._with_each(Tensor.pin_memory)

    def _with_each(self, change: Callable[[Tensor], Tensor]) -> "DiscoveryBatch":
        first, second = self.views
        return DiscoveryBatch(
            views=(change(first), change(second)),
            labelled=change(self.labelled),
            labels=change(self.labels),
            targets=None if self.targets is None else change(self.targets),
        )


def batch_of_extracted(
    pool: Sequence[ExtractedRegions],
    labelled: Sequence[ExtractedRegions],
    *,
    partner_iou: float | None = None,
    seed: int = 0,
) -> DiscoveryBatch:
    """A batch of freshly extracted images: two views of the pool's, one of the labelled ones.

    partner_iou: regions that overlap at least this much stand for each other in the second
    view, drawn anew for each `seed`.
    """
    second = [image.features[1] for image in pool]
    if partner_iou is not None:
        generator = torch.Generator().manual_seed(seed)
        boxes = [image.chosen.boxes_xyxy for image in pool]
        second = [
            features[draw_partners(own, min_iou=partner_iou, generator=generator)]
            for features, own in zip(second, boxes, strict=True)
        ]
    return DiscoveryBatch(
        views=(torch.cat([image.features[0] for image in pool]), torch.cat(second)),
        labelled=torch.cat([image.matched_features[0] for image in labelled]),
        labels=torch.cat([image.chosen.matched_labels for image in labelled]),
    )


@dataclass(frozen=True)
class BatchSize:
    """How much a step sees, over all processes."""

    images: int
    labelled_images: int
    regions_per_image: int | None = None
    """of those that the bank holds, the best first; None: all"""


class BankFeed:
    """Batches from a finished bank, endlessly; the same for the same seed and step."""

    can_prefetch = True

    def __init__(
        self,
        bank: Bank,
        images: Sequence[ImageRecord],
        *,
        size: BatchSize,
        seed: int,
        partner_iou: float | None = None,
        region_labels: np.ndarray | None = None,
        neighbours: Neighbours | None = None,
        processes: Processes | None = None,
    ) -> None:
        """partner_iou: regions that overlap this much stand for each other in the second view.

        region_labels (P, R, H): the teacher's, of all images' regions, for each head.
        neighbours: regions of other images that stand in the second view for those that show an
        object; what no neighbour stands for goes by `partner_iou`.
        """
        self._bank = bank
        self._counts = np.minimum(
            bank.counts(), size.regions_per_image or bank.shape.regions_per_image
        )
        self._matched_counts = bank.matched_counts()
        if not (self._counts > 0).any():
            raise UserError(f"{bank.folder}: no image of the pool has a region.")
        self._images = images
        self._size = size
        self._partner_iou = partner_iou
        self._region_labels = region_labels
        self._neighbours = neighbours
        self._seed, self._processes = seed, processes

    def batches(self, start: int = 0) -> Generator[DiscoveryBatch, None, None]:
        """The batches from number `start` on."""
        pool = self._keys(self._images, self._counts, size=self._size.images, start=start, salt=0)
        labelled = self._keys(
            self._images[: self._bank.shape.num_labelled],
            self._matched_counts,
            size=self._size.labelled_images,
            start=start,
            salt=1,
        )
        for pool_keys, labelled_keys in zip(pool, labelled, strict=True):
            yield self._read(pool_keys, labelled_keys)

    def _keys(
        self,
        images: Sequence[ImageRecord],
        counts: np.ndarray,
        *,
        size: int,
        start: int,
        salt: int,
    ) -> Iterator[list[tuple[int, int]]]:
        if not (counts > 0).any():
            return itertools.repeat([])  # no labelled regions: every step has none
        return iter(
            TrainingBatches(
                images,
                batch_size=size,
                seed=2 * self._seed + salt,
                processes=self._processes,
                start_step=start,
                group_by_aspect=False,
                repeats=(counts > 0).astype(np.float64),
            )
        )

    def _read(
        self, pool_keys: list[tuple[int, int]], labelled_keys: list[tuple[int, int]]
    ) -> DiscoveryBatch:
        num_views = self._bank.shape.num_views
        first, second = [], []
        for index, seed in pool_keys:
            generator = np.random.default_rng(seed)
            view_a, view_b = generator.choice(num_views, 2, replace=False).tolist()
            first.append(self._bank.read(index, view_a, count=int(self._counts[index])))
            second.append(self._read_second(index, view_b, seed=seed, generator=generator))
        features = [torch.zeros(0, self._bank.shape.num_features, dtype=torch.float16)]
        labels = [torch.zeros(0, dtype=torch.int64)]
        for index, seed in labelled_keys:
            view = int(np.random.default_rng(seed).integers(num_views))
            count = int(self._matched_counts[index])
            image_features, image_labels = self._bank.read_matched(index, view, count=count)
            features.append(image_features)
            labels.append(image_labels)
        return DiscoveryBatch(
            views=(torch.cat(first).float(), torch.cat(second).float()),
            labelled=torch.cat(features).float(),
            labels=torch.cat(labels),
            targets=self._targets([index for index, _ in pool_keys]),
        )

    def _read_second(
        self, index: int, view: int, *, seed: int, generator: np.random.Generator
    ) -> Tensor:
        """(R, F) what stands for an image's regions in the second view."""
        count = int(self._counts[index])
        features = self._bank.read(index, view, count=count)
        if self._partner_iou is not None:
            boxes = self._bank.read_boxes(index, count=count)
            draw = torch.Generator().manual_seed(seed)
            features = features[draw_partners(boxes, min_iou=self._partner_iou, generator=draw)]
        if self._neighbours is not None:
            drawn = self._neighbours.draw(index, count=count, generator=generator)
            features[torch.from_numpy(drawn.rows)] = self._bank.read_regions(
                drawn.images, view, drawn.regions
            )
        return features

    def _targets(self, images: Sequence[int]) -> Tensor | None:
        if self._region_labels is None:
            return None
        rows = [self._region_labels[index, : self._counts[index]] for index in images]
        return torch.from_numpy(np.concatenate([self._region_labels[0, :0], *rows]))
