import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rncdl.data.annotations import load_annotations
from rncdl.data.brush_masks import pack_mask
from rncdl.data.check import find_problems
from rncdl.data.masks import encode_rle, to_rle
from rncdl.data.problems import ProblemKind
from rncdl.errors import UserError
from tests.data.made_up import write_image
from tests.data.readers.test_yolo import boxes

RECTANGLE = {"x": 25, "y": 50, "width": 50, "height": 25, "rectanglelabels": ["cat"]}


def result(value: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"type": "any", "value": value, "original_width": 64, "original_height": 48, **changes}


def task(*values: dict[str, Any], image: str = "/data/upload/1/0a1b2c3d-1.png") -> dict[str, Any]:
    return {
        "id": 7,
        "data": {"image": image},
        "annotations": [{"id": 1, "result": [result(value) for value in values]}],
        "predictions": [{"result": [result({**RECTANGLE, "rectanglelabels": ["wrong"]})]}],
    }


def write_tasks(folder: Path, *tasks: dict[str, Any]) -> Path:
    path = folder / "export.json"
    path.write_text(json.dumps(tasks))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_image(tmp_path / "1.png")
    return tmp_path


def test_a_submitted_task_without_results_is_an_image_without_objects(folder: Path):
    found = load_annotations(write_tasks(folder, task())).annotations
    assert [(image.path, image.height) for image in found.images] == [(folder / "1.png", 48)]
    assert len(found.annotation_ids) == 0


def test_regions_are_read_from_per_cent(folder: Path):
    mask = np.zeros((48, 64), dtype=bool)
    mask[3:9, 20:40] = True
    path = write_tasks(
        folder,
        task(
            RECTANGLE,
            {"points": [[0, 0], [50, 0], [50, 50]], "polygonlabels": ["dog"]},
            {"format": "rle", "rle": list(pack_mask(mask)), "brushlabels": ["dog", "more"]},
            {**RECTANGLE, "labels": ["owl"], "rectanglelabels": [], "rotation": 90},
            {"x": 50, "y": 50, "radiusX": 25, "radiusY": 25, "ellipselabels": ["owl"]},
        ),
    )
    found = load_annotations(path).annotations
    names, places = zip(*boxes(found), strict=True)
    assert names == ("cat", "dog", "dog", "owl", "owl")
    assert places[:3] == ([16, 24, 48, 36], [0, 0, 32, 24], [20, 3, 40, 9])
    # Turned clockwise around its first corner, it hangs down from there to the left: below the
    # image at the bottom.
    assert np.allclose(places[3], [4, 24, 16, 48])
    assert np.allclose(places[4], [16, 12, 48, 36], atol=0.1)
    assert to_rle(found.segmentations[2] or b"", 48, 64) == encode_rle(mask)
    assert [one is None for one in found.segmentations] == [True, False, False, True, False]


def test_the_ground_truth_counts_else_the_last_annotation_that_was_submitted(folder: Path):
    one = task()
    one["annotations"] = [
        {"result": [result({**RECTANGLE, "rectanglelabels": [name]})], **more}
        for name, more in (
            ("first", {}),
            ("second", {}),
            ("skipped", {"was_cancelled": True}),
        )
    ]
    assert boxes(load_annotations(write_tasks(folder, one)).annotations)[0][0] == "second"
    one["annotations"][0]["ground_truth"] = True
    assert boxes(load_annotations(write_tasks(folder, one)).annotations)[0][0] == "first"


def test_predictions_are_not_labels(folder: Path):
    unlabelled = task()
    del unlabelled["annotations"]
    with pytest.raises(UserError, match=r"none of its 1 tasks has an annotation"):
        load_annotations(write_tasks(folder, unlabelled))
    loaded = load_annotations(write_tasks(folder, unlabelled, task(RECTANGLE)))
    assert len(loaded.annotations.images) == 1
    assert [one.name for one in loaded.annotations.categories] == ["cat"]
    assert loaded.notes == ["1 × task without an annotation was left out"]


def test_what_is_no_region_is_told(folder: Path):
    loaded = load_annotations(
        write_tasks(folder, task({"choices": ["blurred"]}, RECTANGLE, {"text": ["a cat"]}))
    )
    assert len(loaded.annotations.annotation_ids) == 1
    assert loaded.notes == ["2 × result that is no region with a label was left out"]


@pytest.mark.parametrize(
    "address",
    [
        "/data/local-files/?d=photos/a%20b/1.png",
        "/data/local-files/?d=photos/a b/1.png",
        "s3://bucket/photos/a b/1.png",
        "https://example.org/photos/a%20b/1.png?token=x",
        "/data/upload/12/0a1b2c3d-1.png",
        "1.png",
    ],
)
def test_images_are_found_below_the_folder_whatever_their_address(tmp_path: Path, address: str):
    own = write_image(tmp_path / "a b" / "1.png")
    path = write_tasks(tmp_path, task(image=address))
    found = load_annotations(path, own.parent).annotations
    assert found.images[0].path == own
    if "a" in address.partition("photos/")[2]:
        assert load_annotations(path).annotations.images[0].path == own


def test_another_column_may_hold_the_image(folder: Path):
    one = task(RECTANGLE)
    one["data"] = {"title": "a cat", "photo": "https://example.org/x/1.png"}
    assert load_annotations(write_tasks(folder, one)).annotations.images[0].path.name == "1.png"


def test_problems_are_told_with_task_and_result(folder: Path):
    path = write_tasks(folder, task(RECTANGLE, {**RECTANGLE, "x": -10}))
    (problem,) = find_problems(path)
    assert problem.kind is ProblemKind.CLIPPED_BOX
    assert problem.where == f"{path}: $[0] (task 7), result 2"


@pytest.mark.parametrize(
    ("value", "changes", "words"),
    [
        ({**RECTANGLE, "x": None}, {}, r"\$\[0\] \(task 7\), result 1: `value` is"),
        ({**RECTANGLE, "x": "left"}, {}, r"result 1: .*could not convert string"),
        ({"points": [[1, 1]], "polygonlabels": ["a"]}, {}, "fewer than three points"),
        ({"rle": [1, 2], "brushlabels": ["a"]}, {}, r"a brush mask is broken"),
        (RECTANGLE, {"image_rotation": 90}, r"`image_rotation` is 90; turn the image"),
    ],
)
def test_bad_results_are_told_with_task_field_and_value(
    folder: Path, value: dict[str, Any], changes: dict[str, Any], words: str
):
    one = task()
    one["annotations"] = [{"result": [result(value, **changes)]}]
    with pytest.raises(UserError, match=words):
        load_annotations(write_tasks(folder, one))


def test_a_task_without_an_image_is_told(folder: Path):
    with pytest.raises(UserError, match=r"\$\[0\] \(task 7\): `data` has no image"):
        load_annotations(write_tasks(folder, {**task(), "data": {"text": "hello"}}))


def test_json_min_is_told_from_json(folder: Path):
    with pytest.raises(UserError, match=r"missing required field `data`.*not JSON-MIN"):
        load_annotations(write_tasks(folder, {"image": "1.png", "label": []}))
