"""What the header of an image file tells, without decoding it (and without torch)."""

import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image

from rncdl.errors import UserError

_ORIENTATION_TAG = 0x0112
_UPRIGHT = 1
_SIDEWAYS = (5, 6, 7, 8)

Size = tuple[int, int]
"""(height, width)"""


def read_sizes(path: Path) -> tuple[Size, Size]:
    """(height, width) of an image upright and as stored."""
    try:
        with Image.open(path) as image:
            stored = image.height, image.width
            is_sideways = orientation(image) in _SIDEWAYS
    except FileNotFoundError as error:
        raise UserError(f"{path}: cannot read the image ({error.strerror}).") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(
            f"{path}: broken or unsupported image ({failure_reason(error)})."
        ) from error
    return (stored[1], stored[0]) if is_sideways else stored, stored


def read_sizes_of_all(paths: Sequence[Path]) -> list[tuple[Size, Size] | UserError]:
    """What `read_sizes` returns or raises for each path, read by several threads."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(_sizes_or_error, paths))


def _sizes_or_error(path: Path) -> tuple[Size, Size] | UserError:
    try:
        return read_sizes(path)
    except UserError as error:
        return error


def orientation(image: Image.Image) -> int:
    """EXIF's number for how the camera was held, 1 to 8; 1 (upright) where there is none."""
    try:
        # Pillow would decode a whole PNG to look behind its pixels.
        if image.format == "PNG":
            exif = Image.Exif()
            exif.load(image.info.get("exif", b""))
        else:
            exif = image.getexif()
        return exif.get(_ORIENTATION_TAG, _UPRIGHT)
    except (SyntaxError, ValueError, KeyError, OSError, struct.error):  # EXIF data are broken
        return _UPRIGHT


def failure_reason(error: Exception) -> str:
    """The error's own words: without the places in C++ sources, addresses, or further lines."""
    if type(error).__name__ == "UnidentifiedImageError":
        return "not an image in a known format"
    first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
    return first_line.rsplit(".cpp:", 1)[-1].lstrip("0123456789, ")
