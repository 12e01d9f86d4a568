"""The feature bank: regions of the pool and their features under several views, on disk.

Every image has a slot of fixed size, so that any process can write any image at any time, and
reading one is a few reads at known places. Slots are read and written by position, not mapped:
memory does not grow with the bank, and a full disk is an error and not a crash. The files are
plain arrays that `numpy.memmap` opens (shapes in `bank.json`); what was never written takes no
room on most file systems.

An image is in the bank once it is counted. While processes write, each one notes the images it has
finished in a file of its own, `finished_RANK.jsonl`; when all are done, one process alone writes
the counts: neighbouring numbers in one file, written from several machines, would overwrite each
other on a network file system.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rncdl.discovery.extraction import ExtractedRegions
from rncdl.errors import UserError
from rncdl.files import write_atomically
from rncdl.origins import origin_differences

MISSING = -1
"""Region count of an image that is not in the bank yet."""
UNREADABLE = -2
"""Region count of an image that could not be read."""


@dataclass(frozen=True)
class BankShape:
    """How many slots of which size."""

    num_images: int
    num_labelled: int
    num_views: int
    regions_per_image: int
    matched_per_image: int
    num_features: int

    @property
    def num_bytes(self) -> int:
        """The most the bank can take on disk."""
        rows = self.num_images * self.regions_per_image
        matched = self.num_labelled * self.matched_per_image
        features = (rows + matched) * self.num_views * self.num_features * 2
        return features + rows * 20 + matched * 4 + (self.num_images + self.num_labelled) * 4


class Finished(NamedTuple):
    """An image that is whole on disk."""

    image_index: int
    num_regions: int
    """or `UNREADABLE`"""
    num_matched: int


class _SlotFile:
    """An array on disk whose entries are written and read by position."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: type, *, writable: bool) -> None:
        self.path, self.shape, self.dtype = path, shape, np.dtype(dtype)
        self._reader = os.open(path, os.O_RDONLY)
        # For writing only: through a file that may be read too, a network file system reads the
        # pages that are written in part, and writes them back with what others have changed since.
        self._writer = os.open(path, os.O_WRONLY) if writable else None

    @staticmethod
    def create(path: Path, shape: tuple[int, ...], dtype: type) -> None:
        """A file of zeros that takes no room until it is written to."""
        with path.open("wb") as file:
            file.truncate(int(np.prod(shape)) * np.dtype(dtype).itemsize)

    def write(self, position: tuple[int, ...], values: np.ndarray) -> None:
        """Put `values` at `position`, from there on in the array's own order."""
        assert self._writer is not None
        content = memoryview(values.astype(self.dtype).tobytes())
        offset = self._offset(position)
        while content:
            written = os.pwrite(self._writer, content, offset)
            content, offset = content[written:], offset + written

    def read(self, position: tuple[int, ...], count: int) -> np.ndarray:
        """The first `count` entries at `position`, as an array of their own."""
        tail = self.shape[len(position) + 1 :]
        num_bytes = count * int(np.prod(tail)) * self.dtype.itemsize
        content = os.pread(self._reader, num_bytes, self._offset(position))
        return np.frombuffer(content, dtype=self.dtype).reshape(count, *tail)

    def read_each(self, positions: tuple[np.ndarray | int, ...]) -> np.ndarray:
        """The entries at several positions, (n, ...): an array or one number for each dimension."""
        depth = len(positions)
        num_bytes = int(np.prod(self.shape[depth:])) * self.dtype.itemsize
        offsets = num_bytes * np.ravel_multi_index(positions, self.shape[:depth])
        content = b"".join(os.pread(self._reader, num_bytes, offset) for offset in offsets.tolist())
        return np.frombuffer(content, dtype=self.dtype).reshape(len(offsets), *self.shape[depth:])

    def sync(self) -> None:
        """Return when the disk has all that was written."""
        if self._writer is not None:
            os.fsync(self._writer)

    def close(self) -> None:
        for file in (self._reader, self._writer):
            if file is not None:
                os.close(file)

    def _offset(self, position: tuple[int, ...]) -> int:
        padded = (*position, *([0] * (len(self.shape) - len(position))))
        return int(np.ravel_multi_index(padded, self.shape)) * self.dtype.itemsize


