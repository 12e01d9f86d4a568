"""A COCO file of old labels and of those that people's names have made."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from pycocotools import mask as coco_mask

from rncdl.classes import KnownLabels
from rncdl.data.masks import rle_to_json
from rncdl.data.records import AnnotationSet, Category, ImageRecord
from rncdl.files import json_list, writing_atomically
from rncdl.naming.accepting import NewLabel


@dataclass(frozen=True)
class PromotedLabels:
    """What a new file is made of. Pool images: the labelled ones first, then the others."""

    old: KnownLabels
    images: Sequence[ImageRecord]
    """of the pool"""
    new: Mapping[int, Sequence[NewLabel]]
    """pool image -> what is added to it; unlabelled images that are missing stay out of the file"""
    made_with: Mapping[str, Any]


def write_labels(path: Path, labels: PromotedLabels) -> None:
    """The file, whole or not at all. Old images, annotations and categories keep their ids."""
    old = labels.old.annotations
    category_ids, image_ids = _category_ids(labels), _image_ids(labels)
    before = {category.name: category for category in old.categories}
    parts: dict[str, Iterable[dict[str, Any]]] = {
        "categories": (
            _category(before.get(name, Category(category_id, name)))
            for name, category_id in category_ids.items()
        ),
        "images": (
            _image(labels.images[index], image_id, path.parent, is_federated=old.is_federated)
            for index, image_id in image_ids.items()
        ),
        "annotations": _annotations(labels, image_ids, category_ids),
    }
    encode = msgspec.json.Encoder().encode
    with writing_atomically(path) as file:
        file.write(b'{"info": ' + encode(dict(labels.made_with)))
        for key, entries in parts.items():
            file.write(f',\n"{key}": '.encode())
            file.writelines(json_list(map(encode, entries)))
        file.write(b"}\n")


def _category_ids(labels: PromotedLabels) -> dict[str, int]:
    """Name -> id: old ones as they were, new ones after them, sorted by name."""
    ids = {category.name: category.id for category in labels.old.annotations.categories}
    given = {one.name for of_image in labels.new.values() for one in of_image}
    fresh = max(ids.values(), default=0) + 1
    return {**ids, **{name: fresh + i for i, name in enumerate(sorted(given - ids.keys()))}}


def _image_ids(labels: PromotedLabels) -> dict[int, int]:
    """Pool image -> id, of those that are in the file."""
    old = labels.old.annotations.images
    ids = {index: image.id for index, image in enumerate(old)}
    fresh = max(ids.values(), default=0) + 1
    added = sorted(index for index in labels.new if index not in ids)
    return {**ids, **{index: fresh + i for i, index in enumerate(added)}}


def _category(category: Category) -> dict[str, Any]:
    optional = {"synset": category.synset, "frequency": category.frequency}
    given = {key: value for key, value in optional.items() if value is not None}
    return {"id": category.id, "name": category.name, **given}


def _image(
    image: ImageRecord, image_id: int, folder: Path, *, is_federated: bool
) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "id": image_id,
        "file_name": _file_name(image.path, folder),
        "width": image.width,
        "height": image.height,
    }
    if is_federated:
        entry["neg_category_ids"] = image.neg_category_ids
        entry["not_exhaustive_category_ids"] = image.not_exhaustive_category_ids
    return entry


def _file_name(path: Path, folder: Path) -> str:
    """Relative to the new file's folder where it lies below it, so that both can be moved."""
    absolute, root = Path(os.path.abspath(path)), Path(os.path.abspath(folder))
    return str(absolute.relative_to(root) if absolute.is_relative_to(root) else absolute)


def _annotations(
    labels: PromotedLabels, ids: Mapping[int, int], category_ids: Mapping[str, int]
) -> Iterator[dict[str, Any]]:
    old = labels.old.annotations
    for row in range(len(old.annotation_ids)):
        yield _old_annotation(old, row)
    next_id = int(old.annotation_ids.max(initial=0)) + 1
    for index in sorted(labels.new):
        for one in labels.new[index]:
            entry = _new_annotation(one)
            yield {
                "id": next_id,
                "image_id": ids[index],
                "category_id": category_ids[one.name],
                **entry,
            }
            next_id += 1


def _old_annotation(old: AnnotationSet, row: int) -> dict[str, Any]:
    entry = {
        "id": int(old.annotation_ids[row]),
        "image_id": old.images[old.image_index[row]].id,
        "category_id": int(old.category_ids[row]),
        "bbox": _xywh(old.boxes_xyxy[row]),
        "area": float(old.areas[row]),
        "iscrowd": int(old.is_crowd[row]),
        "origin": "labelled",
    }
    segmentation = old.segmentations[row]
    return entry if segmentation is None else {**entry, "segmentation": msgspec.Raw(segmentation)}


def _new_annotation(one: NewLabel) -> dict[str, Any]:
    bbox = _xywh(np.array(one.box_xyxy))
    entry: dict[str, Any] = {
        "bbox": bbox,
        "area": bbox[2] * bbox[3],
        "iscrowd": 0,
        "score": round(one.score, 4),
        "origin": one.origin,
    }
    if one.rle is not None:
        entry["area"] = float(coco_mask.area(one.rle))
        entry["segmentation"] = rle_to_json(one.rle)
    return entry


def _xywh(box_xyxy: np.ndarray) -> list[float]:
    left, top, right, bottom = box_xyxy.tolist()
    return [left, top, right - left, bottom - top]
