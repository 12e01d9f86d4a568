"""A dataset of any format, written as one COCO file."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from rncdl.data.records import AnnotationSet, ImageRecord
from rncdl.files import write_atomically


def write_coco(annotations: AnnotationSet, out: Path) -> None:
    """Put the dataset at `out`. Images below its folder are named relative to it.

    The others are named by their absolute paths.
    """
    content = {
        "images": [_image(image, out.parent, annotations) for image in annotations.images],
        "annotations": list(_annotations(annotations)),
        "categories": [
            _without_none(
                {"id": one.id, "name": one.name, "synset": one.synset, "frequency": one.frequency}
            )
            for one in annotations.categories
        ],
    }
    write_atomically(out, msgspec.json.encode(content))


def _image(image: ImageRecord, folder: Path, annotations: AnnotationSet) -> dict[str, Any]:
    path = Path(os.path.abspath(image.path))
    folder = Path(os.path.abspath(folder))
    below = path.is_relative_to(folder)
    entry: dict[str, Any] = {
        "id": image.id,
        "file_name": path.relative_to(folder).as_posix() if below else str(path),
        "height": image.height,
        "width": image.width,
    }
    if annotations.is_federated:
        entry["neg_category_ids"] = image.neg_category_ids
        entry["not_exhaustive_category_ids"] = image.not_exhaustive_category_ids
    return entry


def _annotations(annotations: AnnotationSet) -> Iterator[dict[str, Any]]:
    for row, (index, mask) in enumerate(
        zip(annotations.image_index.tolist(), annotations.segmentations, strict=True)
    ):
        left, top, right, bottom = annotations.boxes_xyxy[row].tolist()
        yield _without_none(
            {
                "id": int(annotations.annotation_ids[row]),
                "image_id": annotations.images[index].id,
                "category_id": int(annotations.category_ids[row]),
                "bbox": [left, top, right - left, bottom - top],
                "area": float(annotations.areas[row]),
                "iscrowd": int(annotations.is_crowd[row]),
                "segmentation": None if mask is None else msgspec.Raw(mask),
            }
        )


def _without_none(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if value is not None}
