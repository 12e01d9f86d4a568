import numpy as np
import torch
from pycocotools import mask as run_lengths
from torch import Tensor
from torch.nn import functional

from rncdl.detector.pasting import paste_masks

SIZE = (40, 56)


def reference(mask: Tensor, box: Tensor) -> Tensor:
    """The mask sampled at every pixel's centre with grid_sample."""
    height, width = SIZE
    x0, y0, x1, y1 = box.tolist()
    x = (torch.arange(width) + 0.5 - x0) / (x1 - x0) * 2 - 1
    y = (torch.arange(height) + 0.5 - y0) / (y1 - y0) * 2 - 1
    grid = torch.stack((x.expand(height, -1), y[:, None].expand(-1, width)), -1)
    sampled = functional.grid_sample(mask[None, None], grid[None], align_corners=False)
    return sampled[0, 0] >= 0.5


def masks_and_boxes() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(12, 2, generator=generator) * 40 - 10
    sides = 3 + torch.rand(12, 2, generator=generator) * 40
    masks = functional.interpolate(torch.rand(12, 1, 5, 5, generator=generator), 28, mode="bicubic")
    return masks[:, 0].clamp(0, 1), torch.cat((corners, corners + sides), 1)


def test_no_masks() -> None:
    assert paste_masks(torch.zeros(0, 28, 28), torch.zeros(0, 4), SIZE) == []


def test_equals_grid_sample() -> None:
    masks, boxes = masks_and_boxes()
    rles = paste_masks(masks, boxes, SIZE)
    assert len(rles) == len(masks)
    assert sum(int(run_lengths.area(rle)) > 20 for rle in rles) > 8
    for rle, mask, box in zip(rles, masks, boxes, strict=True):
        assert rle["size"] == list(SIZE)
        expected = reference(mask, box)
        assert torch.equal(torch.from_numpy(run_lengths.decode(rle)).bool(), expected)


def test_run_lengths_are_those_of_pycocotools() -> None:
    """Also where a mask begins in the first pixel, ends in the last, or leaves no column free."""
    whole = torch.tensor([0.0, 0, SIZE[1], SIZE[0]])
    masks = torch.stack(
        [torch.ones(28, 28), torch.zeros(28, 28), torch.eye(28), torch.ones(28, 28)]
    )
    boxes = torch.stack([whole, whole, whole, torch.tensor([20.0, -5, 90, 90])])
    for rle in paste_masks(masks, boxes, SIZE):
        assert run_lengths.encode(np.asfortranarray(run_lengths.decode(rle))) == rle


def test_a_full_mask_fills_its_box() -> None:
    (rle,) = paste_masks(torch.ones(1, 28, 28), torch.tensor([[10.0, 5, 30, 20]]), SIZE)
    expected = torch.zeros(SIZE, dtype=torch.uint8)
    expected[5:20, 10:30] = 1
    assert torch.equal(torch.from_numpy(run_lengths.decode(rle)), expected)
