"""How many annotated objects the bank's regions fit."""

import json
from pathlib import Path

import torch

from rncdl.classes import ClassSplit
from rncdl.data.annotations import load_annotations
from rncdl.data.viewed_images import Pool
from rncdl.discovery.bank import Bank, BankShape
from rncdl.discovery.coverage import covered_share
from rncdl.discovery.extraction import ChosenRegions, ExtractedRegions

OBJECTS = {1: [[0, 0, 10, 10], [20, 20, 30, 30]], 2: [[5, 5, 20, 20]], 3: []}
"""Image -> x, y, width, height of what is annotated in it."""


def pool_in(folder: Path) -> Pool:
    content = {
        "images": [
            {"id": image, "file_name": f"{image}.png", "height": 64, "width": 64}
            for image in OBJECTS
        ],
        "categories": [{"id": 1, "name": "thing"}],
        "annotations": [
            {"id": 10 * image + place, "image_id": image, "category_id": 1, "bbox": box}
            for image, boxes in OBJECTS.items()
            for place, box in enumerate(boxes)
        ],
    }
    (folder / "labels.json").write_text(json.dumps(content))
    annotations = load_annotations(folder / "labels.json").annotations
    return Pool(ClassSplit(("thing",)).keep_known(annotations), [])


def bank_of(folder: Path, boxes_xyxy: dict[int, list[list[float]]]) -> Bank:
    """A bank with these regions of its images; the others cannot be read."""
    shape = BankShape(
        num_images=3,
        num_labelled=3,
        num_views=2,
        regions_per_image=2,
        matched_per_image=1,
        num_features=1,
    )
    Bank.create(folder / "bank", shape, {})
    bank = Bank(folder / "bank", writable=True)
    for index in range(3):
        boxes = torch.tensor(boxes_xyxy.get(index, []), dtype=torch.float32).reshape(-1, 4)
        if index not in boxes_xyxy:
            bank.mark_unreadable(index)
            continue
        nothing = torch.zeros(0, dtype=torch.int64)
        chosen = ChosenRegions(boxes, torch.ones(len(boxes)), torch.zeros(0, 4), nothing)
        bank.write(
            index, ExtractedRegions(chosen, torch.zeros(2, len(boxes), 1), torch.zeros(2, 0, 1))
        )
    return bank


def test_nothing_is_said_without_objects(tmp_path: Path):
    assert covered_share(bank_of(tmp_path, {}), pool_in(tmp_path)) is None


def test_objects_count_that_a_region_of_their_own_image_fits(tmp_path: Path):
    bank = bank_of(
        tmp_path,
        {
            0: [[0, 0, 10, 9], [0, 0, 64, 64]],  # fits the first; the whole image fits neither
            1: [[20, 20, 50, 50]],  # would fit in another image
            2: [[5, 5, 25, 25]],
        },
    )
    assert covered_share(bank, pool_in(tmp_path)) == 1 / 3


def test_images_without_regions_count_as_missed_and_unreadable_ones_not_at_all(tmp_path: Path):
    pool = pool_in(tmp_path)
    assert covered_share(bank_of(tmp_path, {0: [], 1: [[5, 5, 25, 25]]}), pool) == 1 / 3
    (tmp_path / "second").mkdir()
    assert covered_share(bank_of(tmp_path / "second", {1: [[5, 5, 25, 25]]}), pool) == 1
