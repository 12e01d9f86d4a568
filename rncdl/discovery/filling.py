"""Making the bank: every pool image once, by all processes together, from where it stopped."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rncdl.config import Settings
from rncdl.data.batch_loader import Batch, BatchLoader
from rncdl.data.datasets import BadImage
from rncdl.data.viewed_images import Pool, ViewedImage, ViewedImages
from rncdl.detector.model import Detector
from rncdl.discovery.bank import MISSING, Bank, BankShape, Finished
from rncdl.discovery.extraction import (
    ExtractedRegions,
    RegionChoice,
    choose_regions,
    extract_features,
)
from rncdl.discovery.recipe import BankRecipe
from rncdl.origins import digest
from rncdl.run_folder import RunFolder
from rncdl.training.processes import Processes, autocast, choose_precision
from rncdl.training.progress import ProgressLine, say

FLUSH_EVERY_S = 10.0
"""A killed process loses no more work than this, and the batch under way."""


def region_choice(settings: Settings) -> RegionChoice:
    """Which regions discovery looks at, from the settings."""
    return BankRecipe.from_settings(settings).region_choice()


def view_images(pool: Pool, settings: Settings, *, num_views: int) -> ViewedImages:
    """The pool as a dataset of views, from the settings."""
    return BankRecipe.from_settings(settings).view_images(
        pool, on_bad_image=settings.data.on_bad_image, num_views=num_views
    )


def bank_origin(run: RunFolder, pool: Pool, settings: Settings) -> dict[str, Any]:
    """Everything a bank depends on: a bank with another origin must not be used."""
    images = [[str(i.path), i.height, i.width] for i in pool.images]
    annotations = pool.labels.annotations
    return {
        "detector": digest(run.detector_file.read_bytes()),
        "images": digest(json.dumps(images).encode()),
        "labels": digest(
            annotations.boxes_xyxy.tobytes(),
            annotations.image_index.tobytes(),
            pool.labels.labels.tobytes(),
        ),
        **BankRecipe.from_settings(settings).noted(),
    }


def require_origin(bank: Bank, run: RunFolder, pool: Pool, settings: Settings) -> None:
    """Refuse a bank that was not made by this run's detector, from this pool, as the settings say.

    What a bank of an earlier version has not noted, it was made with as the run's settings say.
    """
    bank.require_origin(
        bank_origin(run, pool, settings),
        if_unnoted=BankRecipe.from_settings(run.settings()).noted(),
    )


@dataclass(frozen=True)
class Filling:
    """What a bank is filled with: its shape and origin, and what is made of a batch of images."""

    title: str
    shape: BankShape
    origin: Mapping[str, Any]
    dataset: ViewedImages
    item_seed: Callable[[int], int]
    """of an image's views, by its place in the pool"""
    extract: Callable[[Sequence[ViewedImage]], list[ExtractedRegions]]
    if_unnoted: Mapping[str, Any] = field(default_factory=dict)
    """what to believe of a bank that did not note everything when it was made"""


def open_bank(
    folder: Path,
    detector: Detector,
    pool: Pool,
    *,
    run: RunFolder,
    settings: Settings,
    processes: Processes,
) -> Bank:
    """The finished bank of this run's detector and pool: made, completed or reused as it is."""
    recipe = BankRecipe.from_settings(settings)
    detector.to(processes.device).eval()
    filling = Filling(
        title="bank",
        shape=BankShape(
            num_images=len(pool),
            num_labelled=pool.num_labelled,
            num_views=settings.discover.views,
            regions_per_image=settings.discover.regions_per_image,
            matched_per_image=settings.discover.matched_regions_per_image,
            num_features=settings.detector.box_head_width,
        ),
        origin=bank_origin(run, pool, settings),
        dataset=recipe.view_images(pool, on_bad_image=settings.data.on_bad_image),
        item_seed=recipe.item_seed,
        extract=lambda images: _extract(detector, images, recipe),
        if_unnoted=BankRecipe.from_settings(run.settings()).noted(),
    )
    return fill_bank(folder, filling, pool, settings=settings, processes=processes)


def fill_bank(
    folder: Path, filling: Filling, pool: Pool, *, settings: Settings, processes: Processes
) -> Bank:
    """The finished bank: made, completed or reused as it is, by all processes together."""
    # One process decides what is missing, and its errors are everybody's.
    missing = processes.from_main(partial(_find_missing, folder, filling))
    if len(missing):
        own = share_batches(
            missing, pool, batch_size=settings.predict.batch_size, processes=processes
        )
        batches = [[(index, filling.item_seed(index)) for index in batch] for batch in own]
        if processes.is_main and batches:
            per_batch = _time_batch(filling.extract, [filling.dataset[key] for key in batches[0]])
            say(f"Extracting takes about {per_batch * len(batches) / 60:.1f} minutes.")
        loader = BatchLoader(filling.dataset, batches, workers=settings.data.workers)
        bank = Bank(folder, writable=True, rank=processes.rank)
        _fill(bank, filling, pool, loader, missing=missing, processes=processes)
        finished = processes.gather(bank.finished)
        processes.from_main(partial(_save_counts, bank, finished))
        bank.close()
    # Opened after all have written and closed: on a network file system that is when all see it.
    processes.wait_for_all()
    return Bank(folder)


