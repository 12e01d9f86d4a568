"""Exports read back by readers that others wrote, object by object."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import supervision as sv
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from rncdl.data.brush_masks import pack_mask, unpack_mask
from rncdl.data.masks import encode_rle
from rncdl.data.run_lengths import from_row_major_counts, row_major_counts
from rncdl.errors import UserError
from rncdl.exports.names import flat_names
from rncdl.exports.outlines import outlines
from rncdl.exports.records import ExportRequest
from rncdl.prediction.folder import PredictionFolder
from rncdl.stages.export import export
from tests.exports.made_up import BOXES, NAMES, run_export


def assert_boxes(found: sv.DetectionDataset) -> None:
    assert len(found) == 3
    seen = 0
    for _, _, objects in found:
        seen += len(objects)
        if len(objects):
            assert objects.class_id is not None
            order = np.argsort(objects.xyxy[:, 0])
            boxes = np.array(BOXES)
            boxes[:, 2:] += boxes[:, :2]
            assert np.abs(objects.xyxy[order] - boxes).max() < 1e-2
            assert [found.classes[i] for i in objects.class_id[order]] == ["cat", "novel_0000"]
    assert seen == 4


def test_coco_is_what_supervision_and_cocos_tools_read(
    predictions: PredictionFolder, tmp_path: Path
):
    out = run_export(predictions, tmp_path / "out", "coco")
    assert_boxes(sv.DetectionDataset.from_coco(str(out / "images"), str(out / "annotations.json")))
    truth = COCO(str(out / "annotations.json"))
    assert len(truth.loadRes(str(out / "results.json")).anns) == 4
    assert sorted(truth.getCatIds()) == [1, 2]


@pytest.mark.parametrize("shape", ["box", "polygon"])
def test_yolo_is_what_supervision_reads(predictions: PredictionFolder, tmp_path: Path, shape: Any):
    from rncdl.exports.records import Shape

    out = run_export(predictions, tmp_path / "out", "yolo", val_share=0.0, shape=Shape(shape))
    images, labels = (str(out / kind / "train") for kind in ("images", "labels"))
    found = sv.DetectionDataset.from_yolo(images, labels, str(out / "data.yaml"))
    if shape == "box":
        assert_boxes(found)
    else:
        assert sorted(len(objects) for _, _, objects in found) == [0, 2, 2]


def test_voc_is_what_supervision_reads(predictions: PredictionFolder, tmp_path: Path):
    out = run_export(predictions, tmp_path / "out", "voc")
    assert_boxes(
        sv.DetectionDataset.from_pascal_voc(str(out / "JPEGImages"), str(out / "Annotations"))
    )


@pytest.mark.parametrize("name", ["label-studio", "cvat", "fiftyone", "huggingface"])
def test_every_other_format_is_written_and_not_overwritten(
    predictions: PredictionFolder, tmp_path: Path, name: str
):
    out = run_export(predictions, tmp_path / "out", name)
    run_export(predictions, out, name)
    with pytest.raises(UserError, match=r"min_score: 0.1, now 0.5"):
        run_export(predictions, out, name, min_score=0.5)


def test_a_vanished_image_is_told_and_the_rest_goes_on(
    predictions: PredictionFolder, tmp_path: Path
):
    (tmp_path / "photos" / NAMES[0]).unlink()
    request = ExportRequest(format="coco", out=tmp_path / "out", min_score=0.1)
    assert export(request, predictions, overwrite=False) == 1
    content = json.loads((tmp_path / "out" / "annotations.json").read_text())
    assert [image["id"] for image in content["images"]] == [2, 3]
    assert len(content["annotations"]) == 2


def test_names_are_unique_whatever_ending_case_or_spaces():
    assert flat_names([]) == []
    assert flat_names(["a/1.jpg", "a__1.png", "A__1.jpg", "x y.jpg", "x_y.jpg"]) == [
        *("a__1.jpg", "a__1_2.png", "A__1_3.jpg", "x y.jpg", "x_y_2.jpg")
    ]


def test_masks_survive_every_encoding():
    rng = np.random.default_rng(0)
    for height, width in ((1, 1), (7, 5), (30, 41)):
        for share in (0.0, 0.3, 0.9, 1.0):
            mask = rng.random((height, width)) < share
            assert (unpack_mask(pack_mask(mask), height, width) == mask).all()
            rle = encode_rle(mask)
            if not mask.any():
                assert outlines(rle) == []
                continue
            box, counts = row_major_counts(rle)
            assert from_row_major_counts(counts, box, image_size=(height, width)) == rle
            parts = [part.flatten().tolist() for part in outlines(rle, tolerance_px=0.0)]
            again = coco_mask.merge(coco_mask.frPyObjects(parts, height, width))
            assert (coco_mask.decode(again) == mask).all()
