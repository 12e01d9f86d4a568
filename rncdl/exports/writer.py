"""What every format's writer does."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np

from rncdl.exports.outlines import box_corners, one_outline
from rncdl.exports.records import ExportClass, FoundImage, FoundObject, Placing, Plan, Shape
from rncdl.gallery.drawings import class_colour

Lines = Callable[[], Iterator[bytes]]
"""What `add` has returned for each image, to be read as often as one likes"""

encode = msgspec.json.Encoder().encode


class Writer(ABC):
    """Writes the images of an export, one at a time, and then what stands in files for all.

    `add` may be called again for an image after an interruption, and then writes the same.
    """

    shapes: ClassVar[tuple[Shape, ...]]
    """what the format can hold, its own choice first"""
    placings: ClassVar[tuple[Placing, ...]] = (Placing.LINK, Placing.COPY)
    written: ClassVar[tuple[str, ...]]
    """files and folders of the export"""
    how_to_open: ClassVar[str]
    """a sentence for who wants to go on; {out} is the folder"""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    @abstractmethod
    def image_path(self, image: FoundImage) -> str:
        """Where in the folder the image file goes."""

    @abstractmethod
    def add(self, image: FoundImage) -> bytes:
        """Write what has a file of its own; returns one line that is kept until `finish`.

        The line does not begin with a bracket.
        """

    @abstractmethod
    def finish(self, lines: Lines) -> None:
        """Write the files that speak of all images."""

    def name_of(self, one: FoundObject) -> str:
        """The name of an object's class."""
        return self.plan.classes[one.class_index].name


def outline_of(one: FoundObject) -> np.ndarray:
    """(corners, 2) x, y of an object in one polygon; the box's where it has no mask."""
    outline = None if one.rle is None else one_outline(one.rle)
    return box_corners(one.box_xyxy) if outline is None else outline


def colour_code(one: ExportClass) -> str:
    """The class's colour in drawings, as #rrggbb."""
    red, green, blue = class_colour(one.name, novel=one.is_novel)
    return f"#{red:02x}{green:02x}{blue:02x}"


def file_below(out: Path, name: str) -> Path:
    """A file of the export, its folder made."""
    path = out / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
