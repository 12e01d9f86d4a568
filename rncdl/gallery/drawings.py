"""Boxes, masks and names on images: known classes in quiet colours, novel ones in red tones."""

import colorsys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont

MIN_SHOWN_SCORE = 0.1
"""For probabilities weighed by the foreground's and the objectness: those of novel classes are
small. On the drawn world 67 % of what is then drawn lies on an object, and 78 % of the objects are
drawn; weighed by the foreground alone, no threshold reaches both."""
MAX_SHOWN_IOU = 0.4
"""A region that shares more than this with a better one is not drawn, whatever its class."""
MAX_PART_IOU = 0.2
"""The same for a region that lies almost wholly within the other; what is much smaller may be an
object of its own, as a phone in a hand."""
_ALMOST_WHOLLY = 0.75
DRAWING_SIDE_PX = 480
"""Images whose longest side is shorter are enlarged to about this before they are drawn on."""

_QUIET_HUES = (0.36, 0.72)  # green over blue to violet
_RED_HUES = (-0.07, 0.075)  # crimson over red to orange
_MASK_OPACITY = 0.35

Colour = tuple[int, int, int]
Plate = tuple[float, float, float, float]
"""Where a name is written: left, top, right, bottom."""


@dataclass(frozen=True)
class Marks:
    """R regions to be drawn on one image, in its pixels."""

    boxes_xyxy: np.ndarray
    """(R, 4)"""
    names: Sequence[str]
    """(R,)"""
    colours: Sequence[Colour]
    """(R,) see `class_colour`"""
    scores: np.ndarray | None = None
    """(R,) in [0, 1]; None: they are annotations"""
    masks: np.ndarray | None = None
    """(R, height, width) bool"""

    def __len__(self) -> int:
        return len(self.boxes_xyxy)

    def select(self, rows: np.ndarray) -> "Marks":
        """The chosen rows, in their order."""
        return Marks(
            boxes_xyxy=self.boxes_xyxy[rows],
            names=[self.names[row] for row in rows],
            colours=[self.colours[row] for row in rows],
            scores=None if self.scores is None else self.scores[rows],
            masks=None if self.masks is None else self.masks[rows],
        )


def class_colour(name: str, *, novel: bool) -> Colour:
    """The colour of a class or cluster, the same one wherever its name is drawn."""
    place = zlib.crc32(name.encode()) / 2**32
    low, high = _RED_HUES if novel else _QUIET_HUES
    hue = (low + (high - low) * place) % 1.0
    saturation, value = (0.85, 0.96) if novel else (0.50, 0.78)
    red, green, blue = colorsys.hsv_to_rgb(hue, saturation, value)
    return round(255 * red), round(255 * green), round(255 * blue)


def choose_shown(
    boxes_xyxy: np.ndarray, scores: np.ndarray, *, min_score: float = MIN_SHOWN_SCORE
) -> np.ndarray:
    """Rows worth drawing, the best first: of a heap of overlapping regions only the best one.

    `boxes_xyxy` (R, 4), `scores` (R,). Classes play no part: an object is drawn once.
    """
    rows = np.argsort(-scores, kind="stable")
    kept: list[int] = []
    for row in rows[scores[rows] >= min_score].tolist():
        iou, cover = _overlaps(boxes_xyxy[row], boxes_xyxy[kept])
        limits = np.where(cover > _ALMOST_WHOLLY, MAX_PART_IOU, MAX_SHOWN_IOU)
        if (iou <= limits).all():
            kept.append(row)
    return np.array(kept, dtype=np.int64)