class Bank:
    """An open bank. P pool images of which the first L are labelled; V views; F features.

    `rank`: of the process that writes; no two may write at the same time under the same.
    """

    def __init__(self, folder: Path, *, writable: bool = False, rank: int = 0) -> None:
        self.folder = folder
        described = _read_description(folder)
        self.origin: dict[str, Any] = described["origin"]
        self.shape = BankShape(**described["shape"])
        files = {
            name: _SlotFile(folder / name, shape, dtype, writable=writable)
            for name, (shape, dtype) in _layout(self.shape).items()
        }
        self._features = files["features.f16"]
        self._boxes = files["boxes.f32"]
        self._objectness = files["objectness.f32"]
        self._matched_features = files["matched_features.f16"]
        self._matched_labels = files["matched_labels.i32"]
        self._files = files
        self._finished_file = folder / f"finished_{rank}.jsonl"
        self.finished: list[Finished] = []
        """what was written here, in its order"""
        self._num_flushed = 0
        self._counts = _read_counts(folder / "counts.i32", self.shape.num_images)
        self._matched_counts = _read_counts(folder / "matched_counts.i32", self.shape.num_labelled)
        noted = list(_read_finished(folder))
        self.count(noted)
        self.is_settled = not noted
        """False: processes that were stopped have noted images which the counts on disk lack"""

    @classmethod
    def create(cls, folder: Path, shape: BankShape, origin: Mapping[str, Any]) -> None:
        """An empty bank; an early error when the disk cannot hold it full."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(folder).free
            if shape.num_bytes > free:
                raise UserError(
                    f"{folder}: the bank needs up to {shape.num_bytes / 1e9:.1f} GB, the disk has "
                    f"{free / 1e9:.1f} GB free. Free some, or lower discover.views "
                    f"(now {shape.num_views}) or use --online."
                )
            for name, (dimensions, dtype) in _layout(shape).items():
                _SlotFile.create(folder / name, dimensions, dtype)
            _delete_finished(folder)
        except OSError as error:
            raise UserError(f"{folder}: cannot make a bank here ({error.strerror}).") from error
        _write_counts(folder / "counts.i32", np.full(shape.num_images, MISSING))
        _write_counts(folder / "matched_counts.i32", np.zeros(shape.num_labelled))
        described = {"origin": dict(origin), "shape": asdict(shape)}
        write_atomically(folder / "bank.json", json.dumps(described, indent=2).encode())

    @classmethod
    def exists(cls, folder: Path) -> bool:
        """True once `create` has run to its end."""
        return (folder / "bank.json").is_file()

    def require_origin(
        self, origin: Mapping[str, Any], *, if_unnoted: Mapping[str, Any] | None = None
    ) -> None:
        """Refuse a bank that was made by another detector, other settings or of other images.

        if_unnoted: what to believe of a bank that did not note everything when it was made.
        """
        different = origin_differences({**(if_unnoted or {}), **self.origin}, origin)
        if different:
            raise UserError(
                f"{self.folder}: this bank was made from something else; delete the folder to "
                "make it anew, or go back to what it was made from:\n" + "\n".join(different)
            )

    def write(self, index: int, regions: ExtractedRegions) -> None:
        """Store one image; in the bank of others it counts after the next `flush`."""
        chosen = regions.chosen
        features = regions.features.half().cpu().numpy()
        matched = regions.matched_features.half().cpu().numpy()
        is_labelled = index < self.shape.num_labelled
        try:
            for view in range(self.shape.num_views):
                self._features.write((index, view), features[view])
                if is_labelled:
                    self._matched_features.write((index, view), matched[view])
            self._boxes.write((index,), chosen.boxes_xyxy.cpu().numpy())
            self._objectness.write((index,), chosen.objectness.float().cpu().numpy())
            if is_labelled:
                self._matched_labels.write((index,), chosen.matched_labels.cpu().numpy())
        except OSError as error:
            raise self._cannot_write(error) from error
        num_matched = len(chosen.matched_labels) if is_labelled else 0
        self._finish(Finished(index, len(chosen.boxes_xyxy), num_matched))

    def mark_unreadable(self, index: int) -> None:
        """Note that an image has no regions because it cannot be read."""
        self._finish(Finished(index, UNREADABLE, 0))

    def flush(self) -> None:
        """Put what was written on the disk, then note it as finished: what is noted is whole."""
        fresh = self.finished[self._num_flushed :]
        if not fresh:
            return
        try:
            for slots in self._files.values():
                slots.sync()
            with self._finished_file.open("a", encoding="utf-8") as file:
                file.writelines(f"{json.dumps(image)}\n" for image in fresh)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._cannot_write(error) from error
        self._num_flushed = len(self.finished)

    def count(self, images: Iterable[Finished]) -> None:
        """Take images into this bank's counts that others have finished."""
        for image in images:
            self._counts[image.image_index] = image.num_regions
            if image.image_index < self.shape.num_labelled:
                self._matched_counts[image.image_index] = image.num_matched

    def save_counts(self) -> None:
        """Write the counts for good. For one process alone, while no other one writes."""
        # The regions' counts last: an image is in the bank by these.
        _write_counts(self.folder / "matched_counts.i32", self._matched_counts)
        _write_counts(self.folder / "counts.i32", self._counts)
        _delete_finished(self.folder)

    def counts(self) -> np.ndarray:
        """(P,) int32: regions of each image; `MISSING` or `UNREADABLE` below zero."""
        return self._counts.copy()

    def matched_counts(self) -> np.ndarray:
        """(L,) int32: matched regions of each labelled image."""
        return self._matched_counts.copy()

    def read(self, index: int, view: int, *, count: int) -> Tensor:
        """(count, F) float16 features of an image in one view."""
        return torch.from_numpy(self._features.read((index, view), count).copy())

    def read_regions(self, images: np.ndarray, view: int, regions: np.ndarray) -> Tensor:
        """(n, F) float16 features of single regions of several images in one view."""
        return torch.from_numpy(self._features.read_each((images, view, regions)).copy())

    def read_boxes(self, index: int, *, count: int) -> Tensor:
        """(count, 4) regions in the pixels of the image on disk."""
        return torch.from_numpy(self._boxes.read((index,), count).copy())

    def read_objectness(self, index: int, *, count: int) -> Tensor:
        """(count,) of an image's regions."""
        return torch.from_numpy(self._objectness.read((index,), count).copy())

    def read_matched(self, index: int, view: int, *, count: int) -> tuple[Tensor, Tensor]:
        """(count, F) float16 features and (count,) labels of a labelled image's matched regions."""
        features = torch.from_numpy(self._matched_features.read((index, view), count).copy())
        labels = torch.from_numpy(self._matched_labels.read((index,), count).astype(np.int64))
        return features, labels

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def _finish(self, image: Finished) -> None:
        self.count([image])
        self.finished.append(image)

    def _cannot_write(self, error: OSError) -> UserError:
        return UserError(
            f"{self.folder}: cannot write the bank ({error.strerror}). What is in it stays; "
            "the same command goes on from there."
        )


