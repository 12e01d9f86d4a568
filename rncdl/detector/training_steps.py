"""What every step of a detector's training does: take a batch, cut it, find its gradients."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

from rncdl.classes import KnownLabels
from rncdl.config import Settings, TrainSettings
from rncdl.data.batch_loader import Batch, BatchLoader
from rncdl.data.batches import TrainingBatches, repeat_factors
from rncdl.data.datasets import BadImage, LabelledImages
from rncdl.data.samples import Sample, unlabelled_sample
from rncdl.data.unlabelled_objects import UnlabelledObjects
from rncdl.data.variation import Variation
from rncdl.detector.map_cache import MapCache, SamplesWithMaps
from rncdl.errors import UserError
from rncdl.run_folder import RunFolder
from rncdl.training.meter import BadStep
from rncdl.training.processes import Processes, autocast

_BLANK_SIDE_PX = 128
"""Enough for BatchNorm to see more than one place on the coarsest map."""


def open_training_loader(
    labels: KnownLabels,
    *,
    with_masks: bool,
    settings: Settings,
    processes: Processes,
    first_step: int,
    cache: MapCache | None = None,
    objects: UnlabelledObjects | None = None,
) -> BatchLoader[Sample]:
    """This process's part of each step's batch, from `first_step` on, with maps from the cache.

    `objects`: those that nobody labelled, to be learned from too.
    """
    data = settings.data
    dataset: Dataset[Sample | BadImage] = LabelledImages(
        labels,
        Variation(data.short_sides_px, data.long_side_px, data.flip, settings.train.augmentation),
        with_masks=with_masks,
        on_bad_image=data.on_bad_image,
        cache_mb=data.cache_mb,
        objects=objects,
    )
    if cache is not None:
        dataset = SamplesWithMaps(dataset, cache)
    processes.share_of(settings.train.batch_size, what="train.batch_size")
    batches = TrainingBatches(
        labels.annotations.images,
        batch_size=settings.train.batch_size,
        seed=settings.seed,
        processes=processes,
        start_step=first_step,
        repeats=repeat_factors(labels, data.repeat_threshold),
    )
    return BatchLoader(dataset, batches, workers=data.workers)


def next_samples(
    batches: Iterator[Batch[Sample]], settings: Settings, run: RunFolder, processes: Processes
) -> tuple[list[Sample], int]:
    """This process's samples of the next step, and how many images all of them could read.

    Images that were passed over are recorded. Where nobody could read any, all stop.
    """
    batch = next(batches)
    if settings.data.on_bad_image == "error":
        return batch.samples, settings.train.batch_size
    num_readable = processes.total(len(batch.samples))
    if num_readable < settings.train.batch_size:
        bad_images = [bad for share in processes.gather(batch.bad_images) for bad in share]
        processes.from_main(partial(run.record_skipped_images, bad_images))
    if not num_readable:
        raise UserError(
            f"None of a whole batch's images can be read; see {run.skipped_images_file}."
        )
    return batch.samples, num_readable


def cut_batch(
    samples: list[Sample], train: TrainSettings, processes: Processes
) -> list[list[Sample]]:
    """The parts of a process's samples: as many in every process, whatever it could read.

    Where images are missing, the last parts may be short or empty.
    """
    full = train.batch_size // processes.count
    size = -(-full // train.accumulate)
    return [samples[start : start + size] for start in range(0, full, size)]


def accumulate_gradients(
    model: nn.Module,
    parts: Sequence[list[Sample]],
    *,
    num_images: float,
    scaler: torch.amp.GradScaler,
    precision: torch.dtype,
) -> dict[str, Tensor]:
    """Gradients of the batch's mean loss, part by part; returns the mean of each loss term.

    num_images: how many a process has on average. Every part takes its pass, as other processes
    may wait in it for this one: an empty part with an image that counts for nothing.
    """
    stand_in = next(chain.from_iterable(parts), None) or blank_sample()
    device = next(model.parameters()).device
    totals: dict[str, Tensor] = {}
    for index, part in enumerate(parts):
        is_last = index == len(parts) - 1
        defer = (
            model.no_sync()
            if isinstance(model, DistributedDataParallel) and not is_last
            else nullcontext()
        )
        with defer:
            with autocast(device, precision):
                losses: dict[str, Tensor] = model(part or [stand_in])
            share = len(part) / num_images
            total = torch.stack(list(losses.values())).sum()
            scaler.scale(total * share).backward()
        for name, loss in losses.items():
            totals[name] = totals.get(name, 0) + loss.detach() * share
    return totals


def blank_sample() -> Sample:
    """A grey image without annotations."""
    grey = torch.full((3, _BLANK_SIDE_PX, _BLANK_SIDE_PX), 128, dtype=torch.uint8)
    return unlabelled_sample(grey, image_index=-1, path="")


def require_finite(bad: BadStep | None, step: int) -> None:
    """An error that names the images, where a step before `step` had a loss that is none."""
    if bad is not None:
        images = "\n  ".join(bad.about)
        raise UserError(
            f"Step {step - bad.steps_ago}: the loss is not finite ({', '.join(bad.names)}). The "
            "last checkpoint is from before it; try a lower train.rate or a longer "
            f"train.warmup_steps, or look at the images of this batch:\n  {images}"
        )
