"""What is exported and read in again is the same dataset, whatever was found."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask as coco_mask

from rncdl.data.annotations import load_annotations
from rncdl.data.check import find_problems
from rncdl.data.masks import encode_rle, to_rle
from rncdl.exports.records import Shape
from tests.data.made_up import write_image
from tests.exports.made_up import detection, run_export, write_predictions

HEIGHT, WIDTH = 48, 64
FILES = ("a/1 ü.png", "b/1 ü.png", "b/1_ü.png")
CLASSES = ("cat & <dog>", "novel_0000", "ein Ding, grün")
LABELS = {
    "coco": "annotations/instances_default.json",
    "fiftyone": "labels.json",
    "yolo": "",
    "voc": "",
    "label-studio": "tasks.json",
    "cvat": "",
}
"""What of an export is read in again"""
IMAGES = {"coco": "images", "fiftyone": "data"}
"""Folders that are named beside the file, as the formats want it"""
TOLERANCE_PX = {"voc": 1.0, "cvat": 0.01, "yolo": 1e-4}
"""VOC has whole pixels, CVAT hundredths, YOLO six decimals of a side; the others all digits"""


@st.composite
def found_objects(draw: st.DrawFn) -> dict[str, Any]:
    """A detection whose mask is a few rectangles within its box."""
    left, top = draw(st.integers(0, WIDTH - 3)), draw(st.integers(0, HEIGHT - 3))
    width, height = draw(st.integers(2, WIDTH - left)), draw(st.integers(2, HEIGHT - top))
    mask = np.zeros((HEIGHT, WIDTH), dtype=bool)
    for _ in range(draw(st.integers(1, 3))):
        x, y = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
        w, h = draw(st.integers(1, width - x)), draw(st.integers(1, height - y))
        mask[top + y : top + y + h, left + x : left + x + w] = True
    shift = draw(st.sampled_from([0.0, 0.25, 1 / 3]))
    box = [left + shift, top + shift, width - 2 * shift, height - 2 * shift]
    return detection(
        draw(st.integers(1, len(FILES))), draw(st.integers(1, len(CLASSES))), box, mask
    )


@contextmanager
def exported(entries: list[dict[str, Any]], name: str, shape: Shape) -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        files = [write_image(Path(folder) / "photos" / file) for file in FILES]
        predictions = write_predictions(
            Path(folder) / "found",
            files,
            CLASSES,
            sorted(entries, key=lambda entry: entry["image_id"]),
        )
        yield run_export(
            predictions,
            Path(folder) / "out",
            name,
            shape=shape,
            min_score=0.0,
            keep_overlapping=True,
        )


def submit_all(tasks_file: Path) -> None:
    """What Label Studio does when somebody submits every prediction as it is."""
    tasks = json.loads(tasks_file.read_text())
    for task in tasks:
        task["annotations"] = [{"result": task["predictions"][0]["result"]}]
    tasks_file.write_text(json.dumps(tasks))


def expected_box(entry: dict[str, Any], shape: Shape) -> np.ndarray:
    """Left, top, right, bottom: of the mask where it is told."""
    box = entry["bbox"] if shape is Shape.BOX else coco_mask.toBbox(entry["segmentation"])
    return np.array([box[0], box[1], box[0] + box[2], box[1] + box[3]])


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("voc", Shape.BOX),
        *(("yolo", shape) for shape in (Shape.BOX, Shape.POLYGON)),
        *((name, shape) for name in ("coco", "label-studio", "cvat") for shape in Shape),
        ("fiftyone", Shape.MASK),
    ],
)
@given(entries=st.lists(found_objects(), max_size=5))
@settings(max_examples=12, deadline=None)
def test_every_object_comes_back(name: str, shape: Shape, entries: list[dict[str, Any]]):
    with exported(entries, name, shape) as out:
        path = out / LABELS[name] if LABELS[name] else out
        if name == "label-studio":
            submit_all(path)
        images = out / IMAGES[name] if name in IMAGES else None
        found = load_annotations(path, images).annotations
        assert find_problems(path, images) == []
    assert len(found.images) == len(FILES)
    assert len(found.annotation_ids) == len(entries)
    names = {one.id: one.name for one in found.categories}
    # By the file's place in the export, since formats list images in their own orders.
    order = {image.path.name.replace(" ", "_"): i for i, image in enumerate(found.images)}
    for number, flat in enumerate(("a__1_ü.png", "b__1_ü.png", "b__1_ü_2.png"), 1):
        rows = found.rows_of_image(order[flat])
        here = [entry for entry in entries if entry["image_id"] == number]
        assert [names[int(one)] for one in found.category_ids[rows]] == [
            CLASSES[entry["category_id"] - 1] for entry in here
        ]
        for row, entry in zip(range(rows.start, rows.stop), here, strict=True):
            tolerance = TOLERANCE_PX.get(name, 1e-6)
            box_shape = Shape.BOX if name in ("coco", "fiftyone") else shape
            apart = np.abs(found.boxes_xyxy[row] - expected_box(entry, box_shape))
            assert apart.max() <= tolerance + 1e-9
            if shape is Shape.BOX:
                assert found.segmentations[row] is None
            else:
                mask = to_rle(found.segmentations[row] or b"", HEIGHT, WIDTH)
                assert_same_mask(mask, entry["segmentation"], exactly=shape is Shape.MASK)


def assert_same_mask(found: dict, expected: dict, *, exactly: bool) -> None:
    if exactly:
        assert found["counts"] == expected["counts"].encode()
    else:
        assert (coco_mask.decode(found) != coco_mask.decode(expected)).mean() < 0.002


def test_the_measure_of_masks_notices_a_row_too_many():
    mask = np.zeros((HEIGHT, WIDTH), dtype=bool)
    mask[10:20, 10:20] = True
    more = mask.copy()
    more[20, 10:20] = True
    expected = encode_rle(mask)
    expected = {**expected, "counts": expected["counts"].decode()}
    assert_same_mask(encode_rle(mask), expected, exactly=False)
    with pytest.raises(AssertionError):
        assert_same_mask(encode_rle(more), expected, exactly=False)
