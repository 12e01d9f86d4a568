"""What a dataset file holds, column by column, whichever format it came from."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rncdl.data.segmentations import Segmentations


@dataclass(frozen=True, slots=True)
class Category:
    """One class of a dataset file. `id` is the file's own number and means nothing elsewhere."""

    id: int
    name: str
    synset: str | None = None
    frequency: str | None = None
    """LVIS: "r" rare, "c" common, "f" frequent."""


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """One image of a dataset: where it is, its size, and LVIS's federated lists where given."""

    id: int
    path: Path
    height: int
    width: int
    neg_category_ids: tuple[int, ...] = ()
    not_exhaustive_category_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class AnnotationSet:
    """A dataset in columns. Annotations are sorted by image; A annotations, I images.

    Boxes are clipped to their image and have an area above zero: the loader has seen to it.
    """

    images: tuple[ImageRecord, ...]
    categories: tuple[Category, ...]
    annotation_ids: np.ndarray
    """(A,) int64"""
    image_index: np.ndarray
    """(A,) int64, position in `images`, ascending"""
    category_ids: np.ndarray
    """(A,) int64, the file's own ids"""
    boxes_xyxy: np.ndarray
    """(A, 4) float64, pixels"""
    areas: np.ndarray
    """(A,) float64, the file's `area` (the box's where the file has none)"""
    is_crowd: np.ndarray
    """(A,) bool"""
    segmentations: Sequence[bytes | None] = field(repr=False)
    """(A,) raw JSON of polygons or RLE, None where there is only a box; packed by the loader"""
    is_federated: bool = False
    """True when the file carries LVIS's negative and not-exhaustive lists."""

    @property
    def has_masks(self) -> bool:
        """True when every annotation has a mask (and there is at least one)."""
        return len(self.segmentations) > 0 and None not in self.segmentations

    def rows_of_image(self, index: int) -> slice:
        """Rows of the annotations of `images[index]`."""
        start, stop = np.searchsorted(self.image_index, [index, index + 1])
        return slice(int(start), int(stop))

    def take(
        self,
        rows: np.ndarray,
        *,
        images: tuple[ImageRecord, ...] | None = None,
        categories: tuple[Category, ...] | None = None,
    ) -> "AnnotationSet":
        """The annotations of ascending `rows` alone; images and categories stay unless given."""
        return AnnotationSet(
            images=self.images if images is None else images,
            categories=self.categories if categories is None else categories,
            annotation_ids=self.annotation_ids[rows],
            image_index=self.image_index[rows],
            category_ids=self.category_ids[rows],
            boxes_xyxy=self.boxes_xyxy[rows],
            areas=self.areas[rows],
            is_crowd=self.is_crowd[rows],
            segmentations=Segmentations.pack(self.segmentations).take(rows).compact(),
            is_federated=self.is_federated,
        )
