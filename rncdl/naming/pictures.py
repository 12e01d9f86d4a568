"""Pictures of regions for the page, cut when they are asked for."""

import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from PIL import Image

from rncdl.data.records import ImageRecord
from rncdl.discovery.bank import Bank
from rncdl.gallery.thumbnails import cut_thumbnail, open_picture
from rncdl.naming.edits import RegionKey

THUMBNAIL_PX = 112
_PHOTOGRAPH_PX = 1600
_MAX_BYTES = 64 * 2**20
"""What is kept in memory of encoded pictures."""


class Pictures:
    """Thumbnails and photographs of the bank's images, and of no other file."""

    def __init__(self, bank: Bank, images: Sequence[ImageRecord]) -> None:
        self._bank, self._images = bank, images
        self._counts = bank.counts()
        self._kept = _Kept(_MAX_BYTES)

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

        return self._kept.get(key, cut)

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

        return self._kept.get((image, -1), shrink)

    def place_in_photograph(self, key: RegionKey) -> dict[str, object] | None:
        """The region's box as shares of the image's width and height, and the image's name."""
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
            "file": image.path.name,
        }


class _Kept:
    """Encoded pictures up to a number of bytes; those asked for least recently go first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._num_bytes = max_bytes, 0
        self._pictures: OrderedDict[RegionKey, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: RegionKey, make: Callable[[], bytes | None]) -> bytes | None:
        with self._lock:
            if key in self._pictures:
                self._pictures.move_to_end(key)
                return self._pictures[key]
        made = make()
        if made is not None:
            self._keep(key, made)
        return made

    def _keep(self, key: RegionKey, made: bytes) -> None:
        with self._lock:
            if key in self._pictures:
                return
            self._pictures[key] = made
            self._num_bytes += len(made)
            while self._num_bytes > self._max_bytes:
                self._num_bytes -= len(self._pictures.popitem(last=False)[1])


def _webp(picture: Image.Image) -> bytes:
    content = io.BytesIO()
    picture.save(content, "WEBP", quality=80, method=2)
    return content.getvalue()
