"""Images that are the same, and images that are all alike."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from rncdl.origins import digest

_LOOKED_AT = 48
"""Images that stand for a whole set."""
_LEAST_IMAGES = 8
"""Fewer say nothing about a set."""
_THUMBNAIL_PX = 16
_ALIKE = 3.0
"""Grey values that images of a still scene differ by; photographs differ by dozens."""


def find_copies(paths: Sequence[Path], among: Sequence[Path]) -> list[tuple[Path, Path]]:
    """Each of `paths` whose file is byte for byte one of `among`, with the first such one.

    Only files of the same length are read.
    """
    by_length = defaultdict[int, list[Path]](list)
    for path, length in _lengths(among):
        by_length[length].append(path)
    first_with: dict[int, dict[str, Path]] = {}
    copies = []
    for path, length in _lengths(paths):
        if length not in by_length:
            continue
        if length not in first_with:
            others = reversed(by_length[length])
            first_with[length] = {digest(other.read_bytes()): other for other in others}
        copy = first_with[length].get(digest(path.read_bytes()))
        if copy is not None:
            copies.append((path, copy))
    return copies


def find_repeats(paths: Sequence[Path]) -> list[tuple[Path, Path]]:
    """Each file that is byte for byte an earlier one of another name, with the first such one."""
    places = dict.fromkeys(paths)
    return [(path, copy) for path, copy in find_copies(list(places), list(places)) if path != copy]


def mean_difference(paths: Sequence[Path]) -> float | None:
    """How far images are from their mean, in grey values of 255; None where few can be read.

    A few dozen of them are looked at, spread over the whole.
    """
    every = max(1, len(paths) // _LOOKED_AT)
    thumbnails = [seen for path in paths[::every] if (seen := _thumbnail(path)) is not None]
    if len(thumbnails) < _LEAST_IMAGES:
        return None
    stacked = np.stack(thumbnails)
    return float(np.abs(stacked - stacked.mean(axis=0)).mean())


def are_alike(difference: float) -> bool:
    """Whether images that differ so far look all the same."""
    return difference < _ALIKE


def _lengths(paths: Iterable[Path]) -> list[tuple[Path, int]]:
    return [(path, path.stat().st_size) for path in paths if path.is_file()]


def _thumbnail(path: Path) -> np.ndarray | None:
    try:
        with Image.open(path) as image:
            image.draft("L", (4 * _THUMBNAIL_PX, 4 * _THUMBNAIL_PX))
            grey = image.convert("L").resize((_THUMBNAIL_PX, _THUMBNAIL_PX))
            return np.asarray(grey, dtype=np.float32)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None  # said elsewhere
