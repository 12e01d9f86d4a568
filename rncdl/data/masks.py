"""Masks between their JSON forms (polygons, run lengths) and pixels."""

from collections.abc import Iterable

import msgspec
import numpy as np
from pycocotools import mask as coco_mask

from rncdl.errors import UserError

MIN_POLYGON_NUMBERS = 6
"""Three corners. Shorter lists enclose nothing (and pycocotools would take four for a box)."""
MAX_POLYGON_REACH = 10
"""No corner lies farther out than this many image sides: pycocotools' memory grows with it."""
MAX_RUN_CHARACTERS = 7
"""35 bits, more than any run needs."""


class RunLengths(msgspec.Struct):
    """COCO's run-length mask as it stands in a JSON file."""

    size: tuple[int, int]
    """(height, width)"""
    counts: str | list[int]
    """compressed text, or run lengths down the columns, the first one of zeros"""


_DECODER = msgspec.json.Decoder(list[list[float]] | RunLengths)


def parse_segmentation(raw_json: bytes) -> list[list[float]] | RunLengths:
    """Polygons [[x, y, x, y, ...], ...] or run lengths; UserError says what is wrong otherwise."""
    try:
        return _DECODER.decode(raw_json)
    except msgspec.DecodeError as error:
        raise UserError(f"segmentation is neither polygons nor run lengths: {error}") from error


def decode_masks(raw_jsons: Iterable[bytes], height: int, width: int) -> np.ndarray:
    """(n, height, width) bool pixels of n masks."""
    return decode_rles([to_rle(raw_json, height, width) for raw_json in raw_jsons], height, width)


def decode_rles(rles: list[dict], height: int, width: int) -> np.ndarray:
    """(n, height, width) bool pixels of n compressed run lengths."""
    if not rles:
        return np.zeros((0, height, width), dtype=bool)
    stacked = coco_mask.decode(rles)
    return np.ascontiguousarray(stacked.transpose(2, 0, 1)).view(bool)


def to_rle(raw_json: bytes, height: int, width: int) -> dict:
    """The same mask as compressed run lengths: {"size": [height, width], "counts": bytes}."""
    parsed = parse_segmentation(raw_json)
    if isinstance(parsed, RunLengths):
        return _compress_runs(parsed, height, width)
    polygons = [p for p in parsed if len(p) >= MIN_POLYGON_NUMBERS]
    if not polygons:
        return encode_rle(np.zeros((height, width), dtype=bool))
    _check_polygons(polygons, reach_px=MAX_POLYGON_REACH * max(height, width))
    return coco_mask.merge(coco_mask.frPyObjects(polygons, height, width))


def encode_rle(mask: np.ndarray) -> dict:
    """A (height, width) bool mask as {"size": [height, width], "counts": bytes}."""
    return coco_mask.encode(np.asfortranarray(mask, dtype=np.uint8))


def rle_to_json(rle: dict) -> dict:
    """The run lengths with `counts` as text, fit for a JSON file."""
    return {"size": [int(side) for side in rle["size"]], "counts": rle["counts"].decode("ascii")}


def _check_polygons(polygons: list[list[float]], reach_px: int) -> None:
    for polygon in polygons:
        if len(polygon) % 2:
            raise UserError("segmentation has a polygon with an odd number of coordinates")
        farthest = max(abs(min(polygon)), abs(max(polygon)))
        if farthest > reach_px:
            raise UserError(f"segmentation has a polygon with a corner at {farthest:g} px")


def _compress_runs(rle: RunLengths, height: int, width: int) -> dict:
    """The run lengths compressed, once they are known to fill the image exactly.

    pycocotools leaves the pixels that no run covers undefined.
    """
    if rle.size != (height, width):
        raise UserError(
            f"segmentation has size (height, width) {rle.size}, its image has {(height, width)}"
        )
    counts = rle.counts
    runs = np.array(counts, np.int64) if isinstance(counts, list) else _read_runs(counts)
    if runs.sum() != height * width or (runs < 0).any():
        raise UserError(
            f"segmentation's run lengths cover {runs.sum()} pixels, its image has {height * width}"
        )
    if isinstance(counts, list):
        return coco_mask.frPyObjects({"size": [height, width], "counts": counts}, height, width)
    return {"size": [height, width], "counts": counts.encode("ascii")}


def _read_runs(counts: str) -> np.ndarray:
    """(runs,) int64 run lengths of COCO's compressed text.

    Each character carries five bits, the lowest first, and bit 5 says that more follow; from
    the fourth run on, a number is the difference to the run two places before.
    """
    codes = np.frombuffer(counts.encode("ascii", "replace"), np.uint8).astype(np.int64) - ord("0")
    ends = np.flatnonzero((codes & 0x20) == 0)
    if len(ends) == 0 or ends[-1] != len(codes) - 1 or (codes < 0).any() or (codes > 0x3F).any():
        raise UserError("segmentation's compressed run lengths are broken")
    starts = np.concatenate(([0], ends[:-1] + 1))
    digits = ends - starts + 1
    if digits.max() > MAX_RUN_CHARACTERS:
        raise UserError("segmentation's compressed run lengths are broken")
    place = np.arange(len(codes)) - np.repeat(starts, digits)
    runs = np.add.reduceat((codes & 0x1F) << (5 * place), starts)
    runs -= np.where(codes[ends] & 0x10, 1 << (5 * digits), 0)
    runs[1::2] = np.cumsum(runs[1::2])
    runs[2::2] = np.cumsum(runs[2::2])
    return runs
