"""The feature bank: regions of the pool and their features under several views, on disk.

Every image has a slot of fixed size, so that any process can write any image at any time, and
reading one is a few reads at known places. Slots are read and written by position, not mapped:
memory does not grow with the bank, and a full disk is an error and not a crash. The files are
plain arrays that `numpy.memmap` opens (shapes in `bank.json`); what was never written takes no
room on most file systems.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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


class _SlotFile:
    """An array on disk whose entries are written and read by position."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: type, *, writable: bool) -> None:
        self.path, self.shape, self.dtype = path, shape, np.dtype(dtype)
        self._file = os.open(path, os.O_RDWR if writable else os.O_RDONLY)

    @staticmethod
    def create(path: Path, shape: tuple[int, ...], dtype: type) -> None:
        """A file of zeros that takes no room until it is written to."""
        with path.open("wb") as file:
            file.truncate(int(np.prod(shape)) * np.dtype(dtype).itemsize)

    def write(self, position: tuple[int, ...], values: np.ndarray) -> None:
        """Put `values` at `position`, from there on in the array's own order."""
        content = memoryview(values.astype(self.dtype).tobytes())
        offset = self._offset(position)
        while content:
            written = os.pwrite(self._file, content, offset)
            content, offset = content[written:], offset + written

    def read(self, position: tuple[int, ...], count: int) -> np.ndarray:
        """The first `count` entries at `position`, as an array of their own."""
        tail = self.shape[len(position) + 1 :]
        num_bytes = count * int(np.prod(tail)) * self.dtype.itemsize
        content = os.pread(self._file, num_bytes, self._offset(position))
        return np.frombuffer(content, dtype=self.dtype).reshape(count, *tail)

    def close(self) -> None:
        os.close(self._file)

    def _offset(self, position: tuple[int, ...]) -> int:
        padded = (*position, *([0] * (len(self.shape) - len(position))))
        return int(np.ravel_multi_index(padded, self.shape)) * self.dtype.itemsize


class Bank:
    """An open bank. P pool images of which the first L are labelled; V views; F features."""

    def __init__(self, folder: Path, *, writable: bool = False) -> None:
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
        self._counts = files["counts.i32"]
        self._matched_features = files["matched_features.f16"]
        self._matched_labels = files["matched_labels.i32"]
        self._matched_counts = files["matched_counts.i32"]
        self._files = files

    @classmethod
    def create(cls, folder: Path, shape: BankShape, origin: Mapping[str, Any]) -> None:
        """An empty bank; an early error when the disk cannot hold it full."""
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
        counts = np.full(shape.num_images, MISSING, dtype=np.int32)
        (folder / "counts.i32").write_bytes(counts.tobytes())
        described = {"origin": dict(origin), "shape": asdict(shape)}
        write_atomically(folder / "bank.json", json.dumps(described, indent=2).encode())

    @classmethod
    def exists(cls, folder: Path) -> bool:
        """True once `create` has run to its end."""
        return (folder / "bank.json").is_file()

    def require_origin(self, origin: Mapping[str, Any]) -> None:
        """Refuse a bank that was made by another detector, other settings or of other images."""
        different = origin_differences(self.origin, origin)
        if different:
            raise UserError(
                f"{self.folder}: this bank was made from something else; delete the folder to "
                "make it anew, or go back to what it was made from:\n" + "\n".join(different)
            )

    def write(self, index: int, regions: ExtractedRegions) -> None:
        """Store one image. Its count is written last: what is counted is complete."""
        chosen = regions.chosen
        features = regions.features.half().cpu().numpy()
        matched = regions.matched_features.half().cpu().numpy()
        try:
            for view in range(self.shape.num_views):
                self._features.write((index, view), features[view])
                if index < self.shape.num_labelled:
                    self._matched_features.write((index, view), matched[view])
            self._boxes.write((index,), chosen.boxes_xyxy.cpu().numpy())
            self._objectness.write((index,), chosen.objectness.float().cpu().numpy())
            if index < self.shape.num_labelled:
                self._matched_labels.write((index,), chosen.matched_labels.cpu().numpy())
                self._matched_counts.write((index,), np.array([len(chosen.matched_labels)]))
            self._counts.write((index,), np.array([len(chosen.boxes_xyxy)]))
        except OSError as error:
            raise UserError(
                f"{self.folder}: cannot write the bank ({error.strerror}). What is in it stays; "
                "the same command goes on from there."
            ) from error

    def mark_unreadable(self, index: int) -> None:
        """Note that an image has no regions because it cannot be read."""
        self._counts.write((index,), np.array([UNREADABLE]))

    def counts(self) -> np.ndarray:
        """(P,) int32: regions of each image; `MISSING` or `UNREADABLE` below zero."""
        return self._counts.read((), self.shape.num_images)

    def matched_counts(self) -> np.ndarray:
        """(L,) int32: matched regions of each labelled image."""
        return self._matched_counts.read((), self.shape.num_labelled)

    def read(self, index: int, view: int, *, count: int) -> Tensor:
        """(count, F) float16 features of an image in one view."""
        return torch.from_numpy(self._features.read((index, view), count).copy())

    def read_boxes(self, index: int, *, count: int) -> Tensor:
        """(count, 4) regions in the pixels of the image on disk."""
        return torch.from_numpy(self._boxes.read((index,), count).copy())

    def read_objectness(self, index: int, *, count: int) -> Tensor:
        """(count,) the RPN's logits."""
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


def _layout(shape: BankShape) -> dict[str, tuple[tuple[int, ...], type]]:
    """Each file's dimensions and type."""
    images, labelled = shape.num_images, shape.num_labelled
    regions, matched = shape.regions_per_image, shape.matched_per_image
    return {
        "features.f16": ((images, shape.num_views, regions, shape.num_features), np.float16),
        "boxes.f32": ((images, regions, 4), np.float32),
        "objectness.f32": ((images, regions), np.float32),
        "counts.i32": ((images,), np.int32),
        "matched_features.f16": (
            (labelled, shape.num_views, matched, shape.num_features),
            np.float16,
        ),
        "matched_labels.i32": ((labelled, matched), np.int32),
        "matched_counts.i32": ((labelled,), np.int32),
    }


def _read_description(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / "bank.json").read_text("utf-8"))
    except OSError as error:
        raise UserError(f"{folder}: no bank here ({error.strerror}); make it first.") from error
    except json.JSONDecodeError as error:
        raise UserError(f"{folder}: bank.json is damaged; delete the folder.") from error
