"""Visual Genome v1.4: its images, and its objects as columns with mended boxes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from rncdl.data.annotation_file import Int64, Number, read_json
from rncdl.data.annotation_rows import clip_boxes
from rncdl.data.problems import ProblemKind
from rncdl.data.public.formats import Place, place_in_url
from rncdl.errors import UserError

Pixels = Annotated[int, msgspec.Meta(ge=1, le=2**31)]

NO_SYNSET = "object without a synset"
SEVERAL_SYNSETS = "object with several synsets, of which the first is taken"


class GenomeImage(msgspec.Struct, gc=False):
    """An entry of `image_data.json`."""

    image_id: Int64
    width: Pixels
    height: Pixels
    url: str
    """ends in VG_100K/NAME or VG_100K_2/NAME, the folders of the two archives"""
    coco_id: Int64 | None = None
    """the same picture's id in COCO, perhaps at another size"""


class GenomeObject(msgspec.Struct, gc=False):
    """An object of an entry of `objects.json`. Names are not read: synsets are the classes."""

    x: Number
    y: Number
    w: Number
    h: Number
    synsets: list[str] = []


class GenomeObjects(msgspec.Struct, gc=False):
    """An entry of `objects.json`: the objects of one image."""

    image_id: Int64
    objects: list[GenomeObject]


@dataclass(frozen=True)
class ObjectColumns:
    """The A usable objects: box inside the image, a synset, an image that is listed."""

    image_ids: np.ndarray
    """(A,) int64"""
    boxes_xyxy: np.ndarray
    """(A, 4) float64, clipped to the image"""
    synset_index: np.ndarray
    """(A,) int64, position in `synsets`"""
    synsets: tuple[str, ...]
    """sorted"""
    problems: dict[str, int]
    """what was mended or left out, and how often"""


def read_genome_images(path: Path) -> list[GenomeImage]:
    """The entries of `image_data.json`, each image id once."""
    images = read_json(path, list[GenomeImage], expected="Visual Genome's image_data.json")
    for image_id, count in Counter(image.image_id for image in images).items():
        if count > 1:
            raise UserError(f"{path}: image_id {image_id} is used {count} times.")
    return images


def read_genome_objects(path: Path) -> list[GenomeObjects]:
    """The entries of `objects.json`."""
    return read_json(path, list[GenomeObjects], expected="Visual Genome's objects.json")


def genome_places(images: Sequence[GenomeImage], source: Path) -> dict[int, Place]:
    """Image id -> where the image is, by its `url`."""
    places = {}
    for index, image in enumerate(images):
        file_name = place_in_url(image.url)
        if file_name is None:
            raise UserError(
                f"{source}: $[{index}].url is {image.url!r}; it must end in the image's folder "
                "and name, like .../VG_100K_2/1.jpg."
            )
        places[image.image_id] = Place(image.image_id, file_name, image.height, image.width)
    return places


def collect_objects(
    entries: Sequence[GenomeObjects], sizes_hw: dict[int, tuple[int, int]]
) -> ObjectColumns:
    """The usable objects. sizes_hw: image id -> height, width; an object has its first synset."""
    problems: Counter[str] = Counter()
    image_ids: list[int] = []
    boxes_xywh: list[tuple[Number, Number, Number, Number]] = []
    synsets: list[str] = []
    for entry in entries:
        if entry.image_id not in sizes_hw:
            problems[ProblemKind.UNKNOWN_IMAGE] += len(entry.objects)
            continue
        for thing in entry.objects:
            if not thing.synsets or not thing.synsets[0]:
                problems[NO_SYNSET] += 1
                continue
            problems[SEVERAL_SYNSETS] += len(thing.synsets) > 1
            image_ids.append(entry.image_id)
            boxes_xywh.append((thing.x, thing.y, thing.w, thing.h))
            synsets.append(thing.synsets[0])
    sizes = np.array([sizes_hw[i] for i in image_ids], dtype=np.float64).reshape(-1, 2)
    boxes, box_problems = clip_boxes(
        np.array(boxes_xywh, dtype=np.float64).reshape(-1, 4),  # None becomes NaN
        heights=sizes[:, 0],
        widths=sizes[:, 1],
    )
    usable = np.ones(len(boxes), dtype=bool)
    for kind, found in box_problems.items():
        problems[kind] += int(found.sum())
        if kind is not ProblemKind.CLIPPED_BOX:
            usable &= ~found
    vocabulary = sorted(set(synsets))
    position = {synset: index for index, synset in enumerate(vocabulary)}
    return ObjectColumns(
        image_ids=np.array(image_ids, dtype=np.int64)[usable],
        boxes_xyxy=boxes[usable],
        synset_index=np.array([position[s] for s in synsets], dtype=np.int64)[usable],
        synsets=tuple(vocabulary),
        problems={kind: count for kind, count in problems.items() if count},
    )
