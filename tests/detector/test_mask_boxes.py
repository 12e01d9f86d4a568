from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torchvision.ops import masks_to_boxes

from rncdl.config import DetectorSettings
from rncdl.detector.mask_boxes import enlarge, fit_to_masks, mask_extents
from rncdl.detector.model import Detector


@given(st.integers(0, 10_000), st.integers(1, 12))
def test_extents_are_those_of_the_cells_that_are_on(seed: int, size: int) -> None:
    """Against torchvision, with masks laid over boxes of as many pixels as they have cells."""
    generator = torch.Generator().manual_seed(seed)
    masks = torch.rand(5, size, size, generator=generator) < 0.15
    corners = torch.randint(-20, 20, (5, 2), generator=generator).float()
    extents, is_empty = mask_extents(masks, torch.cat([corners, corners + size], 1))
    assert torch.equal(is_empty, ~masks.flatten(1).any(1))
    expected = masks_to_boxes(masks[~is_empty]) + torch.tensor([0.0, 0, 1, 1])
    expected += corners[~is_empty].repeat(1, 2)
    torch.testing.assert_close(extents[~is_empty], expected)


def test_a_larger_box_has_the_same_centre() -> None:
    boxes = torch.tensor([[10.0, 20, 30, 60], [0, 0, 0, 0]])
    expected = torch.tensor([[8.0, 16, 32, 64], [0, 0, 0, 0]])
    torch.testing.assert_close(enlarge(boxes, 1.2), expected)


@pytest.fixture
def knowing_detector(tiny_settings: DetectorSettings, monkeypatch: pytest.MonkeyPatch) -> Detector:
    """A detector whose masks are right: of image 0 the object is at OBJECT, image 1 is empty."""

    def mask_logits(_: Detector, maps: Sequence[Tensor], boxes: Sequence[Tensor]) -> Tensor:
        (own,) = boxes
        share = (torch.arange(28) + 0.5) / 28
        x = own[:, 0:1] + share * (own[:, 2:3] - own[:, 0:1])
        y = own[:, 1:2] + share * (own[:, 3:4] - own[:, 1:2])
        is_on = ((x >= OBJECT[0]) & (x <= OBJECT[2]))[:, None, :]
        is_on = is_on & ((y >= OBJECT[1]) & (y <= OBJECT[3]))[:, :, None]
        return torch.where(is_on & (maps[0].flatten()[0] == 0), 5.0, -5.0)

    monkeypatch.setattr(Detector, "mask_logits", mask_logits)
    return Detector(tiny_settings, 3, masks=True)


OBJECT = torch.tensor([20.0, 10, 50, 40])


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_boxes_move_to_their_masks(knowing_detector: Detector, share: float) -> None:
    boxes = torch.tensor([[22.0, 12, 48, 41], [18, 10, 55, 38], [5, 5, 5, 5]])
    maps = [torch.arange(2).reshape(2, 1, 1, 1).float()]
    fitted, of_empty = fit_to_masks(
        knowing_detector, maps, [boxes, boxes[:1]], [(64, 64), (64, 64)], share=share
    )
    halfway = boxes[:2] + share * (OBJECT - boxes[:2])
    # A cell is a 28th of a box that is a fifth larger than the one given.
    assert (fitted[:2] - halfway).abs().max() <= share * 1.2 * 37 / 28
    assert torch.equal(fitted[2], boxes[2])
    assert torch.equal(of_empty, boxes[:1])


def test_no_boxes_stay_none(tiny_settings: DetectorSettings) -> None:
    detector = Detector(tiny_settings, 3, masks=True).eval()
    maps = detector.feature_maps(detector.batch_images([torch.zeros(3, 64, 64, dtype=torch.uint8)]))
    (fitted,) = fit_to_masks(detector, maps, [torch.zeros(0, 4)], [(64, 64)], share=1.0)
    assert fitted.shape == (0, 4)
