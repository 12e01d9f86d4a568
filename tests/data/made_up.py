"""Small datasets for tests: COCO files, images, annotation sets."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rncdl.data.records import AnnotationSet, Category, ImageRecord

SQUARE = [[10, 10, 30, 10, 30, 30, 10, 30]]


def image_entry(image_id: int = 1, **changes: Any) -> dict[str, Any]:
    entry = {"id": image_id, "file_name": f"{image_id}.png", "height": 48, "width": 64}
    return {key: value for key, value in (entry | changes).items() if value is not ...}


def annotation_entry(annotation_id: int = 1, **changes: Any) -> dict[str, Any]:
    entry = {
        "id": annotation_id,
        "image_id": 1,
        "category_id": 7,
        "bbox": [10, 10, 20, 20],
        "area": 390.5,
        "iscrowd": 0,
        "segmentation": SQUARE,
    }
    return {key: value for key, value in (entry | changes).items() if value is not ...}


def write_coco(
    path: Path,
    *,
    images: Sequence[dict] | None = None,
    annotations: Sequence[dict] = (),
    categories: Sequence[dict] = ({"id": 7, "name": "cat"}, {"id": 90, "name": "dog"}),
) -> Path:
    contents = {
        "images": [image_entry()] if images is None else list(images),
        "annotations": list(annotations),
        "categories": list(categories),
    }
    path.write_text(json.dumps(contents))
    return path


def gradient(height: int = 48, width: int = 64) -> np.ndarray:
    """(height, width, 3) uint8, smooth, with no two rows, columns or channels alike."""
    y, x = np.mgrid[:height, :width]
    return np.stack([y * 3, x * 3, (x + y) * 2], axis=-1).astype(np.uint8)


def write_image(path: Path, height: int = 48, width: int = 64) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(gradient(height, width)).save(path)
    with path.open("ab") as file:  # what follows an image's end is not read: no two files alike
        file.write(str(path).encode())
    return path


def annotation_set(
    image_index: Sequence[int],
    category_ids: Sequence[int],
    *,
    num_images: int,
    names: Sequence[str] = ("cat", "dog", "owl"),
    crowd_rows: Sequence[int] = (),
    sizes: Sequence[tuple[int, int]] | None = None,
) -> AnnotationSet:
    """Categories have the ids 10, 20, 30, ...; sizes are (height, width) of each image."""
    count = len(image_index)
    sizes = [(48, 64)] * num_images if sizes is None else sizes
    return AnnotationSet(
        images=tuple(
            ImageRecord(i, Path(f"{i}.png"), height, width)
            for i, (height, width) in enumerate(sizes)
        ),
        categories=tuple(Category(10 * (i + 1), name) for i, name in enumerate(names)),
        annotation_ids=np.arange(count),
        image_index=np.array(image_index, dtype=np.int64),
        category_ids=np.array(category_ids, dtype=np.int64),
        boxes_xyxy=np.tile([1.0, 2.0, 11.0, 22.0], (count, 1)),
        areas=np.full(count, 200.0),
        is_crowd=np.isin(np.arange(count), crowd_rows),
        segmentations=[b"[[1,2,11,2,11,22]]"] * count,
    )
