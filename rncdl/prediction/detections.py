"""Detections of a whole dataset in columns, and COCO's results json that holds them."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from pycocotools import mask as coco_mask

from rncdl.data.masks import RunLengths, rle_to_json
from rncdl.data.records import ImageRecord
from rncdl.errors import UserError
from rncdl.regions import Regions
from rncdl.training.processes import Processes

_OPENING = b"[\n"


@dataclass(frozen=True)
class Detections:
    """D detections of many images, in any order. Ids are those of the dataset's file."""

    image_ids: np.ndarray
    """(D,) int64"""
    category_ids: np.ndarray
    """(D,) int64; where no class is known yet, the output's index"""
    scores: np.ndarray
    """(D,) float, finite"""
    boxes_xyxy: np.ndarray
    """(D, 4) float, pixels of the original image"""
    rles: list[dict[str, Any]] | None = field(default=None, repr=False)
    """(D,) COCO run-length masks {"size": [h, w], "counts": bytes}, None where only boxes exist"""
    within_cut: np.ndarray | None = None
    """(D,) bool: whether a detection is also among its image's best when no output is left out"""

    def __post_init__(self) -> None:
        num = len(self.image_ids)
        lengths = {len(self.category_ids), len(self.scores), len(self.boxes_xyxy)}
        if lengths != {num} or (self.rles is not None and len(self.rles) != num):
            raise ValueError("the columns of Detections differ in length")

    def __len__(self) -> int:
        return len(self.image_ids)

    def select(self, rows: np.ndarray) -> "Detections":
        """The chosen rows: indices, in their order, or a (D,) boolean column."""
        index = np.flatnonzero(rows) if rows.dtype == bool else rows
        return Detections(
            image_ids=self.image_ids[index],
            category_ids=self.category_ids[index],
            scores=self.scores[index],
            boxes_xyxy=self.boxes_xyxy[index],
            rles=None if self.rles is None else [self.rles[row] for row in index.tolist()],
            within_cut=None if self.within_cut is None else self.within_cut[index],
        )

    @classmethod
    def empty(cls) -> "Detections":
        """No detections."""
        ids = np.zeros(0, dtype=np.int64)
        return cls(ids, ids, np.zeros(0), np.zeros((0, 4)))

    @classmethod
    def of_images(cls, images: Sequence[ImageRecord], found: Sequence[Regions]) -> "Detections":
        """The regions of each image as columns; `category_ids` are output indices."""
        parts = []
        for image, regions in zip(images, found, strict=True):
            assert regions.labels is not None
            assert regions.scores is not None
            cut = regions.within_cut
            parts.append(
                cls(
                    image_ids=np.full(len(regions), image.id, dtype=np.int64),
                    category_ids=regions.labels.cpu().numpy(),
                    scores=regions.scores.float().cpu().numpy(),
                    boxes_xyxy=regions.boxes_xyxy.float().cpu().numpy(),
                    rles=regions.rles,
                    within_cut=None if cut is None else cut.cpu().numpy(),
                )
            )
        return cls.concatenate(parts)

    @classmethod
    def concatenate(cls, parts: Sequence["Detections"]) -> "Detections":
        """All parts, one after the other; masks only when every part that is not empty has them."""
        parts = [part for part in parts if len(part)]
        if not parts:
            return cls.empty()
        masks = [part.rles for part in parts]
        cuts = [part.within_cut for part in parts if part.within_cut is not None]
        return cls(
            image_ids=np.concatenate([part.image_ids for part in parts]),
            category_ids=np.concatenate([part.category_ids for part in parts]),
            scores=np.concatenate([part.scores for part in parts]),
            boxes_xyxy=np.concatenate([part.boxes_xyxy for part in parts]),
            rles=[rle for rles in masks for rle in rles or ()] if None not in masks else None,
            within_cut=np.concatenate(cuts) if len(cuts) == len(parts) else None,
        )


class _Entry(msgspec.Struct, gc=False):
    """One detection of a results json."""

    image_id: int
    category_id: int
    score: float
    bbox: tuple[float, float, float, float] | None = None
    """x, y, width, height"""
    segmentation: RunLengths | None = None
    within_cut: bool = True


