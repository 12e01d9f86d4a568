"""COCO and LVIS v1 JSON files as they stand: parsed and typed, nothing judged yet."""

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from rncdl.errors import UserError

Number = float | None
"""null takes the place of NaN and infinities, which JSON lacks but Python's `json` writes."""


class FileImage(msgspec.Struct, gc=False):
    """An entry of `images`. LVIS v1 gives `coco_url` instead of `file_name`."""

    id: int
    file_name: str | None = None
    coco_url: str | None = None
    height: int | None = None
    width: int | None = None
    neg_category_ids: list[int] | None = None
    not_exhaustive_category_ids: list[int] | None = None


class FileCategory(msgspec.Struct, gc=False):
    """An entry of `categories`."""

    id: int
    name: str
    synset: str | None = None
    frequency: str | None = None


class FileAnnotation(msgspec.Struct, gc=False):
    """An entry of `annotations`. Its mask stays raw JSON: parsing all of them costs gigabytes."""

    id: int
    image_id: int
    category_id: int
    bbox: tuple[Number, Number, Number, Number]
    """x, y, width, height"""
    area: Number = None
    iscrowd: int | bool = 0
    segmentation: msgspec.Raw = msgspec.Raw(b"")


class AnnotationFile(msgspec.Struct, gc=False):
    """A whole file; one that only lists images has no annotations and no categories."""

    images: list[FileImage]
    annotations: list[FileAnnotation] = []
    categories: list[FileCategory] = []


def read_annotation_file(path: Path) -> AnnotationFile:
    """The file's entries; a UserError names the file and the field where something is wrong."""
    try:
        text = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise UserError(f"{path}: cannot read the annotation file ({error.strerror}).") from error
    try:
        return _decode(text)
    except msgspec.ValidationError as error:
        raise UserError(f"{path}: {error}. COCO or LVIS v1 JSON is expected.") from error
    except msgspec.DecodeError as error:
        raise UserError(f"{path}: not a JSON file: {error}.") from error


_STRING_OR_NOT_FINITE = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\b(?:NaN|Infinity)\b')


def _decode(text: bytes) -> AnnotationFile:
    try:
        return msgspec.json.decode(text, type=AnnotationFile)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        if b"NaN" not in text and b"Infinity" not in text:
            raise
        repaired = _STRING_OR_NOT_FINITE.sub(
            lambda found: found[0] if found[0].startswith(b'"') else b"null", text
        )
        return msgspec.json.decode(repaired, type=AnnotationFile)


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
