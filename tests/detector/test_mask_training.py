import pytest
import torch

from rncdl.config import DetectorSettings
from rncdl.detector.mask_training import MaskStep, shift_edges
from rncdl.detector.model import Detector
from rncdl.detector.training_steps import blank_sample
from tests.detector.conftest import rectangle_sample


def test_edges_move_by_a_share_of_the_side_across_them():
    torch.manual_seed(0)
    box = torch.tensor([[10.0, 20.0, 30.0, 120.0]])
    moved = shift_edges(box.expand(2000, 4), most=0.1) - box
    sides = torch.tensor([20.0, 100.0, 20.0, 100.0])
    assert (moved.abs() <= 0.1 * sides).all()
    assert (moved.amax(0) > 0.09 * sides).all()
    assert (moved.amin(0) < -0.09 * sides).all()
    assert shift_edges(box[:0], most=0.1).shape == (0, 4)


@pytest.fixture
def detector(tiny_settings: DetectorSettings) -> Detector:
    torch.manual_seed(0)
    settings = tiny_settings.model_copy(update={"mask_detail": 8})
    detector = Detector(settings, 3, masks=True).eval().requires_grad_(False)
    for part in (detector.mask_head, detector.mask_detail):
        assert part is not None
        part.train().requires_grad_(True)
    return detector


def test_a_frozen_detectors_masks_learn_to_fill_bright_rectangles(detector: Detector):
    """From pixels that neither the backbone nor the pyramid was ever taught to look at."""
    inside = [[10.0, 12.0, 34.0, 44.0], [24.0, 6.0, 56.0, 30.0], [6.0, 30.0, 30.0, 58.0]]
    samples = []
    for number, box in enumerate(inside):
        sample = rectangle_sample([box], [number])
        x0, y0, x1, y1 = (int(edge) for edge in box)
        mask = torch.zeros(64, 64, dtype=torch.bool)
        mask[y0:y1, x0 : (x0 + x1) // 2] = True  # the left half of the box is the object
        sample.image = torch.where(mask, 255, 0).to(torch.uint8).expand(3, 64, 64).clone()
        sample.masks = mask[None]
        samples.append(sample)
    step = MaskStep(detector)
    trainable = [p for p in detector.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, 1e-2)
    losses = []
    for _ in range(40):
        loss = step(samples)["mask"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(0.693, abs=0.02)  # the head begins undecided
    assert losses[-1] < 0.25


def test_images_without_objects_pass_through_and_count_for_nothing(detector: Detector):
    for samples in ([blank_sample()], [rectangle_sample([], [])]):
        detector.zero_grad()
        loss = MaskStep(detector)(samples)["mask"]
        loss.backward()
        gradients = [p.grad for p in detector.parameters() if p.requires_grad]
        assert all(gradient is not None and not gradient.any() for gradient in gradients)
