"""Pool images in several views at once, for discovery."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms.v2 import functional as geometry

from rncdl.classes import KnownLabels
from rncdl.data.datasets import BadImage, ImageReader, ItemKey
from rncdl.data.records import ImageRecord
from rncdl.data.transforms import resized_size
from rncdl.data.variation import Variation
from rncdl.data.views import View, draw_view
from rncdl.errors import UserError


@dataclass
class ViewedImage:
    """One image, decoded once: plain for its regions, in random views for their features.

    `boxes_xyxy` and `labels` are its known annotations, n of them; none for unlabelled images.
    """

    image_index: int
    path: str
    plain: Tensor
    """(3, h, w) uint8 at the evaluation's size"""
    plain_scale_xy: tuple[float, float]
    """pixels of `plain` per pixel of the image on disk"""
    views: list[View]
    boxes_xyxy: Tensor
    """(n, 4) float32, pixels of the image on disk"""
    labels: Tensor
    """(n,) int64 in 0..K-1"""

    def is_plain(self, view: View) -> bool:
        """Whether a view shows nothing but `plain`."""
        return self.plain.shape == view.image.shape and not (view.flipped or view.distorted)


class Pool:
    """The images discovery looks at: the labelled ones first, then the unlabelled ones.

    An unlabelled image that is also a labelled one is left out.
    """

    def __init__(self, labels: KnownLabels, unlabelled: Sequence[ImageRecord]) -> None:
        self.labels = labels
        taken = {image.path for image in labels.annotations.images}
        fresh = [image for image in unlabelled if image.path not in taken]
        self.images: tuple[ImageRecord, ...] = (*labels.annotations.images, *fresh)

    @property
    def num_labelled(self) -> int:
        """Images before this position are labelled."""
        return len(self.labels.annotations.images)

    def __len__(self) -> int:
        return len(self.images)

    def annotations_of(self, index: int) -> tuple[Tensor, Tensor]:
        """Boxes (n, 4) and labels (n,) of a pool image, crowds left out."""
        if index >= self.num_labelled:
            return torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)
        annotations = self.labels.annotations
        rows = annotations.rows_of_image(index)
        usable = ~annotations.is_crowd[rows]
        boxes = torch.from_numpy(annotations.boxes_xyxy[rows][usable]).float()
        return boxes, torch.from_numpy(self.labels.labels[rows][usable])


class ViewedImages(Dataset[ViewedImage | BadImage]):
    """Pool images in `num_views` views each; the item's seed decides all of them.

    Views whose colours are left alone differ by their sides and by mirroring only, so every other
    one of them is mirrored.
    """

    def __init__(
        self,
        pool: Pool,
        variation: Variation,
        *,
        num_views: int,
        plain_short_side_px: int,
        on_bad_image: Literal["error", "skip"] = "error",
        cache_mb: int = 0,
    ) -> None:
        self._pool = pool
        self._variation = variation
        self._num_views = num_views
        self._plain_short_side_px = plain_short_side_px
        self._skips_bad_images = on_bad_image == "skip"
        self._reader = ImageReader(cache_mb)

    def __len__(self) -> int:
        return len(self._pool)

    def __getitem__(self, key: ItemKey) -> ViewedImage | BadImage:
        index, seed = key
        variation = self._variation
        record = self._pool.images[index]
        try:
            image = self._reader.read(record)
        except UserError as error:
            if self._skips_bad_images:
                return BadImage(str(record.path), str(error))
            raise
        generator = torch.Generator().manual_seed(seed)
        views = [
            draw_view(
                image,
                generator,
                strength=variation.strength,
                short_sides_px=variation.short_sides_px,
                long_side_px=variation.long_side_px,
                flip_chance=self._flip_chance(number),
            )
            for number in range(self._num_views)
        ]
        height, width = image.shape[-2:]
        size = resized_size(height, width, self._plain_short_side_px, variation.long_side_px)
        plain = image
        if size != (height, width):
            plain = geometry.resize_image(image, list(size), antialias=True)
        boxes, labels = self._pool.annotations_of(index)
        return ViewedImage(
            image_index=index,
            path=str(record.path),
            plain=plain,
            plain_scale_xy=(size[1] / width, size[0] / height),
            views=views,
            boxes_xyxy=boxes,
            labels=labels,
        )

    def _flip_chance(self, number: int) -> float:
        """Of the view that is the `number`th of its image."""
        flip = self._variation.flip
        if self._variation.strength != "none" or flip == 0:
            return flip
        return float(number % 2)
