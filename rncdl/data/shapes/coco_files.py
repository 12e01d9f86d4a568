"""The annotation files of a drawn world, in COCO's format with LVIS's fields."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from rncdl.data.shapes.catalogue import ObjectClass, frequency_letter

FILE_NAMES = ("labelled.json", "unlabelled.json", "val.json", "oracle.json")

Record = dict[str, Any]


@dataclass(frozen=True)
class DrawnImage:
    """A finished picture's place and objects; class `c` of the world has category id `c + 1`."""

    id: int
    file_name: str
    side_px: int
    class_indices: tuple[int, ...]
    outlines: tuple[Record, ...]
    """segmentation, bbox and area of each object"""


def describe_mask(mask: np.ndarray) -> Record:
    """COCO's segmentation (RLE), bbox (x, y, width, height) and area of a mask (H, W) bool."""
    rle = coco_mask.encode(np.asfortranarray(mask, dtype=np.uint8))
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    left, top = int(columns[0]), int(rows[0])
    return {
        "segmentation": {"size": list(mask.shape), "counts": rle["counts"].decode("ascii")},
        "bbox": [left, top, int(columns[-1]) + 1 - left, int(rows[-1]) + 1 - top],
        "area": int(mask.sum()),
    }


def compose_files(
    kinds: Sequence[ObjectClass],
    known: Sequence[int],
    *,
    labelled: Sequence[DrawnImage],
    unlabelled: Sequence[DrawnImage],
    val: Sequence[DrawnImage],
) -> dict[str, Record]:
    """File name -> content. Only val and oracle ever mention a class that is not `known`."""
    everything = range(len(kinds))
    training = [*labelled, *unlabelled]
    counted_categories = _counted_categories(kinds, training)
    contents: tuple[Record, ...] = (
        {
            "images": _images(labelled),
            "annotations": _annotations(labelled, known),
            "categories": _categories(kinds, known),
        },
        {"images": _images(unlabelled), "annotations": [], "categories": []},
        {
            "images": _federated_images(val, len(kinds)),
            "annotations": _annotations(val, everything),
            "categories": counted_categories,
        },
        {
            "images": _images(training),
            "annotations": _annotations(training, everything),
            "categories": counted_categories,
        },
    )
    return dict(zip(FILE_NAMES, contents, strict=True))


def _images(images: Iterable[DrawnImage]) -> list[Record]:
    """COCO's `images`."""
    return [
        {"id": i.id, "file_name": i.file_name, "width": i.side_px, "height": i.side_px}
        for i in images
    ]


def _federated_images(images: Sequence[DrawnImage], num_classes: int) -> list[Record]:
    """LVIS's `images`. Every object is annotated, so all absent classes are negatives."""
    every_class = set(range(num_classes))
    return [
        {
            **record,
            "neg_category_ids": [c + 1 for c in sorted(every_class - set(image.class_indices))],
            "not_exhaustive_category_ids": [],
        }
        for record, image in zip(_images(images), images, strict=True)
    ]


def _annotations(images: Iterable[DrawnImage], keep: Iterable[int]) -> list[Record]:
    """COCO's `annotations` of the class indices in `keep`, numbered from 1."""
    kept = set(keep)
    objects = (
        (image.id, class_index, outline)
        for image in images
        for class_index, outline in zip(image.class_indices, image.outlines, strict=True)
        if class_index in kept
    )
    return [
        {"id": n, "image_id": image_id, "category_id": c + 1, **outline, "iscrowd": 0}
        for n, (image_id, c, outline) in enumerate(objects, start=1)
    ]


def _categories(kinds: Sequence[ObjectClass], keep: Iterable[int]) -> list[Record]:
    """COCO's `categories` of the class indices in `keep`."""
    return [
        {"id": c + 1, "name": kinds[c].name, "supercategory": kinds[c].silhouette}
        for c in sorted(keep)
    ]


def _counted_categories(
    kinds: Sequence[ObjectClass], training: Sequence[DrawnImage]
) -> list[Record]:
    """LVIS's `categories`: with counts in the training images and the frequency letter."""
    num_images = Counter(c for image in training for c in set(image.class_indices))
    num_objects = Counter(c for image in training for c in image.class_indices)
    mean = num_images.total() / len(kinds)
    return [
        {
            **record,
            "image_count": num_images[c],
            "instance_count": num_objects[c],
            "frequency": frequency_letter(num_images[c], mean),
        }
        for c, record in enumerate(_categories(kinds, range(len(kinds))))
    ]