def read_detections(path: Path, *, images: Iterable[ImageRecord]) -> Detections:
    """The detections of a COCO results json: a list of {image_id, category_id, score, bbox, ...}.

    `images` are those of the dataset; an entry of any other image is a UserError, as is a field
    that is missing or out of range. Boxes are taken from the masks where an entry has no bbox.
    """
    entries = _decode(path)
    if not entries:
        return Detections.empty()
    _check_images(path, entries, images)
    detections = Detections(
        image_ids=np.array([entry.image_id for entry in entries], dtype=np.int64),
        category_ids=np.array([entry.category_id for entry in entries], dtype=np.int64),
        scores=np.array([entry.score for entry in entries], dtype=np.float64),
        boxes_xyxy=_boxes_xyxy(path, entries),
        rles=_rles(path, entries),
        within_cut=np.array([entry.within_cut for entry in entries], dtype=bool),
    )
    _check_numbers(path, "score", detections.scores[:, None])
    _check_numbers(path, "bbox", detections.boxes_xyxy)
    return detections


class DetectionWriter:
    """Writes a COCO results json part by part, so that only one part is ever in memory.

    The file appears under its name when it is complete.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._separator = _OPENING
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            self._file = self._unfinished.open("wb")
        except OSError as error:
            raise self._refusal(error) from error

    def write(self, part: Detections) -> None:
        """Add the detections of `part`."""
        self._add(encode_detections(part))

    def add_file(self, path: Path) -> None:
        """Add the detections of another file that holds one a line."""
        with path.open("rb") as file:
            self._add(line.rstrip(b",\n") for line in file if line.startswith(b"{"))

    def close(self) -> None:
        """Finish the file and give it its name."""
        try:
            self._file.write(b"[]\n" if self._separator == _OPENING else b"\n]\n")
            self._file.close()
            self._unfinished.replace(self._path)
        except OSError as error:
            raise self._refusal(error) from error

    def _add(self, entries: Iterable[bytes]) -> None:
        try:
            for entry in entries:
                self._file.write(self._separator)
                self._file.write(entry)
                self._separator = b",\n"
        except OSError as error:
            self._unfinished.unlink(missing_ok=True)
            raise self._refusal(error) from error

    def _refusal(self, error: OSError) -> UserError:
        return UserError(f"{self._path}: cannot write the detections ({error.strerror}).")


def write_detections(path: Path, parts: Iterable[Detections]) -> None:
    """A COCO results json of all parts, written as they come."""
    writer = DetectionWriter(path)
    for part in parts:
        writer.write(part)
    writer.close()


def write_shared_detections(
    paths: Sequence[Path], batches: Iterable[Sequence[Detections]], processes: Processes
) -> None:
    """One results json per path, of all processes' batches; `batches` has a part for each path.

    Every process writes a shard as its batches come; the first one joins them.
    """

    def shard(path: Path, rank: int) -> Path:
        return path.with_name(f"{path.stem}.part{rank}.json")

    writers = [DetectionWriter(shard(path, processes.rank)) for path in paths]
    for batch in batches:
        for writer, part in zip(writers, batch, strict=True):
            writer.write(part)
    for writer in writers:
        writer.close()
    processes.wait_for_all()
    if processes.is_main:
        for path in paths:
            joined = DetectionWriter(path)
            for rank in range(processes.count):
                joined.add_file(shard(path, rank))
                shard(path, rank).unlink()
            joined.close()
    processes.wait_for_all()


def encode_detections(
    part: Detections, *, fields_of: Mapping[int, Mapping[str, Any]] | None = None
) -> Iterator[bytes]:
    """Each detection as a JSON object; `fields_of`: what those of a category id say besides."""
    encoder = msgspec.json.Encoder()
    for entry in _entries(part):
        more = {} if fields_of is None else fields_of[entry["category_id"]]
        yield encoder.encode({**entry, **more})


def _entries(detections: Detections) -> Iterable[dict[str, Any]]:
    boxes_xywh = detections.boxes_xyxy.astype(np.float64)
    boxes_xywh[:, 2:] -= boxes_xywh[:, :2]
    columns = zip(
        detections.image_ids.tolist(),
        detections.category_ids.tolist(),
        detections.scores.tolist(),
        boxes_xywh.tolist(),
        strict=True,
    )
    for row, (image_id, category_id, score, bbox) in enumerate(columns):
        entry = {"image_id": image_id, "category_id": category_id, "score": score, "bbox": bbox}
        if detections.rles is not None:
            entry["segmentation"] = rle_to_json(detections.rles[row])
        if detections.within_cut is not None:
            entry["within_cut"] = bool(detections.within_cut[row])
        yield entry


def _decode(path: Path) -> list[_Entry]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot read the detections ({error.strerror}).") from error
    try:
        return msgspec.json.decode(content, type=list[_Entry])
    except msgspec.ValidationError as error:
        raise UserError(
            f"{path}: {error}. Each detection needs image_id, category_id, score, and bbox "
            "[x, y, width, height] or a run-length segmentation; $[0] is the first."
        ) from error
    except msgspec.DecodeError as error:
        raise UserError(f"{path}: {_explain_malformed(content, error)}") from error


def _explain_malformed(content: bytes, error: msgspec.DecodeError) -> str:
    """Which number is not finite (json writers put NaN, which is no JSON), or else the error."""
    try:
        entries = json.loads(content)
    except ValueError as problem:
        return f"not valid JSON ({problem})."
    for row, entry in enumerate(entries if isinstance(entries, list) else []):
        for key, value in entry.items() if isinstance(entry, dict) else ():
            numbers = value if isinstance(value, list) else [value]
            if any(isinstance(number, float) and not np.isfinite(number) for number in numbers):
                return f"entry $[{row}] has {key} = {value}: remove it or give a finite number."
    return f"not valid JSON ({error})."


def _check_images(path: Path, entries: list[_Entry], images: Iterable[ImageRecord]) -> None:
    sizes = {image.id: (image.height, image.width) for image in images}
    for row, entry in enumerate(entries):
        size = sizes.get(entry.image_id)
        if size is None:
            raise UserError(
                f"{path}: entry $[{row}] has image_id = {entry.image_id}, which the dataset does "
                "not have: evaluate against the file that the detections were made for."
            )
        if entry.segmentation is not None and entry.segmentation.size != size:
            raise UserError(
                f"{path}: entry $[{row}] has segmentation.size = {list(entry.segmentation.size)}, "
                f"its image has {list(size)} (height, width): give masks of the image's size."
            )


def _rles(path: Path, entries: list[_Entry]) -> list[dict[str, Any]] | None:
    """Masks of all entries, None where none has one."""
    has_mask = [entry.segmentation is not None for entry in entries]
    if not any(has_mask):
        return None
    if not all(has_mask):
        raise UserError(
            f"{path}: entry $[{has_mask.index(False)}] has no segmentation, others have: "
            "give every entry a mask, or none."
        )
    return [_compressed(entry.segmentation) for entry in entries if entry.segmentation]


def _compressed(mask: RunLengths) -> dict[str, Any]:
    size = list(mask.size)
    if isinstance(mask.counts, str):
        return {"size": size, "counts": mask.counts.encode("ascii")}
    return coco_mask.frPyObjects({"size": size, "counts": mask.counts}, *size)


def _boxes_xyxy(path: Path, entries: list[_Entry]) -> np.ndarray:
    boxes = []
    for row, entry in enumerate(entries):
        if entry.bbox is not None:
            boxes.append(entry.bbox)
        elif entry.segmentation is not None:
            boxes.append(tuple(coco_mask.toBbox(_compressed(entry.segmentation)).tolist()))
        else:
            raise UserError(f"{path}: entry $[{row}] has neither bbox nor segmentation: add one.")
    boxes_xyxy = np.array(boxes, dtype=np.float64)
    is_negative = (boxes_xyxy[:, 2:] < 0).any(axis=1)
    if is_negative.any():
        row = int(is_negative.argmax())
        raise UserError(
            f"{path}: entry $[{row}] has bbox = {list(boxes[row])}: width and height, the last "
            "two numbers, cannot be negative."
        )
    boxes_xyxy[:, 2:] += boxes_xyxy[:, :2]
    return boxes_xyxy


def _check_numbers(path: Path, name: str, values: np.ndarray) -> None:
    is_bad = ~np.isfinite(values).all(axis=1)
    if is_bad.any():
        row = int(is_bad.argmax())
        raise UserError(
            f"{path}: entry $[{row}] has {name} = {values[row].tolist()}: give finite numbers."
        )
