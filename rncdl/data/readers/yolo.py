"""YOLO: images, a text file of shares beside each, and the names of the classes."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rncdl.data.annotation_file import ConvertedFile
from rncdl.data.image_headers import Size, read_sizes_of_all
from rncdl.data.image_paths import image_files_below, list_images
from rncdl.data.readers.gathering import Gathered, Region, read_text, to_number
from rncdl.errors import UserError

PARTS = ("train", "val", "test")
DESCRIPTIONS = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")
NAME_LISTS = ("classes.txt", "obj.names", "labels/classes.txt")
_IMAGES, _LABELS = "images", "labels"
_HAS_NAMES = re.compile(r"^names\s*:", re.MULTILINE)
_FARTHEST_SHARE = 2
"""A box may leave its image; a number beyond this is no share of a side but pixels."""


@dataclass(frozen=True)
class _Dataset:
    source: Path
    """the file with the names, for messages"""
    names: dict[int, str]
    images: list[Path]
    notes: list[str]


def is_yolo_folder(folder: Path) -> bool:
    """Whether a folder is a YOLO dataset or the images of a part of one."""
    return _description_of(folder) is not None or _whole_of_part(folder) is not None


def read_yolo(path: Path, images_dir: Path | None) -> ConvertedFile:
    """The dataset of a data.yaml, of its folder, or of the images of one part."""
    if images_dir is not None:
        raise UserError(
            f"--images {images_dir}: {path} is a YOLO dataset, which tells where its images are. "
            "Leave --images out."
        )
    dataset = _find(path)
    gathered = Gathered(notes=dataset.notes)
    gathered.add_classes(dataset.names.values())
    num_labelled = 0
    sizes = read_sizes_of_all(dataset.images)
    for image, found in zip(dataset.images, sizes, strict=True):
        size = None if isinstance(found, UserError) else found[0]
        gathered.add_image(image, size)
        labels = label_file(image)
        if labels.is_file():
            num_labelled += 1
            if size is not None:
                _add_objects(gathered, labels, dataset, size)
    if not num_labelled:
        raise UserError(
            f"{path}: none of its {len(dataset.images)} images has labels; the first one's would "
            f"be {label_file(dataset.images[0])}. Put them there."
        )
    return gathered.to_file()


def label_file(image: Path) -> Path:
    """Where an image's labels are: below `labels` instead of `images`, or beside the image."""
    swapped, beside = _swap_folder(image).with_suffix(".txt"), image.with_suffix(".txt")
    return beside if beside.is_file() and not swapped.is_file() else swapped


def _swap_folder(path: Path) -> Path:
    parts = list(path.parts)
    for index in range(len(parts) - 1, -1, -1):
        if parts[index] == _IMAGES:
            return Path(*parts[:index], _LABELS, *parts[index + 1 :])
    return path


def _description_of(folder: Path) -> Path | None:
    """The file that names the classes of a folder with labels."""
    for name in DESCRIPTIONS:
        if (folder / name).is_file() and _HAS_NAMES.search(read_text(folder / name)):
            return folder / name
    for name in NAME_LISTS:
        if (folder / name).is_file() and (folder / _LABELS).is_dir():
            return folder / name
    return None


def _whole_of_part(folder: Path) -> Path | None:
    """The description of the dataset that a folder of images is a part of."""
    absolute = folder.absolute()
    if _IMAGES not in absolute.parts or not _swap_folder(absolute).is_dir():
        return None
    above = absolute.parents[:3]
    return next(filter(None, map(_description_of, above)), None)


def _find(path: Path) -> _Dataset:
    if path.is_file():
        return _described(path)
    whole = _description_of(path)
    if whole is not None:
        return _described(whole)
    part_of = _whole_of_part(path)
    assert part_of is not None
    return _Dataset(part_of, _names(part_of), list_images(path), [])


def _described(source: Path) -> _Dataset:
    names = _names(source)
    if source.suffix in (".yaml", ".yml"):
        images, notes = _images_of_parts(source, _read_yaml(source))
    else:
        root = source.parent.parent if source.parent.name == _LABELS else source.parent
        images, notes = list_images(root / _IMAGES if (root / _IMAGES).is_dir() else root), []
    return _Dataset(source, names, images, notes)


