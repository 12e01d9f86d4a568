"""Making the bank: every pool image once, by all processes together, from where it stopped."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rncdl.config import Settings
from rncdl.data.datasets import BadImage
from rncdl.data.loading import BatchLoader
from rncdl.data.viewed_images import Pool, ViewedImage, ViewedImages
from rncdl.detector.model import Detector
from rncdl.discovery.bank import MISSING, Bank, BankShape
from rncdl.discovery.extraction import (
    ExtractedRegions,
    RegionChoice,
    choose_regions,
    extract_features,
)
from rncdl.origins import digest
from rncdl.training.processes import Processes, autocast, choose_precision
from rncdl.training.progress import ProgressLine, say


def region_choice(settings: Settings) -> RegionChoice:
    """Which regions discovery looks at, from the settings."""
    discover, detector = settings.discover, settings.detector
    return RegionChoice(
        per_image=discover.regions_per_image,
        nms=discover.region_nms,
        matched_per_image=discover.matched_regions_per_image,
        matched_iou=detector.roi_positive_iou,
        before_nms=settings.predict.proposals_before_nms,
        matched_nms=detector.proposal_nms,
        matched_candidates=detector.proposals_after_nms,
    )


def view_images(pool: Pool, settings: Settings, *, num_views: int) -> ViewedImages:
    """The pool as a dataset of views, from the settings."""
    data = settings.data
    return ViewedImages(
        pool,
        num_views=num_views,
        strength=settings.discover.augmentation,
        short_sides_px=data.short_sides_px,
        long_side_px=data.long_side_px,
        plain_short_side_px=data.eval_short_side_px,
        flip=data.flip,
        on_bad_image=data.on_bad_image,
    )


def bank_origin(detector_file: Path, pool: Pool, settings: Settings) -> dict[str, Any]:
    """Everything a bank depends on: a bank with another origin must not be used."""
    images = [[str(i.path), i.height, i.width] for i in pool.images]
    annotations = pool.labels.annotations
    discover, data = settings.discover, settings.data
    return {
        "detector": digest(detector_file.read_bytes()),
        "images": digest(json.dumps(images).encode()),
        "labels": digest(
            annotations.boxes_xyxy.tobytes(),
            annotations.image_index.tobytes(),
            pool.labels.labels.tobytes(),
        ),
        "seed": settings.seed,
        "views": discover.views,
        "augmentation": discover.augmentation,
        "regions_per_image": discover.regions_per_image,
        "region_nms": discover.region_nms,
        "matched_regions_per_image": discover.matched_regions_per_image,
        "short_sides_px": list(data.short_sides_px),
        "long_side_px": data.long_side_px,
        "eval_short_side_px": data.eval_short_side_px,
        "flip": data.flip,
        "proposals_before_nms": settings.predict.proposals_before_nms,
    }


def open_bank(
    folder: Path,
    detector: Detector,
    pool: Pool,
    *,
    origin: dict[str, Any],
    settings: Settings,
    processes: Processes,
) -> Bank:
    """The finished bank of this detector and pool: made, completed or reused as it is."""
    if processes.is_main and not Bank.exists(folder):
        shape = BankShape(
            num_images=len(pool),
            num_labelled=pool.num_labelled,
            num_views=settings.discover.views,
            regions_per_image=settings.discover.regions_per_image,
            matched_per_image=settings.discover.matched_regions_per_image,
            num_features=settings.detector.box_head_width,
        )
        say(
            f"Bank: {shape.num_images} images × {shape.num_views} views, at most "
            f"{shape.num_bytes / 1e9:.2f} GB in {folder}"
        )
        Bank.create(folder, shape, origin)
    processes.wait_for_all()
    bank = Bank(folder, writable=True)
    bank.require_origin(origin)
    fill_bank(bank, detector, pool, settings=settings, processes=processes)
    return bank


def fill_bank(
    bank: Bank, detector: Detector, pool: Pool, *, settings: Settings, processes: Processes
) -> None:
    """Extract every image the bank does not hold yet; each process takes its share."""
    missing = np.flatnonzero(bank.counts() == MISSING)
    processes.wait_for_all()  # nobody writes before everybody has seen what is missing
    if not len(missing):
        return
    detector.to(processes.device).eval()
    dataset = view_images(pool, settings, num_views=bank.shape.num_views)
    # An image's views depend on its place in the pool alone: a resumed bank equals any other.
    own = missing[processes.rank :: processes.count].tolist()
    keys = [(index, settings.seed * 1_000_003 + index) for index in own]
    size = settings.predict.batch_size
    if processes.is_main:
        per_image = _probe(detector, [dataset[key] for key in keys[:size]], settings)
        say(f"Extracting takes about {per_image * len(keys) / 60:.1f} minutes.")
    batches = [keys[start : start + size] for start in range(0, len(keys), size)]
    position = {str(image.path): index for index, image in enumerate(pool.images)}
    with ProgressLine(
        "bank",
        bank.shape.num_images,
        unit="images",
        start=bank.shape.num_images - len(missing),
        shown=processes.is_main,
    ) as progress:
        for batch in BatchLoader(dataset, batches, workers=settings.data.workers):
            for bad in batch.bad_images:
                bank.mark_unreadable(position[bad.path])
                say(f"passed over {bad.path}: {bad.reason}")
            if batch.samples:
                extracted = _extract(detector, batch.samples, settings)
                for image, regions in zip(batch.samples, extracted, strict=True):
                    bank.write(image.image_index, regions)
            progress.advance(processes.count * (len(batch.samples) + len(batch.bad_images)))
    processes.wait_for_all()


@torch.inference_mode()
def _extract(
    detector: Detector, images: Sequence[ViewedImage], settings: Settings
) -> list[ExtractedRegions]:
    precision = choose_precision(settings.train.precision, detector.device)
    with autocast(detector.device, precision):
        chosen, maps = choose_regions(detector, images, region_choice(settings))
        return extract_features(detector, images, chosen, plain_maps=maps)


def _probe(
    detector: Detector, items: Sequence[ViewedImage | BadImage], settings: Settings
) -> float:
    """Seconds that an image takes, from the second of two tries: the first one warms up."""
    images = [item for item in items if not isinstance(item, BadImage)]
    seconds = 0.0
    for _ in range(2 if images else 0):
        began = time.perf_counter()
        _extract(detector, images, settings)
        seconds = time.perf_counter() - began
    return seconds / max(1, len(images))