def _layout(shape: BankShape) -> dict[str, tuple[tuple[int, ...], type]]:
    """Dimensions and type of each file that has slots."""
    images, labelled = shape.num_images, shape.num_labelled
    regions, matched = shape.regions_per_image, shape.matched_per_image
    return {
        "features.f16": ((images, shape.num_views, regions, shape.num_features), np.float16),
        "boxes.f32": ((images, regions, 4), np.float32),
        "objectness.f32": ((images, regions), np.float32),
        "matched_features.f16": (
            (labelled, shape.num_views, matched, shape.num_features),
            np.float16,
        ),
        "matched_labels.i32": ((labelled, matched), np.int32),
    }


def _read_counts(path: Path, num: int) -> np.ndarray:
    try:
        counts = np.fromfile(path, dtype=np.int32)
    except OSError as error:
        raise UserError(f"{path}: cannot read it ({error.strerror}).") from error
    if len(counts) != num:
        raise UserError(f"{path}: damaged (cut short); delete the bank's folder.")
    return counts


def _write_counts(path: Path, counts: np.ndarray) -> None:
    write_atomically(path, counts.astype(np.int32).tobytes())


def _finished_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("finished_*.jsonl"))


def _delete_finished(folder: Path) -> None:
    for path in _finished_files(folder):
        path.unlink(missing_ok=True)


def _read_finished(folder: Path) -> Iterator[Finished]:
    """What processes have noted since the counts were written; a line cut short is left out."""
    for path in _finished_files(folder):
        for line in path.read_text("utf-8", errors="replace").splitlines():
            try:
                yield Finished(*json.loads(line))
            except (ValueError, TypeError):
                break


def _read_description(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / "bank.json").read_text("utf-8"))
    except OSError as error:
        raise UserError(f"{folder}: no bank here ({error.strerror}); make it first.") from error
    except json.JSONDecodeError as error:
        raise UserError(f"{folder}: bank.json is damaged; delete the folder.") from error
