"""`rncdl prepare convert`."""

import json
from pathlib import Path

import numpy as np
import pytest
import supervision as sv

from rncdl.data.annotations import load_annotations
from rncdl.errors import UserError
from rncdl.stages.prepare import convert_dataset
from tests.data.made_up import annotation_entry, image_entry, write_coco, write_image


@pytest.fixture
def yolo(tmp_path: Path) -> Path:
    for name in ("1.png", "2.png"):
        write_image(tmp_path / "set" / "images" / name)
    (tmp_path / "set" / "labels").mkdir()
    (tmp_path / "set" / "labels" / "1.txt").write_text(
        "1 0.5 0.5 0.25 0.5\n0 0.25 0.25 0.75 0.25 0.75 0.75\n"
    )
    (tmp_path / "set" / "classes.txt").write_text("cat\ndog\nowl\n")
    return tmp_path / "set"


def test_a_converted_dataset_is_the_same_dataset(yolo: Path, tmp_path: Path):
    for out in (yolo / "labels.json", tmp_path / "elsewhere" / "labels.json"):
        convert_dataset(yolo, None, out, overwrite=False)
        before, after = load_annotations(yolo).annotations, load_annotations(out).annotations
        assert after.images == before.images
        assert after.categories == before.categories
        for column in ("annotation_ids", "image_index", "category_ids", "boxes_xyxy", "areas"):
            assert np.array_equal(getattr(after, column), getattr(before, column)), column
        assert list(after.segmentations) == list(before.segmentations)
    names = [image["file_name"] for image in json.loads(out.read_text())["images"]]
    assert names == [str(yolo / "images" / name) for name in ("1.png", "2.png")]


def test_others_read_what_was_converted(yolo: Path):
    convert_dataset(yolo, None, yolo / "labels.json", overwrite=False)
    found = sv.DetectionDataset.from_coco(str(yolo), str(yolo / "labels.json"))
    assert found.classes == ["cat", "dog", "owl"]
    objects = {Path(path).name: one for path, _, one in found}
    assert len(objects["2.png"]) == 0
    assert objects["1.png"].class_id is not None
    assert objects["1.png"].class_id.tolist() == [1, 0]
    assert objects["1.png"].xyxy.tolist() == [[24, 12, 40, 36], [16, 12, 48, 36]]


def test_lvis_keeps_its_lists_and_crowds_stay_crowds(tmp_path: Path):
    write_image(tmp_path / "1.png")
    source = write_coco(
        tmp_path / "lvis.json",
        images=[image_entry(neg_category_ids=[90], not_exhaustive_category_ids=[7])],
        annotations=[annotation_entry(), annotation_entry(5, segmentation=..., iscrowd=1)],
        categories=[{"id": 7, "name": "cat", "frequency": "r"}, {"id": 90, "name": "dog"}],
    )
    convert_dataset(source, None, tmp_path / "again.json", overwrite=False)
    before, after = (
        load_annotations(tmp_path / name).annotations for name in ("lvis.json", "again.json")
    )
    assert after.images == before.images
    assert after.is_federated
    assert after.categories == before.categories
    assert after.is_crowd.tolist() == [False, True]
    assert after.areas.tolist() == [390.5, 390.5]
    assert after.segmentations[1] is None


def test_nothing_is_overwritten_without_being_asked(yolo: Path, tmp_path: Path):
    out = tmp_path / "labels.json"
    out.write_text("mine")
    with pytest.raises(UserError, match=r"labels.json: is there already.*--overwrite"):
        convert_dataset(yolo, None, out, overwrite=False)
    assert out.read_text() == "mine"
    convert_dataset(yolo, None, out, overwrite=True)
    assert len(json.loads(out.read_text())["annotations"]) == 2
    with pytest.raises(UserError, match="a folder; --out is the json file"):
        convert_dataset(yolo, None, tmp_path, overwrite=True)
