import sys
from dataclasses import fields, replace

import numpy as np
import pytest
import supervision as sv
import torch

from rncdl.data.masks import encode_rle
from rncdl.errors import UserError
from rncdl.regions import Regions


def made_up() -> Regions:
    masks = np.zeros((3, 6, 8), dtype=bool)
    masks[0, :2], masks[1, 3, 4:], masks[2, 5, 7] = True, True, True
    return Regions(
        boxes_xyxy=torch.arange(12.0).view(3, 4),
        scores=torch.tensor([0.9, 0.5, 0.1]),
        labels=torch.tensor([2, 0, 2]),
        features=torch.eye(3),
        rles=[encode_rle(mask) for mask in masks],
        names=["novel_0000", "cat", "novel_0000"],
        size_hw=(6, 8),
    )


def test_no_rows_leave_masks_of_the_images_size():
    nothing = made_up()[torch.zeros(3, dtype=torch.bool)]
    assert len(nothing) == 0
    assert nothing.names == []
    assert nothing.masks is not None
    assert nothing.masks.shape == (0, 6, 8)


def test_chosen_rows_keep_all_their_columns():
    regions = made_up()
    for rows in (torch.tensor([2, 0]), torch.tensor([True, False, True])):
        chosen = regions[rows]
        first = 2 if rows.dtype == torch.int64 else 0
        assert torch.equal(chosen.boxes_xyxy[0], regions.boxes_xyxy[first])
        assert chosen.names == ["novel_0000", "novel_0000"]
        assert chosen.features is not None
        assert chosen.features[0, first] == 1
        assert chosen.masks is not None
        assert regions.masks is not None
        assert torch.equal(chosen.masks[0], regions.masks[first])


def test_masks_are_pixels():
    masks = made_up().masks
    assert masks is not None
    assert masks.dtype == torch.bool
    assert masks.flatten(1).sum(1).tolist() == [16, 4, 1]
    assert masks[2, 5, 7]


def test_without_run_lengths_there_are_no_masks():
    assert Regions(torch.zeros(0, 4), size_hw=(6, 8)).masks is None


def assert_same(one: Regions, other: Regions) -> None:
    for field in fields(Regions):
        here, there = getattr(one, field.name), getattr(other, field.name)
        if isinstance(here, torch.Tensor):
            assert here.dtype == there.dtype, field.name
            assert torch.equal(here, there), field.name
        else:
            assert here == there, field.name


def test_regions_survive_supervision_with_all_their_columns():
    whole = replace(
        made_up(),
        objectness=torch.tensor([1.5, -2.0, 0.25]),
        within_cut=torch.tensor([True, False, True]),
        clusters=[(0, 3), (), (0, 3)],
    )
    for regions in (
        Regions(torch.zeros(0, 4)),
        whole[torch.zeros(3, dtype=torch.bool)],
        Regions(torch.arange(8.0).view(2, 4)),
        whole[torch.tensor([1])],
        whole,
    ):
        assert_same(Regions.from_supervision(regions.to_supervision()), regions)


def test_supervision_sees_the_same_objects():
    regions = made_up()
    found = regions.to_supervision()
    assert regions.scores is not None
    assert found.confidence is not None
    assert found.xyxy.tolist() == regions.boxes_xyxy.tolist()
    assert found.confidence.tolist() == regions.scores.tolist()
    assert found["class_name"].tolist() == ["novel_0000", "cat", "novel_0000"]  # type: ignore[union-attr]
    assert found[found.class_id == 2].area.tolist() == [16, 1]  # type: ignore[union-attr]


def test_detections_of_others_are_sorted_from_the_best():
    mask = np.zeros((2, 5, 7), dtype=bool)
    mask[1, 2] = True
    others = sv.Detections(
        np.array([[0, 1, 2, 3], [4, 5, 6, 7]]), mask, np.array([0.2, 0.7]), np.array([4, 1])
    )
    regions = Regions.from_supervision(others)
    assert regions.boxes_xyxy.tolist() == [[4, 5, 6, 7], [0, 1, 2, 3]]
    assert regions.labels is not None
    assert regions.labels.tolist() == [1, 4]
    assert regions.masks is not None
    assert regions.masks.flatten(1).sum(1).tolist() == [7, 0]
    assert regions.size_hw == (5, 7)
    assert regions.names is None


def test_without_supervision_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "supervision", None)
    with pytest.raises(UserError, match=r"pip install 'rncdl\[supervision\]'"):
        made_up().to_supervision()
