"""The folder that `rncdl predict` has filled, as a stream of images with what was found in them."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rncdl.data.annotation_file import FileImage, read_json
from rncdl.errors import UserError
from rncdl.exports.names import common_folder, flat_names
from rncdl.exports.records import ExportClass, FoundImage, FoundObject, Only
from rncdl.origins import digest
from rncdl.prediction.folder import PredictionFolder


class _Category(msgspec.Struct):
    id: int
    name: str
    cluster: int | None = None
    """None for a known class"""
    clusters: tuple[int, ...] | None = None
    """all of them; missing in files of earlier versions"""

    @property
    def members(self) -> tuple[int, ...]:
        if self.clusters is None:
            return () if self.cluster is None else (self.cluster,)
        return self.clusters


class _Listing(msgspec.Struct):
    """images.json."""

    images: list[FileImage]
    categories: list[_Category]


class _Place(msgspec.Struct):
    """As much of a detection as the index needs."""

    image_id: int
    segmentation: msgspec.Raw = msgspec.Raw(b"")


class _Mask(msgspec.Struct):
    size: tuple[int, int]
    counts: str


class _Entry(msgspec.Struct):
    """One line of predictions.json."""

    category_id: int
    score: float
    bbox: tuple[float, float, float, float]
    """x, y, width, height"""
    segmentation: _Mask | None = None


@dataclass(frozen=True)
class _Index:
    """Where in predictions.json the detections of each image are."""

    starts: np.ndarray
    """(I,) int64, byte of the first; 0 for an image without detections"""
    lengths: np.ndarray
    """(I,) int64, bytes"""
    first_rows: np.ndarray
    """(I,) int64, the first one's place among all detections"""
    has_masks: bool


class Predictions:
    """The images of a prediction, one after the other; only one is ever in memory.

    What grows with their number is the list of their names and three numbers for each.
    """

    def __init__(self, folder: PredictionFolder) -> None:
        if not folder.is_finished or not folder.origin_file.is_file():
            raise UserError(
                f"{folder.path}: no finished predictions of `rncdl predict` here "
                f"({folder.predictions_file.name} and {folder.origin_file.name} belong to them)."
            )
        self._folder = folder
        self._listing = read_json(
            folder.images_file, _Listing, expected="The images.json of `rncdl predict`"
        )
        images = self._listing.images
        self._ids = np.array([image.id for image in images], dtype=np.int64)
        if (np.diff(self._ids) <= 0).any():
            raise UserError(f"{folder.images_file}: image ids must ascend.")
        files = [image.file_name or "" for image in images]
        self.images_root = common_folder(map(Path, files))
        self._relative = [os.path.relpath(file, self.images_root) for file in files]
        self._names = flat_names(self._relative)
        self._index = self._make_index()

    def __len__(self) -> int:
        return len(self._listing.images)

    @property
    def has_masks(self) -> bool:
        """Whether every detection has a mask."""
        return self._index.has_masks

    @property
    def origin(self) -> str:
        """A fingerprint of everything the stream depends on."""
        folder = self._folder
        size = str(folder.predictions_file.stat().st_size).encode()
        return digest(folder.origin_file.read_bytes(), folder.images_file.read_bytes(), size)

    def classes(self, only: Only) -> tuple[ExportClass, ...]:
        """The chosen classes in the order of their outputs; those of one name are one."""
        of_name: dict[str, ExportClass] = {}
        for one in self._chosen(only):
            before = of_name.get(one.name, ExportClass(one.name, one.cluster is not None))
            of_name[one.name] = replace(before, clusters=before.clusters + one.members)
        return tuple(of_name.values())

    def images(self, *, only: Only, min_score: float, start: int = 0) -> Iterator[FoundImage]:
        """Each image from `start` on with its detections of the chosen classes above the score."""
        index_of_name = {one.name: i for i, one in enumerate(self.classes(only))}
        chosen = {one.id: (index_of_name[one.name], one.cluster) for one in self._chosen(only)}
        with self._folder.predictions_file.open("rb") as file:
            for index, image in enumerate(self._listing.images[start:], start):
                height, width = image.height or 0, image.width or 0
                found = (
                    _object(entry, row + 1, *chosen[entry.category_id], size=(height, width))
                    for row, entry in self._entries(file, index)
                    if entry.score >= min_score and entry.category_id in chosen
                )
                yield FoundImage(
                    id=image.id,
                    index=index,
                    source=Path(image.file_name or ""),
                    relative=self._relative[index].replace(os.sep, "/"),
                    name=self._names[index],
                    height=height,
                    width=width,
                    objects=tuple(one for one in found if min(one.box_xywh[2:]) > 0),
                )

    def _chosen(self, only: Only) -> Sequence[_Category]:
        wanted = {Only.ALL: (True, False), Only.KNOWN: (False,), Only.NOVEL: (True,)}[only]
        return [one for one in self._listing.categories if (one.cluster is not None) in wanted]

    def _entries(self, file: Any, index: int) -> Iterator[tuple[int, _Entry]]:
        file.seek(int(self._index.starts[index]))
        lines = file.read(int(self._index.lengths[index])).splitlines()
        for row, line in enumerate(lines, int(self._index.first_rows[index])):
            yield row, self._decode(line, _Entry, row)

    def _make_index(self) -> _Index:
        """One pass over the file: the detections of an image are lines in one block."""
        starts, lengths, first_rows = np.zeros((3, len(self)), dtype=np.int64)
        offset = row = 0
        last, all_have_masks = -1, True
        with self._folder.predictions_file.open("rb") as file:
            for line in file:
                if line.startswith(b"{"):
                    place = self._decode(line, _Place, row)
                    index = self._position(place.image_id, row)
                    if index != last and lengths[index]:
                        raise self._refusal(row, "its image's detections are not in one block")
                    if index != last:
                        starts[index], first_rows[index], last = offset, row, index
                    lengths[index] = offset + len(line) - starts[index]
                    all_have_masks &= bool(place.segmentation)
                    row += 1
                offset += len(line)
        return _Index(starts, lengths, first_rows, has_masks=all_have_masks)

    def _position(self, image_id: int, row: int) -> int:
        index = int(np.searchsorted(self._ids, image_id))
        if index == len(self._ids) or self._ids[index] != image_id:
            raise self._refusal(row, f"image_id {image_id} is not in images.json")
        return index

    def _decode(self, line: bytes, kind: type[Any], row: int) -> Any:
        try:
            return msgspec.json.decode(line.rstrip(b",\r\n"), type=kind)
        except msgspec.DecodeError as error:
            raise self._refusal(row, str(error)) from error

    def _refusal(self, row: int, what: str) -> UserError:
        return UserError(
            f"{self._folder.predictions_file}: entry $[{row}]: {what}. Export the file as "
            "`rncdl predict` has written it."
        )


def _object(
    entry: _Entry, number: int, class_index: int, cluster: int | None, *, size: tuple[int, int]
) -> FoundObject:
    left, top, box_width, box_height = entry.bbox
    height, width = size
    mask = entry.segmentation
    return FoundObject(
        id=number,
        class_index=class_index,
        cluster=cluster,
        score=entry.score,
        box_xyxy=(
            min(max(left, 0.0), width),
            min(max(top, 0.0), height),
            max(min(left + box_width, width), 0.0),
            max(min(top + box_height, height), 0.0),
        ),
        rle=None if mask is None else {"size": list(mask.size), "counts": mask.counts.encode()},
    )
