import numpy as np
import torch

from rncdl.data.masks import encode_rle
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
