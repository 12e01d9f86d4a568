"""CVAT for images 1.1: one XML file; boxes, polygons, ellipses and masks."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from rncdl.data.annotation_file import ConvertedFile
from rncdl.data.image_headers import Size
from rncdl.data.image_paths import ImageFinder
from rncdl.data.readers.gathering import (
    Gathered,
    Region,
    ellipse_points,
    extent,
    to_number,
    turned,
)
from rncdl.data.run_lengths import from_row_major_counts
from rncdl.errors import UserError

FILE_NAME = "annotations.xml"


def is_cvat_folder(folder: Path) -> bool:
    """Whether a folder is an unpacked archive of CVAT's."""
    return (folder / FILE_NAME).is_file()


def read_cvat(path: Path, images_dir: Path | None) -> ConvertedFile:
    """The dataset of an XML file or of the folder that holds it."""
    file = path / FILE_NAME if path.is_dir() else path
    gathered = Gathered()
    finder = ImageFinder(file, images_dir)
    passed_over: Counter[str] = Counter()
    for element in _elements(file):
        if element.tag == "meta":
            names = element.iterfind(".//labels/label")
            gathered.add_classes(filter(None, (label.findtext("name") for label in names)))
        elif element.tag == "track":
            raise UserError(
                f"{file}: <track>: this is `CVAT for video`. Export it as `CVAT for images 1.1`."
            )
        else:
            _add_image(gathered, element, finder, file)
            passed_over.update(shape.tag for shape in element if shape.tag not in _REGIONS)
    gathered.notes += [
        f"{count} × <{tag}> is no region and was left out" for tag, count in passed_over.items()
    ]
    return gathered.to_file()


def _elements(file: Path) -> Iterator[ElementTree.Element]:
    """The elements below the root, each forgotten when the next one comes."""
    depth = 0
    root = None
    try:
        for event, element in ElementTree.iterparse(file, ("start", "end")):
            if event == "start":
                root = element if root is None else root
                depth += 1
                continue
            depth -= 1
            if depth == 1:
                if element.tag in ("meta", "track", "image"):
                    yield element
                assert root is not None
                root.clear()
    except ElementTree.ParseError as error:
        raise UserError(f"{file}: not XML: {error}.") from error
    except OSError as error:
        raise UserError(f"{file}: cannot read the file ({error.strerror}).") from error


def _add_image(
    gathered: Gathered, element: ElementTree.Element, finder: ImageFinder, file: Path
) -> None:
    name = element.get("name")
    where = f"{file}: <image id={element.get('id')!r}>"
    if not name:
        raise UserError(f"{where} has no `name`. Name the image's file.")
    height, width = (_whole(element, side, where) for side in ("height", "width"))
    folders = ("", "images/", f"images/{element.get('subset', 'default')}/")
    gathered.add_image(
        finder.first_existing([folder + name for folder in folders]), (height, width)
    )
    for index, shape in enumerate(element):
        if shape.tag not in _REGIONS:
            continue
        place = f"{file}, image {name!r}, <{shape.tag}> {index + 1}"
        label = shape.get("label")
        if not label:
            raise UserError(f"{place}: no `label`. Give the object its class.")
        gathered.add_object(label, _REGIONS[shape.tag](shape, (height, width), place), place=place)


def _number(element: ElementTree.Element, name: str, place: str) -> float:
    return to_number(element.get(name), f"{place}: `{name}`")


def _whole(element: ElementTree.Element, name: str, place: str) -> int:
    return int(_number(element, name, place))


def _box(shape: ElementTree.Element, size: Size, place: str) -> Region:
    """A box that is turned around its centre becomes the upright one around it."""
    left, top, right, bottom = (
        _number(shape, side, place) for side in ("xtl", "ytl", "xbr", "ybr")
    )
    degrees = to_number(shape.get("rotation", "0"), f"{place}: `rotation`")
    if not degrees:
        return Region((left, top, right, bottom))
    corners = np.array([[left, top], [right, top], [right, bottom], [left, bottom]])
    return Region(extent(turned(corners, degrees, around=corners.mean(0).tolist())))


def _polygon(shape: ElementTree.Element, size: Size, place: str) -> Region:
    pairs = [pair.split(",") for pair in shape.get("points", "").split(";")]
    where = f"{place}: `points`"
    if len(pairs) < 3 or any(len(pair) != 2 for pair in pairs):
        raise UserError(
            f"{where} is {shape.get('points')!r}; a polygon has three corners x,y;x,y;x,y or more."
        )
    return Region.of_polygon(np.array([[to_number(word, where) for word in p] for p in pairs]))


def _ellipse(shape: ElementTree.Element, size: Size, place: str) -> Region:
    x, y, radius_x, radius_y = (_number(shape, name, place) for name in ("cx", "cy", "rx", "ry"))
    degrees = to_number(shape.get("rotation", "0"), f"{place}: `rotation`")
    points = ellipse_points((x, y), (radius_x, radius_y))
    return Region.of_polygon(turned(points, degrees, around=(x, y)))


def _mask(shape: ElementTree.Element, size: Size, place: str) -> Region:
    left, top, width, height = (
        _whole(shape, name, place) for name in ("left", "top", "width", "height")
    )
    words = shape.get("rle", "").split(",")
    counts = [int(to_number(word.strip(), f"{place}: `rle`")) for word in words]
    try:
        return Region.of_rle(
            from_row_major_counts(counts, (left, top, width, height), image_size=size)
        )
    except UserError as error:
        raise UserError(f"{place}: {error}. Export the task again.") from error


_REGIONS: dict[str, Callable[[ElementTree.Element, Size, str], Region]] = {
    "box": _box,
    "polygon": _polygon,
    "ellipse": _ellipse,
    "mask": _mask,
}
