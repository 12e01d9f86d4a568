"""Pictures of regions for the page, cut when they are asked for."""

import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import torch
from PIL import Image, ImageFilter

from rncdl.data.datasets import PlainImages
from rncdl.data.masks import decode_rles
from rncdl.data.records import ImageRecord
from rncdl.data.samples import Sample
from rncdl.detector.model import Detector
from rncdl.discovery.bank import Bank
from rncdl.errors import UserError
from rncdl.gallery.thumbnails import cut_thumbnail, open_picture
from rncdl.naming.edits import RegionKey
from rncdl.prediction.outlining import outline_regions

_PictureKey = tuple[int, int, int]
"""image, region, kind of picture"""
THUMBNAIL_PX = 112
_PHOTOGRAPH_PX = 1600
_MAX_BYTES = 64 * 2**20
"""What is kept in memory of encoded pictures."""
_MASK_RGB = (255, 59, 47)
_MASK_ALPHA = 80
_THUMBNAIL, _PHOTOGRAPH, _MASK = range(3)


class Outliner:
    """Draws the masks of regions, by a detector that is opened for the first of them."""

    def __init__(self, open_detector: Callable[[], Detector], images: PlainImages) -> None:
        """images: as the detector looks at them, in the bank's order."""
        self._open_detector, self._images = open_detector, images

    @cached_property
    def _detector(self) -> Detector:
        return self._open_detector()

    def outline(self, image: int, box_xyxy: Sequence[float]) -> np.ndarray | None:
        """(height, width) bool pixels of the image; None where it cannot be read any more."""
        try:
            sample = self._images[image, 0]
        except UserError:
            return None
        if not isinstance(sample, Sample):
            return None
        rles = outline_regions(self._detector, sample, torch.tensor([box_xyxy]))
        return decode_rles(rles, *sample.original_size)[0]


class Pictures:
    """Thumbnails, photographs and masks of the bank's images, and of no other file."""

    def __init__(
        self, bank: Bank, images: Sequence[ImageRecord], outliner: Outliner | None = None
    ) -> None:
        """outliner: None where the detector has no mask head."""
        self._bank, self._images, self._outliner = bank, images, outliner
        self._counts = bank.counts()
        self._kept = _Kept(_MAX_BYTES)
        self._looking = threading.Lock()

    def box(self, key: RegionKey) -> list[float] | None:
        """x0, y0, x1, y1 of a region in pixels; None where there is no such region."""
        image, region = key
        if not (0 <= image < len(self._images) and 0 <= region < self._counts[image]):
            return None
        return self._bank.read_boxes(image, count=region + 1)[region].tolist()

    def thumbnail(self, key: RegionKey) -> bytes | None:
        """A small square picture; None where there is no such region, or its image is gone."""
        box = self.box(key)
        if box is None:
            return None

        def cut() -> bytes | None:
            picture = open_picture(self._images[key[0]])
            return None if picture is None else _webp(cut_thumbnail(picture, box, THUMBNAIL_PX))

        return self._kept.get((*key, _THUMBNAIL), cut)

    def photograph(self, image: int) -> bytes | None:
        """The whole image, made smaller if it is large."""
        if not 0 <= image < len(self._images):
            return None

        def shrink() -> bytes | None:
            picture = open_picture(self._images[image])
            if picture is None:
                return None
            picture.thumbnail((_PHOTOGRAPH_PX, _PHOTOGRAPH_PX))
            return _webp(picture)

        return self._kept.get((image, 0, _PHOTOGRAPH), shrink)

    def mask(self, key: RegionKey) -> bytes | None:
        """A picture of the photograph's size, transparent but for the region's mask."""
        box = self.box(key)
        if box is None or self._outliner is None:
            return None
        outliner = self._outliner

        def draw() -> bytes | None:
            with self._looking:
                found = outliner.outline(key[0], box)
            return None if found is None else _webp(_draw_mask(found), lossless=True)

        return self._kept.get((*key, _MASK), draw)

    def place_in_photograph(self, key: RegionKey) -> dict[str, object] | None:
        """The box as shares of the image's width and height, and what else the page shows of it."""
        box = self.box(key)
        if box is None:
            return None
        image = self._images[key[0]]
        x0, y0, x1, y1 = box
        return {
            "left": x0 / image.width,
            "top": y0 / image.height,
            "width": (x1 - x0) / image.width,
            "height": (y1 - y0) / image.height,
            "ratio": image.width / image.height,
            "file": image.path.name,
            "mask": self._outliner is not None,
        }


class _Kept:
    """Encoded pictures up to a number of bytes; those asked for least recently go first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._num_bytes = max_bytes, 0
        self._pictures: OrderedDict[_PictureKey, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: _PictureKey, make: Callable[[], bytes | None]) -> bytes | None:
        with self._lock:
            if key in self._pictures:
                self._pictures.move_to_end(key)
                return self._pictures[key]
        made = make()
        if made is not None:
            self._keep(key, made)
        return made

    def _keep(self, key: _PictureKey, made: bytes) -> None:
        with self._lock:
            if key in self._pictures:
                return
            self._pictures[key] = made
            self._num_bytes += len(made)
            while self._num_bytes > self._max_bytes:
                self._num_bytes -= len(self._pictures.popitem(last=False)[1])


def _draw_mask(mask: np.ndarray) -> Image.Image:
    """A veil over the mask, and its outline."""
    inside = Image.fromarray(mask.astype(np.uint8) * 255)
    inside.thumbnail((_PHOTOGRAPH_PX, _PHOTOGRAPH_PX), Image.Resampling.NEAREST)
    is_inside = np.asarray(inside) > 0
    is_core = np.asarray(inside.filter(ImageFilter.MinFilter(3))) > 0
    drawn = np.zeros((*is_inside.shape, 4), dtype=np.uint8)
    drawn[..., :3] = _MASK_RGB
    drawn[..., 3] = np.where(is_core, _MASK_ALPHA, np.where(is_inside, 255, 0))
    return Image.fromarray(drawn)


def _webp(picture: Image.Image, *, lossless: bool = False) -> bytes:
    content = io.BytesIO()
    picture.save(content, "WEBP", quality=80, method=2, lossless=lossless)
    return content.getvalue()
