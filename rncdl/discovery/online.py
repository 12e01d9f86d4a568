"""Discovery as in the paper: each step runs the detector on fresh views."""

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from rncdl.config import DiscoverSettings, Settings
from rncdl.data.batch_loader import BatchLoader
from rncdl.data.batches import TrainingBatches, repeat_factors
from rncdl.data.viewed_images import Pool, ViewedImage
from rncdl.detector.losses import supervised_losses
from rncdl.detector.model import Detector
from rncdl.detector.training_steps import blank_sample, open_training_loader
from rncdl.discovery.extraction import (
    ExtractedRegions,
    choose_regions,
    extract_features,
)
from rncdl.discovery.feeding import DiscoveryBatch, batch_of_extracted
from rncdl.discovery.filling import region_choice, view_images
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.discovery.training import train_heads
from rncdl.training.processes import Processes, autocast, choose_precision


class OnlineFeed:
    """Batches of features made on the spot, endlessly; the same for the same seed and step.

    `with_gradients`: the features carry gradients into the detector, for the ablations that
    leave parts of it free.
    """

    can_prefetch = False  # the detector belongs to the thread that trains

    def __init__(
        self,
        detector: Detector,
        pool: Pool,
        *,
        settings: Settings,
        processes: Processes,
        with_gradients: bool = False,
    ) -> None:
        self._detector = detector.to(processes.device)
        self._pool = pool
        self._settings = settings
        self._processes = processes
        self._with_gradients = with_gradients
        self._choice = region_choice(settings)

    def batches(self, start: int = 0) -> Generator[DiscoveryBatch, None, None]:
        """The batches from number `start` on."""
        discover = self._settings.discover
        pool = self._load(self._batches(discover.batch_images, start=start, salt=0), num_views=2)
        labelled = self._load(
            self._batches(discover.labelled_images, start=start, salt=1), num_views=1
        )
        for step, (pool_images, labelled_images) in enumerate(
            zip(pool, labelled, strict=True), start
        ):
            yield batch_of_extracted(
                self._extract(pool_images.samples),
                self._extract(labelled_images.samples),
                partner_iou=discover.partner_iou,
                seed=step * self._processes.count + self._processes.rank,
            )

    def _batches(self, size: int, *, start: int, salt: int) -> TrainingBatches:
        """Keys of pool images (salt 0), or of labelled ones that have annotations (salt 1)."""
        labels = self._pool.labels
        images = self._pool.images if salt == 0 else labels.annotations.images
        return TrainingBatches(
            images,
            batch_size=size,
            seed=2 * self._settings.seed + salt,
            processes=self._processes,
            start_step=start,
            repeats=None if salt == 0 else repeat_factors(labels, 0.0),
        )

    def _load(self, batches: TrainingBatches, *, num_views: int) -> BatchLoader[ViewedImage]:
        dataset = view_images(self._pool, self._settings, num_views=num_views)
        return BatchLoader(dataset, batches, workers=self._settings.data.workers)

    def _extract(self, images: Sequence[ViewedImage]) -> list[ExtractedRegions]:
        device = self._processes.device
        precision = choose_precision(self._settings.discover.precision, device)
        mode = self._detector.training
        with autocast(device, precision):
            self._detector.eval()
            chosen, maps = choose_regions(self._detector, images, self._choice)
            self._detector.train(mode)
            if self._with_gradients:
                return extract_features(self._detector, images, chosen)
            with torch.no_grad():
                return extract_features(self._detector, images, chosen, plain_maps=maps)


def train_heads_online(
    heads: DiscoveryHeads,
    detector: Detector,
    pool: Pool,
    *,
    settings: Settings,
    folder: Path,
    processes: Processes,
) -> bool:
    """Train `heads` on fresh views; True when the settings had the detector trained as well.

    all_but_heads: the paper's way. roi_heads_free and nothing: its ablations, in which the
    gradient of the classification reaches the box head or the whole detector. single_phase: the
    detector's own losses are added, from an untrained detector.
    """
    discover = settings.discover
    free = _free_parts(detector, discover)
    feed = OnlineFeed(
        detector, pool, settings=settings, processes=processes, with_gradients=bool(free)
    )
    own_losses = None
    if discover.single_phase:
        own_losses = partial(
            _detector_losses, detector, pool, settings=settings, processes=processes
        )
    train_heads(
        heads,
        feed,
        settings=settings,
        folder=folder,
        processes=processes,
        also_trained=free,
        extra_losses=own_losses,
    )
    detector.eval()
    return bool(free)


def _free_parts(detector: Detector, discover: DiscoverSettings) -> list[nn.Module]:
    """The parts that are trained besides the heads; the rest of the detector is frozen."""
    if discover.single_phase or discover.frozen == "nothing":
        detector.train()
        return [detector]
    detector.eval().requires_grad_(False)
    if discover.frozen == "roi_heads_free":
        detector.box_head.requires_grad_(True)
        return [detector.box_head]
    return []


def _detector_losses(
    detector: Detector, pool: Pool, start: int, *, settings: Settings, processes: Processes
) -> Iterator[Tensor]:
    """The sum of the detector's supervised losses on a labelled batch, for each step from `start`.

    A process that can read none of its images takes its pass all the same, with a loss of zero.
    """
    loader = open_training_loader(
        pool.labels,
        with_masks=detector.mask_head is not None,
        settings=settings,
        processes=processes,
        first_step=start,
    )
    for batch in loader:
        terms = supervised_losses(detector, batch.samples or [blank_sample()])
        total = torch.stack(list(terms.values())).sum()
        yield total if batch.samples else 0 * total
