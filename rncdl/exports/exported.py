"""What every format is written from: classes, and images with the objects found in them."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from rncdl.errors import UserError


class Shape(StrEnum):
    """How the place of an object is told."""

    BOX = "box"
    POLYGON = "polygon"
    MASK = "mask"


class Placing(StrEnum):
    """What is done with the image files themselves."""

    LINK = "link"
    COPY = "copy"
    LEAVE = "leave"


class Only(StrEnum):
    """Which classes are exported."""

    ALL = "all"
    KNOWN = "known"
    NOVEL = "novel"


@dataclass(frozen=True, slots=True)
class ExportClass:
    """One class of an export; several clusters of the same name are one class."""

    name: str
    is_novel: bool
    """whether it was discovered"""
    clusters: tuple[int, ...] = ()
    """the clusters that it is made of; a known class has those that people gave it"""


@dataclass(frozen=True, slots=True)
class FoundObject:
    """One detection."""

    id: int
    """its place in predictions.json, counted from 1"""
    class_index: int
    """position among the export's classes, counted from 0"""
    cluster: int | None
    """the first of its class's clusters; None for a known class"""
    score: float
    box_xyxy: tuple[float, float, float, float]
    """pixels, within the image"""
    rle: dict[str, Any] | None = None
    """COCO's compressed run lengths: {"size": [h, w], "counts": bytes}"""

    @property
    def box_xywh(self) -> tuple[float, float, float, float]:
        """Left, top, width and height in pixels."""
        left, top, right, bottom = self.box_xyxy
        return left, top, right - left, bottom - top


@dataclass(frozen=True, slots=True)
class FoundImage:
    """One image and what was found in it."""

    id: int
    index: int
    """position in the export, counted from 0"""
    source: Path
    """the image file"""
    relative: str
    """its path below the folder that holds all images of the export, with slashes"""
    name: str
    """a file name that no other image of the export has, whatever the ending and the case"""
    height: int
    width: int
    objects: tuple[FoundObject, ...] = ()

    @property
    def stem(self) -> str:
        """The name without its ending."""
        return self.name.rpartition(".")[0]


MIN_SCORE = 0.1
"""Of what is exported, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """What somebody wants exported, and how."""

    format: str
    out: Path
    min_score: float = MIN_SCORE
    only: Only = Only.ALL
    keep_overlapping: bool = False
    """whether detections that overlap a better one are exported too"""
    shape: Shape | None = None
    """None: the first that the format and the detections have"""
    placing: Placing = Placing.LINK
    val_share: float = 0.1
    """of the images, where the format has a validation part"""

    def __post_init__(self) -> None:
        for name, value, most in (
            ("min_score", self.min_score, 1.0),
            ("val_share", self.val_share, 0.9),
        ):
            if not 0 <= value <= most:
                raise UserError(f"export: {name}={value} is not between 0 and {most:g}.")


@dataclass(frozen=True, slots=True)
class Plan:
    """An export as a writer needs it, everything decided."""

    out: Path
    classes: tuple[ExportClass, ...]
    shape: Shape
    placing: Placing
    images_root: Path
    """the folder that holds all images where they are now"""
    num_images: int
    val_share: float

    def is_val(self, image: FoundImage) -> bool:
        """Whether an image belongs to the validation part: every so many, the first included."""
        return int((image.index + 1) * self.val_share + 1 - self.val_share) > int(
            image.index * self.val_share + 1 - self.val_share
        )
