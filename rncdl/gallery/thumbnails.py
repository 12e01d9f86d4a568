"""Small pictures of regions, packed into one strip per cluster so that many fit into a page."""

import base64
import io
import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from rncdl.data.images import read_image
from rncdl.data.records import ImageRecord
from rncdl.errors import UserError
from rncdl.gallery.exemplars import Kind

_MARGIN = 0.12
"""Surroundings shown on each side of a region, as a share of its longer side."""
_PADDING = (128, 128, 128)
_QUALITIES = (72, 55, 40, 28, 16, 6)
_SCALES = (1, 2, 4)
_SAMPLE = 64
"""How many pictures tell whether a quality is worth trying on all."""


@dataclass(frozen=True)
class ThumbnailPlan:
    """How many pictures of which size a cluster gets."""

    side_px: int
    per_kind: dict[Kind, int]


def plan_thumbnails(num_clusters: int) -> ThumbnailPlan:
    """Many large pictures for few clusters, few small ones for many."""
    if num_clusters <= 150:
        return ThumbnailPlan(72, {"confident": 4, "typical": 3, "random": 3, "doubtful": 2})
    if num_clusters <= 600:
        return ThumbnailPlan(56, {"confident": 3, "typical": 2, "random": 2, "doubtful": 1})
    if num_clusters <= 1500:
        return ThumbnailPlan(48, {"confident": 2, "typical": 1, "random": 1, "doubtful": 1})
    return ThumbnailPlan(40, {"confident": 1, "typical": 1, "random": 1, "doubtful": 1})


def cut_thumbnail(image: Image.Image, box_xyxy: Sequence[float], side_px: int) -> Image.Image:
    """A square picture of the region with a little of its surroundings, grey beyond the image."""
    x0, y0, x1, y1 = box_xyxy
    side = max(1, round((1 + 2 * _MARGIN) * max(x1 - x0, y1 - y0)))
    left = _window_start((x0 + x1) / 2, side, image.width)
    top = _window_start((y0 + y1) / 2, side, image.height)
    inside = (max(left, 0), max(top, 0))
    cut = image.crop((*inside, min(left + side, image.width), min(top + side, image.height)))
    window = Image.new("RGB", (side, side), _PADDING)
    window.paste(cut, (inside[0] - left, inside[1] - top))
    return window.resize((side_px, side_px), Image.Resampling.LANCZOS)


def _window_start(centre: float, side: int, length: int) -> int:
    """Where a window around `centre` begins: within [0, length] if it is short enough for it."""
    if side >= length:
        return (length - side) // 2
    return min(max(round(centre - side / 2), 0), length - side)


def cut_thumbnails(
    images: Sequence[ImageRecord],
    image_index: np.ndarray,
    boxes_xyxy: np.ndarray,
    *,
    side_px: int,
) -> list[Image.Image | None]:
    """Pictures of n regions, `boxes_xyxy` (n, 4), each image being read once.

    None where an image cannot be read any more.
    """
    rows_of: dict[int, list[int]] = defaultdict(list)
    for row, index in enumerate(image_index.tolist()):
        rows_of[index].append(row)
    cut: list[Image.Image | None] = [None] * len(image_index)
    for index, rows in rows_of.items():
        picture = open_picture(images[index])
        if picture is not None:
            for row in rows:
                cut[row] = cut_thumbnail(picture, boxes_xyxy[row].tolist(), side_px)
    return cut


def open_picture(image: ImageRecord) -> Image.Image | None:
    """The image, upright as its annotations have it; None where it cannot be read any more."""
    try:
        pixels = read_image(image.path, (image.height, image.width))
    except UserError:
        return None
    return Image.fromarray(pixels.permute(1, 2, 0).numpy())


def join_strip(thumbnails: Sequence[Image.Image]) -> Image.Image:
    """The pictures, all of one size, in a row without gaps."""
    side = thumbnails[0].height
    strip = Image.new("RGB", (side * len(thumbnails), side))
    for position, thumbnail in enumerate(thumbnails):
        strip.paste(thumbnail, (position * side, 0))
    return strip


def encode_within(pictures: Sequence[Image.Image], *, max_bytes: int) -> list[str]:
    """The pictures as data URIs of `max_bytes` in all: the best quality that fits.

    Where the lowest quality is still too much, the pictures are made smaller. Those for which
    even that leaves no room are empty texts.
    """
    sample = pictures[:: max(1, len(pictures) // _SAMPLE)]
    for scale, quality in itertools.product(_SCALES, _QUALITIES):
        tried = sum(len(_data_uri(one, quality=quality, scale=scale)) for one in sample)
        if tried * len(pictures) <= max_bytes * len(sample):
            encoded = [_data_uri(one, quality=quality, scale=scale) for one in pictures]
            if sum(map(len, encoded)) <= max_bytes:
                return encoded
    return _as_many_as_fit(pictures, max_bytes=max_bytes)


def _as_many_as_fit(pictures: Sequence[Image.Image], *, max_bytes: int) -> list[str]:
    encoded = []
    for picture in pictures:
        uri = _data_uri(picture, quality=_QUALITIES[-1], scale=_SCALES[-1])
        encoded.append(uri if len(uri) <= max_bytes else "")
        max_bytes -= len(encoded[-1])
    return encoded


def _data_uri(picture: Image.Image, *, quality: int, scale: int) -> str:
    buffer = io.BytesIO()
    picture.reduce(min(scale, *picture.size)).save(buffer, "WEBP", quality=quality, method=3)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