def _overlaps(box_xyxy: np.ndarray, others_xyxy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """IoU (n,) of a box with others (n, 4), and the share (n,) of the smaller that is covered."""
    corners = np.maximum(box_xyxy[:2], others_xyxy[:, :2])
    sides = (np.minimum(box_xyxy[2:], others_xyxy[:, 2:]) - corners).clip(min=0)
    shared = sides.prod(1)
    area = (box_xyxy[2:] - box_xyxy[:2]).prod()
    areas = (others_xyxy[:, 2:] - others_xyxy[:, :2]).prod(1)
    smaller = np.minimum(area, areas).clip(min=1e-9)
    return shared / (area + areas - shared).clip(min=1e-9), shared / smaller


def draw_marks(image: Image.Image, marks: Marks, *, side_px: int = DRAWING_SIDE_PX) -> Image.Image:
    """The image with the regions on it, the last one lowest; a small image comes out enlarged."""
    scale = max(1, round(side_px / max(image.size)))
    width, height = image.width * scale, image.height * scale
    drawn = image.convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
    line_px = max(2, round(max(width, height) / 240))
    for row in reversed(range(len(marks))):
        if marks.masks is not None:
            drawn = _tint(drawn, marks.masks[row], marks.colours[row], scale=scale)
    pen = ImageDraw.Draw(drawn)
    for row in reversed(range(len(marks))):
        box = _inside(marks.boxes_xyxy[row] * scale, width, height)
        pen.rectangle(box, outline=marks.colours[row], width=line_px)
    plates: list[Plate] = []
    for row in range(len(marks)):
        box = _inside(marks.boxes_xyxy[row] * scale, width, height)
        plates.append(_place_name(pen, _caption(marks, row), box, taken=plates, size=drawn.size))
    for row in reversed(range(len(marks))):
        _write_name(pen, _caption(marks, row), plates[row], marks.colours[row], size=drawn.size)
    return drawn


def _tint(image: Image.Image, mask: np.ndarray, colour: Colour, *, scale: int) -> Image.Image:
    opacity = Image.fromarray(np.uint8(mask) * round(255 * _MASK_OPACITY))
    large = opacity.resize((mask.shape[1] * scale, mask.shape[0] * scale), Image.Resampling.NEAREST)
    return Image.composite(Image.new("RGB", image.size, colour), image, large)


def _inside(box_xyxy: np.ndarray, width: int, height: int) -> tuple[float, float, float, float]:
    """The box within the picture, its second corner never before its first."""
    x0, y0 = np.clip(box_xyxy[:2], 0, (width - 1, height - 1)).tolist()
    x1, y1 = np.clip(box_xyxy[2:], (x0, y0), (width - 1, height - 1)).tolist()
    return x0, y0, x1, y1


def _caption(marks: Marks, row: int) -> str:
    name = marks.names[row]
    return name if marks.scores is None else f"{name} {100 * marks.scores[row]:.0f}"


def _place_name(
    pen: ImageDraw.ImageDraw,
    text: str,
    box_xyxy: tuple[float, float, float, float],
    *,
    taken: Sequence[Plate],
    size: tuple[int, int],
) -> Plate:
    """The first place that is within the picture and free: above, inside or below the box.

    Where there is none, the name goes above the box or, at the upper border, inside it.
    """
    width, height = size
    x0, y0, x1, y1 = pen.textbbox((0, 0), text, _font(max(size)))
    plate_width, plate_height = x1 - x0 + 6, y1 - y0 + 6
    left, top, right, bottom = box_xyxy
    tops = (top - plate_height, top, bottom + 1, bottom - plate_height)
    places = [
        (x, y, x + plate_width, y + plate_height)
        for x in (max(0, min(left, width - plate_width)), max(0, right - plate_width))
        for y in tops
    ]
    fitting = [place for place in places if place[1] >= 0 and place[3] <= height]
    free = [place for place in fitting if not any(_touch(place, other) for other in taken)]
    return next(iter(free or fitting or places[1:]))


def _touch(one: Plate, other: Plate) -> bool:
    across = one[0] < other[2] and other[0] < one[2]
    return across and one[1] < other[3] and other[1] < one[3]


def _write_name(
    pen: ImageDraw.ImageDraw, text: str, plate: Plate, colour: Colour, *, size: tuple[int, int]
) -> None:
    font = _font(max(size))
    x0, y0, _, _ = pen.textbbox((0, 0), text, font)
    left, top, right, bottom = plate
    pen.rectangle((left, top, right - 1, bottom - 1), fill=colour)
    dark = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2] > 150
    pen.text((left + 3 - x0, top + 3 - y0), text, (20, 20, 20) if dark else (255, 255, 255), font)


def _font(picture_px: int) -> ImageFont.FreeTypeFont:
    """Pillow's own font, legible in a picture of this many pixels a side."""
    font = ImageFont.load_default(max(12, round(picture_px / 34)))
    assert isinstance(font, ImageFont.FreeTypeFont)
    return font
