"""Datasets whose items are samples, ready for the network.

Items are asked for by `(image_index, item_seed)`. Everything random about an item comes from its
seed, so that it is the same whichever process loads it and whenever.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from rncdl.classes import KnownLabels
from rncdl.data.colours import STRENGTHS
from rncdl.data.images import read_image
from rncdl.data.masks import decode_masks
from rncdl.data.records import ImageRecord
from rncdl.data.samples import Sample, unlabelled_sample
from rncdl.data.transforms import augment_sample, resize_sample
from rncdl.data.unlabelled_objects import UnlabelledObjects
from rncdl.data.variation import Variation
from rncdl.errors import UserError

ItemKey = tuple[int, int]
"""(image_index, item_seed)"""


@dataclass(frozen=True)
class BadImage:
    """What stands in the place of a sample that could not be loaded."""

    path: str
    reason: str


class ImageReader:
    """Reads images, and keeps decoded ones in memory while they fit.

    The first ones stay: an epoch visits every image once, so that replacing the oldest would
    replace each one just before its turn.
    """

    def __init__(self, cache_mb: int) -> None:
        self._bytes_left = cache_mb * 2**20
        self._kept: dict[Path, Tensor] = {}

    def read(self, image: ImageRecord) -> Tensor:
        """(3, H, W) uint8, the caller's own to change."""
        kept = self._kept.get(image.path)
        if kept is not None:
            return kept.clone()
        pixels = read_image(image.path, (image.height, image.width))
        if pixels.nbytes <= self._bytes_left:
            self._bytes_left -= pixels.nbytes
            # A copy: torch moves what a worker hands over into shared memory, with an open file
            # for each.
            self._kept[image.path] = pixels.clone()
        return pixels


class LabelledImages(Dataset[Sample | BadImage]):
    """Training samples: known classes only, randomly resized, flipped and recoloured, crowds left
    out. Objects that nobody labelled, where given, join the annotations.
    """

    def __init__(
        self,
        labels: KnownLabels,
        variation: Variation,
        *,
        with_masks: bool,
        on_bad_image: Literal["error", "skip"] = "error",
        cache_mb: int = 0,
        objects: UnlabelledObjects | None = None,
    ) -> None:
        self._labels = labels
        self._objects = objects
        self._variation = variation
        self._with_masks = with_masks
        self._skips_bad_images = on_bad_image == "skip"
        self._reader = ImageReader(cache_mb)

    def __len__(self) -> int:
        return len(self._labels.annotations.images)

    def __getitem__(self, key: ItemKey) -> Sample | BadImage:
        image_index, item_seed = key
        image = self._labels.annotations.images[image_index]
        try:
            sample = self._with_objects(self._load(image, image_index))
        except UserError as error:
            if self._skips_bad_images:
                return BadImage(str(image.path), str(error))
            raise
        return augment_sample(
            sample,
            np.random.default_rng(item_seed),
            short_sides_px=self._variation.short_sides_px,
            long_side_px=self._variation.long_side_px,
            flip=self._variation.flip,
            colours=STRENGTHS[self._variation.strength],
        )

    def _load(self, image: ImageRecord, image_index: int) -> Sample:
        annotations = self._labels.annotations
        all_rows = annotations.rows_of_image(image_index)
        rows = np.arange(all_rows.start, all_rows.stop)[~annotations.is_crowd[all_rows]]
        return Sample(
            image=self._reader.read(image),
            boxes_xyxy=torch.from_numpy(annotations.boxes_xyxy[rows].astype(np.float32)),
            labels=torch.from_numpy(self._labels.labels[rows]),
            masks=self._load_masks(image, rows) if self._with_masks else None,
            image_index=image_index,
            path=str(image.path),
            original_size=(image.height, image.width),
        )

    def _with_objects(self, sample: Sample) -> Sample:
        """The sample, at its own size, with the objects that nobody labelled."""
        objects = self._objects
        if objects is None:
            return sample
        rows = objects.rows_of_image(sample.image_index)
        boxes = torch.from_numpy(objects.boxes_xyxy[rows])
        masks = sample.masks
        if masks is not None:
            raw = [objects.segmentations[row] for row in range(rows.start, rows.stop)]
            found = decode_masks([one for one in raw if one is not None], *sample.original_size)
            masks = torch.cat([masks, torch.from_numpy(found)])
        return replace(
            sample,
            boxes_xyxy=torch.cat([sample.boxes_xyxy, boxes]),
            labels=torch.cat([sample.labels, torch.full((len(boxes),), objects.label)]),
            masks=masks,
        )

    def _load_masks(self, image: ImageRecord, rows: np.ndarray) -> Tensor:
        segmentations = [self._labels.annotations.segmentations[row] for row in rows.tolist()]
        given = [segmentation for segmentation in segmentations if segmentation is not None]
        if len(given) < len(rows):
            raise UserError(
                f"{image.path}: {len(rows) - len(given)} of its {len(rows)} annotations have no "
                "mask. Train without masks (detector.masks=off) or add them."
            )
        try:
            return torch.from_numpy(decode_masks(given, image.height, image.width))
        except UserError as error:
            raise UserError(f"{image.path}: an annotation's {error}.") from error


class PlainImages(Dataset[Sample | BadImage]):
    """Images alone, resized in one fixed way: for evaluation and for unlabelled images."""

    def __init__(
        self,
        images: Sequence[ImageRecord],
        *,
        short_side_px: int,
        long_side_px: int,
        on_bad_image: Literal["error", "skip"] = "error",
        cache_mb: int = 0,
    ) -> None:
        self._images = images
        self._short_side_px = short_side_px
        self._long_side_px = long_side_px
        self._skips_bad_images = on_bad_image == "skip"
        self._reader = ImageReader(cache_mb)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, key: ItemKey) -> Sample | BadImage:
        image_index, _ = key
        image = self._images[image_index]
        try:
            pixels = self._reader.read(image)
        except UserError as error:
            if self._skips_bad_images:
                return BadImage(str(image.path), str(error))
            raise
        sample = unlabelled_sample(pixels, image_index=image_index, path=str(image.path))
        return resize_sample(
            sample, short_side_px=self._short_side_px, long_side_px=self._long_side_px
        )
