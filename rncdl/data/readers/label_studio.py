"""Label Studio's JSON export: tasks with what people have annotated."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec
import numpy as np

from rncdl.data.annotation_file import ConvertedFile, read_json
from rncdl.data.brush_masks import unpack_mask
from rncdl.data.image_headers import Size, read_sizes
from rncdl.data.image_paths import IMAGE_SUFFIXES, ImageFinder
from rncdl.data.masks import encode_rle
from rncdl.data.readers.gathering import Gathered, Region, ellipse_points, extent, turned
from rncdl.errors import UserError

_EXPECTED = "In a file that is a list, Label Studio's JSON export (not JSON-MIN)"
_UPLOAD_MARK = re.compile(r"^[0-9a-f]{8}-")
"""What Label Studio puts before the names of uploaded files."""


class _Result(msgspec.Struct):
    value: dict[str, Any] = {}
    original_width: int | None = None
    original_height: int | None = None
    image_rotation: float | None = None


class _Annotation(msgspec.Struct):
    result: list[_Result] = []
    was_cancelled: bool = False
    ground_truth: bool = False


class _Task(msgspec.Struct):
    data: dict[str, Any]
    id: int | None = None
    annotations: list[_Annotation] = []

    def chosen(self) -> _Annotation | None:
        """The annotation that counts: ground truth where somebody has said so, else the last."""
        done = [one for one in self.annotations if not one.was_cancelled]
        truth = [one for one in done if one.ground_truth]
        return (truth or done)[-1] if done else None


def read_label_studio(path: Path, images_dir: Path | None) -> ConvertedFile:
    """The tasks that people have annotated; predictions are not labels."""
    tasks = read_json(path, list[_Task], expected=_EXPECTED)
    gathered = Gathered()
    finder = ImageFinder(path, images_dir)
    passed_over: Counter[str] = Counter()
    for index, task in enumerate(tasks):
        annotation = task.chosen()
        if annotation is None:
            passed_over["task without an annotation"] += 1
            continue
        where = f"{path}: $[{index}] (task {task.id})"
        image = finder.first_existing(_names_of(task, where))
        size = _size_of(annotation)
        gathered.add_image(image, size)
        for row, result in enumerate(annotation.result):
            place = f"{where}, result {row + 1}"
            label = _label_of(result)
            kind = next((key for key in _REGIONS if key in result.value), None)
            if label is None or kind is None:
                passed_over["result that is no region with a label"] += 1
                continue
            size = size or read_sizes(image)[0]
            gathered.add_object(label, _region(result, kind, size, place), place=place)
    if not gathered.images:
        raise UserError(
            f"{path}: none of its {len(tasks)} tasks has an annotation (predictions do not count). "
            "Submit annotations in Label Studio and export again."
        )
    gathered.notes += [f"{count} × {what} was left out" for what, count in passed_over.items()]
    return gathered.to_file()


def _names_of(task: _Task, where: str) -> list[str]:
    """Where the image may be, the most exact first: addresses end in a path below some folder."""
    address = task.data.get("image") or next(filter(_is_image, task.data.values()), None)
    if not isinstance(address, str):
        raise UserError(f"{where}: `data` has no image. Export tasks that have one.")
    split = urlsplit(address)
    path = parse_qs(split.query).get("d", [unquote(split.path)])[0]
    parts = PurePosixPath(path).parts
    names = ["/".join(parts[start:]) for start in range(len(parts)) if parts[start] != "/"]
    names.append(_UPLOAD_MARK.sub("", parts[-1]))
    mine = task.data.get("file")
    return [*names, mine] if isinstance(mine, str) and mine else names


def _is_image(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    return any(PurePosixPath(part).suffix.lower() in IMAGE_SUFFIXES for part in value.split("?"))


def _size_of(annotation: _Annotation) -> Size | None:
    for result in annotation.result:
        if result.original_height and result.original_width:
            return result.original_height, result.original_width
    return None


def _label_of(result: _Result) -> str | None:
    """The first label; its key is `rectanglelabels` and the like."""
    for key, value in result.value.items():
        if key.endswith("labels") and isinstance(value, list) and value:
            return str(value[0])
    return None


def _region(result: _Result, kind: str, size: Size, place: str) -> Region:
    if result.image_rotation:
        raise UserError(
            f"{place}: `image_rotation` is {result.image_rotation:g}; turn the image itself and "
            "label it again."
        )
    try:
        return _REGIONS[kind](result.value, size)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{place}: `value` is {str(result.value)[:80]!r}; a number is missing or wrong "
            f"({error}). Correct it or export again."
        ) from error
    except UserError as error:
        raise UserError(f"{place}: {error}. Export again.") from error


def _brush(value: dict[str, Any], size: Size) -> Region:
    return Region.of_rle(encode_rle(unpack_mask(value["rle"], *size)))


def _polygon(value: dict[str, Any], size: Size) -> Region:
    points = np.array(value["points"], dtype=np.float64).reshape(-1, 2)
    if len(points) < 3:
        raise ValueError("fewer than three points")
    return Region.of_polygon(_pixels(points, size))


def _ellipse(value: dict[str, Any], size: Size) -> Region:
    centre, radii = _pixels(
        np.array(
            [[value["x"], value["y"]], [value["radiusX"], value["radiusY"]]], dtype=np.float64
        ),
        size,
    )
    points = ellipse_points(centre.tolist(), radii.tolist())
    return Region.of_polygon(turned(points, value.get("rotation") or 0, around=centre.tolist()))


def _rectangle(value: dict[str, Any], size: Size) -> Region:
    """One that is turned, around its first corner, becomes the upright one around it."""
    left, top, width, height = (float(value[key]) for key in ("x", "y", "width", "height"))
    right, bottom = left + width, top + height
    corners = _pixels(np.array([[left, top], [right, top], [right, bottom], [left, bottom]]), size)
    degrees = value.get("rotation") or 0
    return Region(extent(turned(corners, degrees, around=corners[0].tolist())))


def _pixels(per_cent: np.ndarray, size: Size) -> np.ndarray:
    height, width = size
    return per_cent / 100 * (width, height)


_REGIONS: dict[str, Callable[[dict[str, Any], Size], Region]] = {
    "rle": _brush,
    "points": _polygon,
    "radiusX": _ellipse,
    "width": _rectangle,
}
"""By what a value of the kind has and those further down have not"""
