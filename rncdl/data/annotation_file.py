"""COCO and LVIS v1 JSON files as they stand: parsed and typed, nothing judged yet."""

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from rncdl.errors import UserError

T = TypeVar("T")

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Whole numbers go into int64 columns."""
Number = float | None
"""null takes the place of NaN and infinities, which JSON lacks but Python's `json` writes."""


class FileImage(msgspec.Struct, gc=False):
    """An entry of `images`. LVIS v1 gives `coco_url` instead of `file_name`."""

    id: Int64
    file_name: str | None = None
    coco_url: str | None = None
    height: Int64 | None = None
    width: Int64 | None = None
    neg_category_ids: list[Int64] | None = None
    not_exhaustive_category_ids: list[Int64] | None = None


class FileCategory(msgspec.Struct, gc=False):
    """An entry of `categories`."""

    id: Int64
    name: str
    synset: str | None = None
    frequency: str | None = None


class FileAnnotation(msgspec.Struct, gc=False):
    """An entry of `annotations`. Its mask stays raw JSON: parsing all of them costs gigabytes."""

    id: Int64
    image_id: Int64
    category_id: Int64
    bbox: tuple[Number, Number, Number, Number]
    """x, y, width, height"""
    area: Number = None
    iscrowd: Int64 | bool = 0
    segmentation: msgspec.Raw = msgspec.Raw(b"")


class AnnotationFile(msgspec.Struct, gc=False):
    """A whole file; one that only lists images has no annotations and no categories."""

    images: list[FileImage]
    annotations: list[FileAnnotation] = []
    categories: list[FileCategory] = []

    def place_of(self, row: int) -> str:
        """Where an annotation stands, for a reader."""
        annotation = self.annotations[row]
        return f"annotations[{row}] (id {annotation.id}, image {annotation.image_id})"


class ConvertedFile(AnnotationFile, gc=False):
    """What such a file would hold, read from another format."""

    places: list[str] = []
    """where each annotation stands in the files that it was read from"""
    notes: list[str] = []
    """what a person should know of the reading"""

    def place_of(self, row: int) -> str:
        """Where an annotation stands in the files that it was read from."""
        return self.places[row]


def read_annotation_file(path: Path) -> AnnotationFile:
    """The file's entries; a UserError names the file and the field where something is wrong."""
    return read_json(path, AnnotationFile, expected="COCO or LVIS v1 JSON")


def read_json(path: Path, kind: type[T], *, expected: str) -> T:
    """The file's content as `kind`; a UserError names the file and the field that is wrong."""
    try:
        text = _read_text(path)
    except OSError as error:
        raise UserError(f"{path}: cannot read the file ({error.strerror}).") from error
    try:
        return _decode(text, kind)
    except msgspec.ValidationError as error:
        raise UserError(f"{path}: {error}. {expected} is expected.") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path}: not a JSON file: {error}.") from error


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def _read_text(path: Path) -> memoryview:
    """The file's bytes, without a byte order mark.

    Mapped rather than read where that can be: a copy in fresh memory takes ten times as long.
    """
    with path.open("rb") as file:
        try:
            text = memoryview(mmap(file.fileno(), 0, access=ACCESS_READ))
        except (OSError, ValueError):  # a pipe; an empty file
            text = memoryview(file.read())
    return text[len(_BYTE_ORDER_MARK) :] if text[:3] == _BYTE_ORDER_MARK else text


_STRING_OR_NOT_FINITE = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\b(?:NaN|Infinity)\b')


def _decode(text: memoryview, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        broken = bytes(text)
        if b"NaN" not in broken and b"Infinity" not in broken:
            raise
        repaired = _STRING_OR_NOT_FINITE.sub(
            lambda found: found[0] if found[0].startswith(b'"') else b"null", broken
        )
        return msgspec.json.decode(repaired, type=kind)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Spares Python from walking a million new objects again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
