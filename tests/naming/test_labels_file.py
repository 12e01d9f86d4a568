import json
from pathlib import Path

import numpy as np
import pytest

from rncdl.classes import ClassSplit
from rncdl.data.annotations import load_annotations
from rncdl.data.masks import encode_rle, to_rle
from rncdl.data.records import ImageRecord
from rncdl.naming.accepting import NewLabel
from rncdl.naming.labels_file import PromotedLabels, write_labels

OLD = {
    "images": [
        {
            "id": 7,
            "file_name": "images/a.png",
            "width": 20,
            "height": 10,
            "neg_category_ids": [3, 9],
            "not_exhaustive_category_ids": [],
        }
    ],
    "categories": [
        {"id": 3, "name": "car", "synset": "car.n.01", "frequency": "r"},
        {"id": 9, "name": "secret"},
    ],
    "annotations": [
        {
            "id": 5,
            "image_id": 7,
            "category_id": 3,
            "bbox": [1, 2, 3, 4],
            "area": 6.5,
            "iscrowd": 1,
            "segmentation": [[1, 2, 4, 2, 4, 6]],
        },
        {"id": 6, "image_id": 7, "category_id": 9, "bbox": [0, 0, 2, 2]},
    ],
}


@pytest.fixture
def labels(tmp_path: Path) -> PromotedLabels:
    """A labelled image of one known class, a second one that nobody labelled, a third left out."""
    old_file = tmp_path / "world" / "old.json"
    old_file.parent.mkdir()
    old_file.write_text(json.dumps(OLD))
    known = ClassSplit(("car",)).keep_known(load_annotations(old_file).annotations)
    others = [ImageRecord(7, tmp_path / "world" / f"{name}.png", 10, 20) for name in "bc"]
    mask = np.zeros((10, 20), dtype=bool)
    mask[2:5, 4:8] = True
    cup = NewLabel("cup", (4.0, 2.0, 8.0, 5.0), 0.75, "placed", True, encode_rle(mask))
    car = NewLabel("car", (0.0, 0.0, 2.0, 2.0), 0.5, "detected", False, encode_rle(mask))
    new = {2: [cup, car], 0: [cup]}
    return PromotedLabels(known, (*known.annotations.images, *others), new, {"made_by": "a test"})


def test_old_labels_stay_as_they_were_and_new_ones_follow(labels: PromotedLabels, tmp_path: Path):
    out = tmp_path / "new" / "labels.json"
    write_labels(out, labels)
    content = json.loads(out.read_text())
    assert content["info"] == {"made_by": "a test"}
    assert content["categories"] == [OLD["categories"][0], {"id": 4, "name": "cup"}]
    assert content["annotations"][0] == {**OLD["annotations"][0], "origin": "labelled"}
    added = [
        (one["id"], one["image_id"], one["category_id"], one["origin"], one["score"])
        for one in content["annotations"][1:]
    ]
    assert added == [
        (6, 7, 4, "placed", 0.75),
        (7, 8, 4, "placed", 0.75),
        (8, 8, 3, "detected", 0.5),
    ]
    assert content["annotations"][1]["bbox"] == [4, 2, 4, 3]
    assert content["annotations"][1]["area"] == 12
    assert "secret" not in out.read_text()
    assert content["images"][0]["neg_category_ids"] == [3]


def test_training_reads_the_file_with_masks_and_finds_the_images(
    labels: PromotedLabels, tmp_path: Path
):
    out = tmp_path / "new" / "labels.json"
    write_labels(out, labels)
    found = load_annotations(out).annotations
    assert found.has_masks
    assert [image.path for image in found.images] == [
        tmp_path / "world" / "images" / "a.png",
        tmp_path / "world" / "c.png",
    ]
    assert ClassSplit.from_labelled(found).known == ("car", "cup")
    mask = labels.new[0][0].rle
    assert mask is not None
    segmentation = found.segmentations[1]
    assert segmentation is not None
    assert to_rle(segmentation, 10, 20) == mask


def test_images_below_the_new_file_are_named_relative_to_it(labels: PromotedLabels, tmp_path: Path):
    out = tmp_path / "labels.json"
    write_labels(out, labels)
    names = [image["file_name"] for image in json.loads(out.read_text())["images"]]
    assert names == ["world/images/a.png", "world/c.png"]
