"""Objects in labelled images that nobody labelled: boxes and masks without a class, on disk too.

Files are written part by part, each whole or not there, so that an interrupted search goes on.
Nothing in them names a class, whoever wrote them.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rncdl.data.segmentations import Segmentations
from rncdl.errors import UserError
from rncdl.files import write_atomically
from rncdl.origins import digest

WITHOUT_CLASS = -100
"""The label of an object of which nothing is known but that it is one: the classifier learns
nothing from it."""


class FoundObject(msgspec.Struct):
    """One object, as it stands in a file."""

    image_index: int
    """position among the labelled file's images"""
    box_xyxy: tuple[float, float, float, float]
    """in pixels of the image on disk"""
    score: float
    """how likely it is an object"""
    segmentation: msgspec.Raw
    """COCO's run lengths, of the image's size"""


_PART = msgspec.json.Decoder(list[FoundObject])


@dataclass(frozen=True)
class UnlabelledObjects:
    """O objects, in columns, sorted by image."""

    image_index: np.ndarray
    """(O,) int64, ascending"""
    boxes_xyxy: np.ndarray
    """(O, 4) float32, pixels of the image on disk"""
    scores: np.ndarray
    """(O,) float32"""
    segmentations: Sequence[bytes | None]
    """(O,) raw JSON of run lengths"""
    label: int = WITHOUT_CLASS
    """what the classifier is told about them: nothing, or K, the background"""

    @classmethod
    def of(cls, objects: Sequence[FoundObject]) -> "UnlabelledObjects":
        """In columns; objects of one image keep their order."""
        in_order = sorted(objects, key=lambda one: one.image_index)
        boxes = np.array([one.box_xyxy for one in in_order], dtype=np.float32)
        return cls(
            image_index=np.array([one.image_index for one in in_order], dtype=np.int64),
            boxes_xyxy=boxes.reshape(-1, 4),
            scores=np.array([one.score for one in in_order], dtype=np.float32),
            segmentations=Segmentations.pack(one.segmentation for one in in_order),
        )

    def __len__(self) -> int:
        return len(self.image_index)

    def rows_of_image(self, index: int) -> slice:
        """Rows of the objects of one image."""
        start, stop = np.searchsorted(self.image_index, [index, index + 1])
        return slice(int(start), int(stop))


@dataclass(frozen=True)
class ObjectsFolder:
    """A folder of objects: `origin.json`, which says what they come from, and numbered parts."""

    path: Path

    @property
    def origin_file(self) -> Path:
        """What the objects come from."""
        return self.path / "origin.json"

    def part_file(self, number: int) -> Path:
        """Where a part is."""
        return self.path / f"part_{number:06d}.json"

    def begin(self, origin: Mapping[str, Any]) -> None:
        """Keep the parts that are there where they have this origin; else begin anew."""
        content = _origin_bytes(origin)
        if self.origin_file.is_file() and self.origin_file.read_bytes() == content:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        write_atomically(self.origin_file, content)

    def missing(self, num_parts: int) -> list[int]:
        """Which of the parts are not there."""
        return [number for number in range(num_parts) if not self.part_file(number).is_file()]

    def write(self, number: int, objects: Sequence[FoundObject]) -> None:
        """Write a part; it may hold nothing."""
        write_atomically(self.part_file(number), msgspec.json.encode(list(objects)))

    def read(self) -> UnlabelledObjects:
        """All parts that are there."""
        objects: list[FoundObject] = []
        for path in sorted(self.path.glob("part_*.json")):
            try:
                objects += _PART.decode(path.read_bytes())
            except (OSError, msgspec.DecodeError) as error:
                raise UserError(f"{path}: not a readable file of objects ({error}).") from error
        return UnlabelledObjects.of(objects)

    def fingerprint(self) -> str:
        """Of the origin and all parts."""
        paths = [self.origin_file, *sorted(self.path.glob("part_*.json"))]
        return digest(*(path.read_bytes() for path in paths if path.is_file()))


def _origin_bytes(origin: Mapping[str, Any]) -> bytes:
    return json.dumps(origin, indent=2, sort_keys=True).encode()
