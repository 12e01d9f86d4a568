"""Entries of a dataset in another format, gathered into the record of a COCO file."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from pycocotools import mask as coco_mask

from rncdl.data.annotation_file import ConvertedFile, FileAnnotation, FileCategory, FileImage
from rncdl.data.image_headers import Size
from rncdl.data.masks import rle_to_json
from rncdl.errors import UserError

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Region:
    """Where an object is."""

    box_xyxy: tuple[float, float, float, float]
    area: float | None = None
    """of the mask, in pixels"""
    segmentation: bytes = b""
    """polygons or run lengths in JSON, empty without a mask"""

    @classmethod
    def of_polygon(cls, points: np.ndarray) -> "Region":
        """points: (corners, 2) x, y in pixels."""
        return cls(extent(points), _enclosed_area(points), _encode([points.ravel().tolist()]))

    @classmethod
    def of_rle(cls, rle: dict[str, Any]) -> "Region":
        """rle: COCO's compressed run lengths."""
        left, top, width, height = coco_mask.toBbox(rle).tolist()
        return cls(
            (left, top, left + width, top + height),
            float(coco_mask.area(rle)),
            _encode(rle_to_json(rle)),
        )

    @property
    def box_xywh(self) -> tuple[float, float, float, float]:
        """Left, top, width and height in pixels."""
        left, top, right, bottom = self.box_xyxy
        return left, top, right - left, bottom - top


@dataclass
class Gathered:
    """Images, classes and objects, numbered from 1 in the order in which they come."""

    images: list[FileImage] = field(default_factory=list)
    annotations: list[FileAnnotation] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    category_ids: dict[str, int] = field(default_factory=dict)

    def add_classes(self, names: Iterable[str]) -> None:
        """Classes of these names, so that they are there without objects, too."""
        for name in names:
            self.category_ids.setdefault(name, len(self.category_ids) + 1)

    def add_image(self, path: Path, size: Size | None) -> None:
        """The image that the objects which follow are in; its header tells a size not given."""
        height, width = size or (None, None)
        self.images.append(
            FileImage(len(self.images) + 1, str(path.absolute()), height=height, width=width)
        )

    def add_object(self, name: str, region: Region, *, place: str) -> None:
        """An object of the last image. place: where it stands, for messages."""
        self.add_classes([name])
        self.annotations.append(
            FileAnnotation(
                id=len(self.annotations) + 1,
                image_id=self.images[-1].id,
                category_id=self.category_ids[name],
                bbox=region.box_xywh,
                area=region.area,
                segmentation=msgspec.Raw(region.segmentation),
            )
        )
        self.places.append(place)

    def to_file(self) -> ConvertedFile:
        """The whole dataset."""
        categories = [FileCategory(number, name) for name, number in self.category_ids.items()]
        return ConvertedFile(self.images, self.annotations, categories, self.places, self.notes)


def extent(points: np.ndarray) -> tuple[float, float, float, float]:
    """The box around (corners, 2) x, y: left, top, right, bottom."""
    (left, top), (right, bottom) = points.min(0).tolist(), points.max(0).tolist()
    return left, top, right, bottom


def turned(points: np.ndarray, degrees: float, *, around: Sequence[float]) -> np.ndarray:
    """The (corners, 2) points turned clockwise on the screen, where y points down."""
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    return (points - around) @ np.array([[cosine, sine], [-sine, cosine]]) + around


def ellipse_points(centre: Sequence[float], radii: Sequence[float]) -> np.ndarray:
    """(64, 2) corners of a polygon of the ellipse's own area."""
    count = 64
    angles = np.arange(count) * 2 * math.pi / count
    scale = math.sqrt(2 * math.pi / count / math.sin(2 * math.pi / count))
    circle = np.stack([np.cos(angles), np.sin(angles)], 1)
    return np.asarray(centre) + circle * np.asarray(radii) * scale


def read_text(path: Path) -> str:
    """The file's text; a UserError where it cannot be read."""
    try:
        return path.read_text("utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot read the file ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a text in UTF-8 ({error}). Save it as UTF-8.") from error


def to_number(text: str | None, where: str) -> float:
    """The number that `where` (file and field) holds; a UserError where it holds none."""
    try:
        return float(text or "")
    except ValueError as error:
        value = "missing" if text is None else repr(text)
        raise UserError(f"{where} is {value}; a number is expected.") from error


def _enclosed_area(points: np.ndarray) -> float:
    x, y = points.T
    return abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1))) / 2
