"""Exports read back by readers that others wrote, object by object."""

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree

import datasets
import numpy as np
import pytest
import supervision as sv
from PIL import Image
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from rncdl.data.brush_masks import pack_mask, unpack_mask
from rncdl.data.masks import encode_rle, to_rle
from rncdl.data.run_lengths import from_row_major_counts, row_major_counts
from rncdl.errors import UserError
from rncdl.exports.names import flat_names
from rncdl.exports.outlines import outlines
from rncdl.exports.records import ExportRequest, Shape
from rncdl.prediction.folder import PredictionFolder
from rncdl.stages.export import export
from tests.exports.made_up import BOXES, NAMES, mask_of, run_export


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
    assert_boxes(
        sv.DetectionDataset.from_coco(
            str(out / "images"), str(out / "annotations" / "instances_default.json")
        )
    )
    truth = COCO(str(out / "annotations" / "instances_default.json"))
    assert len(truth.loadRes(str(out / "results.json")).anns) == 4
    assert sorted(truth.getCatIds()) == [1, 2]


@pytest.mark.parametrize("shape", ["box", "polygon"])
def test_yolo_is_what_supervision_reads(predictions: PredictionFolder, tmp_path: Path, shape: Any):
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
    labels = (out / "labelmap.txt").read_text().splitlines()[1:]
    assert [line.split(":")[0] for line in labels] == ["background", "cat", "novel_0000"]


def test_fiftyones_folder_is_what_supervision_and_cocos_tools_read(
    predictions: PredictionFolder, tmp_path: Path
):
    out = run_export(predictions, tmp_path / "out", "fiftyone")
    assert_boxes(sv.DetectionDataset.from_coco(str(out / "data"), str(out / "labels.json")))
    truth = COCO(str(out / "labels.json"))
    for annotation in truth.anns.values():
        row = annotation["category_id"] - 1
        assert (truth.annToMask(annotation) == mask_of(BOXES[row])).all()
        assert annotation["score"] == 0.9 / (row + 1)
        assert annotation["cluster"] == (None, 0)[row]
    compile((out / "open_in_fiftyone.py").read_text(), "open_in_fiftyone.py", "exec")


@pytest.mark.parametrize("shape", Shape)
def test_huggingface_is_what_datasets_reads(
    predictions: PredictionFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: Shape
):
    """By the code on the card, object by object."""
    out = run_export(predictions, tmp_path / "out", "huggingface", shape=shape)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (code,) = re.findall(r"```python\n(.*?)```", (out / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(out.parent)
    found: dict[str, Any] = {}
    exec(code, found)
    assert found["names"] == ["cat", "novel_0000"]
    dataset = found["dataset"]
    assert dataset.features["objects"]["category"].feature.names == ["cat", "novel_0000"]
    assert [row["image_id"] for row in dataset] == [1, 2, 3]
    for row in dataset:
        source = Image.open(tmp_path / "photos" / NAMES[row["image_id"] - 1])
        assert np.array_equal(np.asarray(row["image"]), np.asarray(source))
        assert (row["width"], row["height"]) == (64, 48)
    for row, ids in ((dataset[0], [1, 2]), (dataset[1], [3, 4])):
        objects = row["objects"]
        assert objects["id"] == ids
        assert objects["bbox"] == BOXES
        assert objects["area"] == [200, 192]
        assert objects["category"] == [0, 1]
        assert objects["score"] == [0.9, 0.45]
        assert objects["cluster"] == [-1, 0]
        for box, mask in zip(BOXES, objects.get("segmentation", ()), strict=False):
            rle = to_rle(json.dumps(mask).encode(), 48, 64)
            assert (coco_mask.decode(rle) == mask_of(box)).all()
    assert ("segmentation" in dataset[0]["objects"]) == (shape is not Shape.BOX)
    assert dataset[2]["objects"]["id"] == []


def test_label_studio_has_per_cent_and_labels_of_its_interface(
    predictions: PredictionFolder, tmp_path: Path
):
    """label-studio-sdk, whose reader is not in this environment, reads it in check_exports.py."""
    for shape, kind in (
        (Shape.BOX, "rectanglelabels"),
        (Shape.POLYGON, "polygonlabels"),
        (Shape.MASK, "brushlabels"),
    ):
        out = run_export(predictions, tmp_path / shape, "label-studio", shape=shape)
        interface = ElementTree.parse(out / "label_config.xml").getroot()
        (tag,) = (one for one in interface if one.tag.lower() == kind)
        assert [label.get("value") for label in tag] == ["cat", "novel_0000"]
        tasks = json.loads((out / "tasks.json").read_text())
        addresses = [parse_qs(urlsplit(task["data"]["image"]).query)["d"][0] for task in tasks]
        assert all((tmp_path / address).is_file() for address in addresses)
        assert [len(task["predictions"][0]["result"]) for task in tasks] == [2, 2, 0]
        for row, result in enumerate(tasks[1]["predictions"][0]["result"]):
            assert (result["from_name"], result["to_name"]) == (tag.get("name"), tag.get("toName"))
            assert (result["type"], result["score"]) == (kind, 0.9 / (row + 1))
            assert (result["original_width"], result["original_height"]) == (64, 48)
            assert result["value"][kind] == [("cat", "novel_0000")[row]]
            assert result.get("meta") == (None, {"text": ["cluster 0"]})[row]
            assert_place(result["value"], np.array(BOXES[row]), shape)


def assert_place(value: dict[str, Any], box: np.ndarray, shape: Shape) -> None:
    per_cent = box / [64, 48, 64, 48] * 100
    if shape is Shape.BOX:
        place = [value[key] for key in ("x", "y", "width", "height")]
        assert np.allclose(place, per_cent)
        assert value["rotation"] == 0
    elif shape is Shape.POLYGON:
        points = np.array(value["points"])
        assert np.allclose([*points.min(0), *np.ptp(points, 0)], per_cent)
    else:
        assert (unpack_mask(value["rle"], 48, 64) == mask_of(box.tolist())).all()


def test_cvat_has_labels_for_the_task_and_runs_along_rows(
    predictions: PredictionFolder, tmp_path: Path
):
    """datumaro, which is not in this environment, reads it in check_exports.py."""
    out = run_export(predictions, tmp_path / "out", "cvat")
    root = ElementTree.parse(out / "annotations.xml").getroot()
    names = [label.findtext("name") for label in root.iterfind("meta/task/labels/label")]
    assert names == [label["name"] for label in json.loads((out / "labels.json").read_text())]
    assert names == ["cat", "novel_0000"]
    images = root.findall("image")
    assert [image.get("name") for image in images] == ["a__1 ü.png", "b__1 ü.png", "none.png"]
    assert [image.get("id") for image in images] == ["0", "1", "2"]
    assert all((out / "images" / str(image.get("name"))).is_file() for image in images)
    assert [len(image) for image in images] == [2, 2, 0]
    for row, (mask, box) in enumerate(zip(images[1], BOXES, strict=True)):
        place = [float(mask.get(key, "")) for key in ("left", "top", "width", "height")]
        assert (mask.tag, mask.get("label"), place) == ("mask", names[row], box)
        assert mask.get("rle") == f"0, {round(box[2] * box[3])}"
        assert [one.text for one in mask] == [["0.9", None], ["0.45", "0"]][row]


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
    content = json.loads((tmp_path / "out" / "annotations" / "instances_default.json").read_text())
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
