import json
from pathlib import Path

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from rncdl.data.records import ImageRecord
from rncdl.errors import UserError
from rncdl.prediction.detections import Detections, read_detections, write_detections
from tests.evaluation.made_up import random_case

IMAGES = [ImageRecord(id=7, path=Path("a.jpg"), height=20, width=30)]
GOOD = {"image_id": 7, "category_id": 3, "score": 0.5, "bbox": [1, 2, 3, 4]}
MASK = coco_mask.encode(np.asfortranarray(np.tri(20, 30, dtype=np.uint8)))
MASK_JSON = {"size": [20, 30], "counts": MASK["counts"].decode()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "detections.json"


def write(path: Path, *entries: dict) -> Path:
    path.write_text(json.dumps(entries))
    return path


@pytest.mark.parametrize("parts", [[], [Detections.empty()]])
def test_no_detections(path, parts):
    write_detections(path, parts)
    assert json.loads(path.read_text()) == []
    assert len(read_detections(path, images=IMAGES)) == 0


@pytest.mark.parametrize("with_masks", [True, False])
def test_what_is_written_in_parts_is_read_as_one(path, with_masks):
    truth, detections = random_case(0)
    if not with_masks:
        detections = Detections(
            detections.image_ids,
            detections.category_ids,
            detections.scores,
            detections.boxes_xyxy,
        )
    rows = np.arange(len(detections))
    parts = [detections.select(part) for part in np.array_split(rows, 5)]
    write_detections(path, (part for part in [*parts[:2], Detections.empty(), *parts[2:]]))
    read = read_detections(path, images=truth.images)
    np.testing.assert_array_equal(read.image_ids, detections.image_ids)
    np.testing.assert_array_equal(read.category_ids, detections.category_ids)
    np.testing.assert_array_equal(read.scores, detections.scores)
    np.testing.assert_array_equal(read.boxes_xyxy, detections.boxes_xyxy)
    assert read.rles == detections.rles
    joined = Detections.concatenate(parts)
    np.testing.assert_array_equal(joined.scores, detections.scores)
    assert joined.rles == detections.rles


def test_float32_is_written_without_loss(path):
    scores = np.random.default_rng(0).random(50).astype(np.float32)
    ids = np.full(50, 7)
    write_detections(path, [Detections(ids, ids, scores, np.ones((50, 4), np.float32))])
    np.testing.assert_array_equal(read_detections(path, images=IMAGES).scores, scores)


def test_boxes_are_corners_and_come_from_masks_where_missing(path):
    read = read_detections(write(path, GOOD), images=IMAGES)
    assert read.boxes_xyxy.tolist() == [[1, 2, 4, 6]]
    assert read.rles is None
    only_mask = {key: GOOD[key] for key in ("image_id", "category_id", "score")}
    read = read_detections(write(path, only_mask | {"segmentation": MASK_JSON}), images=IMAGES)
    assert read.boxes_xyxy.tolist() == [[0, 0, 20, 20]]
    assert read.rles == [MASK]


def test_uncompressed_masks_are_compressed(path):
    mask = np.zeros((20, 30), dtype=np.uint8)
    mask[3:6, 1] = 1
    runs = {"size": [20, 30], "counts": [23, 3, 574]}
    read = read_detections(write(path, GOOD | {"segmentation": runs}), images=IMAGES)
    assert read.rles is not None
    np.testing.assert_array_equal(coco_mask.decode(read.rles[0]), mask)


def without(field: str) -> dict:
    return {key: value for key, value in GOOD.items() if key != field}


@pytest.mark.parametrize(
    ("bad", "names"),
    [
        (without("score"), ["$[1]", "score"]),
        (without("image_id"), ["$[1]", "image_id"]),
        (without("bbox"), ["$[1]", "bbox"]),
        (GOOD | {"score": "high"}, ["$[1].score"]),
        (GOOD | {"score": float("nan")}, ["$[1]", "score = nan"]),
        (GOOD | {"bbox": [0, 0, float("inf"), 1]}, ["$[1]", "bbox", "inf"]),
        (GOOD | {"bbox": [0, 0, 1]}, ["$[1].bbox"]),
        (GOOD | {"bbox": [0, 0, -1, 1]}, ["$[1]", "bbox", "-1"]),
        (GOOD | {"image_id": 8}, ["$[1]", "image_id = 8"]),
        (GOOD | {"segmentation": MASK_JSON}, ["$[0]", "segmentation"]),
        (GOOD | {"segmentation": MASK_JSON | {"size": [30, 20]}}, ["$[1]", "[30, 20]", "[20, 30]"]),
        (GOOD | {"segmentation": [[0, 0, 1, 1, 2, 2]]}, ["$[1].segmentation"]),
    ],
)
def test_bad_entries_are_named(path, bad, names):
    with pytest.raises(UserError) as error:
        read_detections(write(path, GOOD, bad), images=IMAGES)
    for name in [str(path), *names]:
        assert name in str(error.value)


def test_scores_too_large_for_a_number(path):
    path.write_text(json.dumps([GOOD]).replace("0.5", "1e999"))
    with pytest.raises(UserError, match="score"):
        read_detections(path, images=IMAGES)


def test_files_that_are_none(path):
    with pytest.raises(UserError, match="cannot read"):
        read_detections(path, images=IMAGES)
    path.write_text("[{")
    with pytest.raises(UserError, match="not valid JSON"):
        read_detections(path, images=IMAGES)
    path.write_text("{}")
    with pytest.raises(UserError, match="array"):
        read_detections(path, images=IMAGES)


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="length"):
        Detections(np.arange(2), np.arange(2), np.ones(1), np.ones((2, 4)))