def _read_yaml(source: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(read_text(source))
    except yaml.YAMLError as error:
        raise UserError(f"{source}: not YAML: {error}.") from error
    if not isinstance(content, dict) or "names" not in content:
        raise UserError(f"{source}: no `names`; the data.yaml of a YOLO dataset lists its classes.")
    return content


def _names(source: Path) -> dict[int, str]:
    """Name by number."""
    if source.suffix not in (".yaml", ".yml"):
        lines = read_text(source).splitlines()
        return {index: line.strip() for index, line in enumerate(lines) if line.strip()}
    names = _read_yaml(source)["names"]
    if isinstance(names, list):
        return {index: str(name) for index, name in enumerate(names)}
    if isinstance(names, dict) and all(isinstance(key, int) for key in names):
        return {key: str(name) for key, name in sorted(names.items())}
    raise UserError(f"{source}: `names` is {names!r}; give a list, or a name for each number.")


def _images_of_parts(source: Path, content: dict[str, Any]) -> tuple[list[Path], list[str]]:
    root = source.parent / str(content.get("path") or "")
    root = root if root.is_dir() else source.parent
    found: dict[str, list[Path]] = {}
    notes = []
    for part in PARTS:
        entries = content.get(part) or []
        for entry in [entries] if isinstance(entries, str) else entries:
            place = _place_of(root, str(entry))
            if place is None:
                notes.append(f"`{part}`: {root / str(entry)} is not there and was left out")
                continue
            files = image_files_below(place) if place.is_dir() else list(_listed(place, root))
            found.setdefault(part, []).extend(files)
    images = list(dict.fromkeys(image for files in found.values() for image in files))
    if not images:
        raise UserError(
            f"{source}: no images in {', '.join(f'`{part}`' for part in PARTS)} "
            f"(looked below {root}). Correct these entries, or `path`."
        )
    if len(found) > 1:
        parts = ", ".join(f"{part} ({len(files)} images)" for part, files in found.items())
        notes.append(f"its parts are read together: {parts}; name one's folder of images for it")
    return images, notes


def _place_of(root: Path, entry: str) -> Path | None:
    """The folder or list that an entry names; Ultralytics, too, forgives a `../` too many."""
    for place in (root / entry, root / entry.removeprefix("../")):
        if place.exists():
            return place
    return None


def _listed(list_file: Path, root: Path) -> Iterator[Path]:
    """The images that a text file lists."""
    for line in filter(None, map(str.strip, read_text(list_file).splitlines())):
        beside = list_file.parent / line
        yield beside if beside.is_file() else root / line


def _add_objects(gathered: Gathered, labels: Path, dataset: _Dataset, size: Size) -> None:
    for number, line in enumerate(read_text(labels).splitlines(), 1):
        words = line.split()
        if words:
            place = f"{labels}, line {number}"
            name = _class_name(words[0], dataset, place)
            gathered.add_object(name, _region(words[1:], size, place), place=place)


def _class_name(word: str, dataset: _Dataset, place: str) -> str:
    name = dataset.names.get(int(word)) if word.isdecimal() else None
    if name is None:
        raise UserError(
            f"{place}: class {word!r} is not in {dataset.source}, which has the numbers "
            f"{min(dataset.names, default=0)} to {max(dataset.names, default=0)}. Correct the line "
            "or add the class."
        )
    return name


def _region(words: Sequence[str], size: Size, place: str) -> Region:
    """A box of centre and sides, or a polygon's corners."""
    shares = np.array(
        [to_number(word, f"{place}: number {index}") for index, word in enumerate(words, 1)]
    )
    if len(shares) != 4 and (len(shares) < 6 or len(shares) % 2):
        raise UserError(
            f"{place}: {len(shares)} numbers follow the class; a box has 4, a polygon an even "
            "number from 6 on."
        )
    if (np.abs(shares) > _FARTHEST_SHARE).any():
        raise UserError(
            f"{place}: {shares[np.abs(shares).argmax()]:g} is no share of the image's side; YOLO's "
            "numbers go from 0 to 1. Divide pixels by the image's width and height."
        )
    height, width = size
    points = shares.reshape(-1, 2) * (width, height)
    if len(points) > 2:
        return Region.of_polygon(points)
    (x, y), (box_width, box_height) = points.tolist()
    return Region((x - box_width / 2, y - box_height / 2, x + box_width / 2, y + box_height / 2))