def share_batches(
    missing: np.ndarray, pool: Pool, *, batch_size: int, processes: Processes
) -> list[list[int]]:
    """This process's batches of places in the pool: all those that hold a missing image.

    Batches are cut from the pool and not from what is missing of it: an image has the same
    neighbours, and so the same padding and features, however often the filling was interrupted
    and however many processes share it. Each process has a range of the batches with labelled
    images, whose annotations take longer, and a range of the others.
    """
    numbers = np.unique(missing // batch_size)
    is_labelled = numbers * batch_size < pool.num_labelled
    rank, count = processes.rank, processes.count
    first = _range_of(numbers[is_labelled], part=rank, count=count)
    # Handed out backwards, so that where the two kinds meet both ranges are the last process's.
    second = _range_of(numbers[~is_labelled], part=count - 1 - rank, count=count)
    own = np.concatenate([first, second])
    return [
        list(range(number * batch_size, min((number + 1) * batch_size, len(pool))))
        for number in own.tolist()
    ]


def _range_of(numbers: np.ndarray, *, part: int, count: int) -> np.ndarray:
    """One of `count` parts: the numbers from one cut to the next.

    Cuts are at multiples of a power of two, as large as leaves all processes nearly the same work
    (within an eighth): slots at such places begin with a page of the file, and no two processes
    write into the same page.
    """
    if not len(numbers):
        return numbers
    grain = 2 ** max(0, (len(numbers) // (8 * count)).bit_length() - 1)
    ideal = numbers[len(numbers) * np.arange(count) // count]
    cuts = [*np.searchsorted(numbers, ideal // grain * grain), len(numbers)]
    return numbers[cuts[part] : cuts[part + 1]]


def _find_missing(folder: Path, filling: Filling) -> np.ndarray:
    """Places in the pool of the images that the bank does not hold; there is a bank then."""
    if not Bank.exists(folder):
        shape = filling.shape
        say(
            f"{filling.title.capitalize()}: {shape.num_images} images × {shape.num_views} views, "
            f"at most {shape.num_bytes / 1e9:.2f} GB in {folder}"
        )
        Bank.create(folder, shape, filling.origin)
    bank = Bank(folder)
    bank.require_origin(filling.origin, if_unnoted=filling.if_unnoted)
    if not bank.is_settled:
        bank.save_counts()
    missing = np.flatnonzero(bank.counts() == MISSING)
    bank.close()
    return missing


def _fill(
    bank: Bank,
    filling: Filling,
    pool: Pool,
    batches: Iterable[Batch[ViewedImage]],
    *,
    missing: np.ndarray,
    processes: Processes,
) -> None:
    """Extract the batches, and write those of their images that are missing."""
    wanted = set(missing.tolist())
    position = {str(image.path): index for index, image in enumerate(pool.images)}
    flushed = time.monotonic()
    with ProgressLine(
        filling.title,
        len(pool),
        unit="images",
        start=len(pool) - len(wanted),
        shown=processes.is_main,
    ) as progress:
        try:
            for batch in batches:
                before = len(bank.finished)
                for bad in batch.bad_images:
                    if position[bad.path] in wanted:
                        bank.mark_unreadable(position[bad.path])
                        say(f"passed over {bad.path}: {bad.reason}")
                if batch.samples:
                    extracted = filling.extract(batch.samples)
                    for image, regions in zip(batch.samples, extracted, strict=True):
                        if image.image_index in wanted:
                            bank.write(image.image_index, regions)
                progress.advance(processes.count * (len(bank.finished) - before))
                if time.monotonic() - flushed > FLUSH_EVERY_S:
                    bank.flush()
                    flushed = time.monotonic()
        finally:
            bank.flush()


def _save_counts(bank: Bank, finished: Sequence[Sequence[Finished]]) -> None:
    for share in finished:
        bank.count(share)
    bank.save_counts()


@torch.inference_mode()
def _extract(
    detector: Detector, images: Sequence[ViewedImage], recipe: BankRecipe
) -> list[ExtractedRegions]:
    precision = choose_precision(recipe.precision, detector.device)
    with autocast(detector.device, precision):
        chosen, maps = choose_regions(detector, images, recipe.region_choice())
        return extract_features(detector, images, chosen, plain_maps=maps)


def time_extraction(
    detector: Detector, items: Sequence[ViewedImage | BadImage], recipe: BankRecipe
) -> float:
    """Seconds that a batch of the bank takes."""
    return _time_batch(lambda images: _extract(detector, images, recipe), items)


def _time_batch(
    extract: Callable[[Sequence[ViewedImage]], object], items: Sequence[ViewedImage | BadImage]
) -> float:
    """Seconds that a batch takes, from the second of two tries: the first one warms up."""
    images = [item for item in items if not isinstance(item, BadImage)]
    seconds = 0.0
    for _ in range(2 if images else 0):
        began = time.perf_counter()
        extract(images)
        seconds = time.perf_counter() - began
    return seconds
