import pytest
import torch
from torch import Tensor

from rncdl.config import DetectorSettings
from rncdl.detector.losses import supervised_losses
from rncdl.detector.model import Detector
from tests.detector.conftest import rectangle_sample

BOXES = torch.tensor([[4.0, 6.0, 30.0, 40.0], [20.0, 20.0, 60.0, 52.0]])


@pytest.fixture
def detector(tiny_settings: DetectorSettings) -> Detector:
    torch.manual_seed(0)
    settings = tiny_settings.model_copy(update={"mask_detail": 4})
    return Detector(settings, 3, masks=True).eval()


def teach(detector: Detector) -> None:
    """A correction that is not zero."""
    assert detector.mask_detail is not None
    torch.nn.init.normal_(detector.mask_detail.correction.weight)


def images(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randint(0, 256, (3, 64, 64), dtype=torch.uint8, generator=generator)
        for _ in range(count)
    ]


def test_no_detail_unless_there_are_masks_and_channels(tiny_settings: DetectorSettings):
    detailed = tiny_settings.model_copy(update={"mask_detail": 4})
    assert Detector(tiny_settings, 3, masks=True).mask_detail is None
    assert Detector(detailed, 3, masks=False).mask_detail is None


@torch.no_grad()
def test_an_untaught_detail_changes_nothing(detector: Detector):
    maps = detector.feature_maps(detector.batch_images(images(1)))
    plain = detector.mask_logits(maps, [BOXES], with_detail=False)
    assert torch.equal(detector.mask_logits(maps, [BOXES]), plain)
    teach(detector)
    assert not torch.allclose(detector.mask_logits(maps, [BOXES]), plain)
    assert torch.equal(detector.mask_logits(maps, [BOXES], with_detail=False), plain)


@torch.no_grad()
def test_a_mask_is_corrected_by_the_pixels_of_its_own_box_and_image(detector: Detector):
    teach(detector)
    batch = detector.batch_images(images(2))
    maps = detector.feature_maps(batch)
    before = detector.mask_logits(maps, [BOXES[:1], BOXES])
    pixels = maps[-1].clone()
    pixels[1, :, 45:50, 50:58] += 1  # inside the last box alone, and in the second image
    after = detector.mask_logits([*maps[:-1], pixels], [BOXES[:1], BOXES])
    assert torch.equal(after[:2], before[:2])
    changed = (after[2] - before[2]).abs() > 1e-6
    rows, columns = changed.nonzero().T
    # A pixel of the mask is 1 to 1.25 of the image's; three convolutions look three further.
    assert len(rows)
    assert rows.min() >= (45 - 20) * 28 / 32 - 5
    assert columns.min() >= (50 - 20) * 28 / 40 - 5
    assert columns.max() <= (58 - 20) * 28 / 40 + 5


@torch.no_grad()
def test_pixels_are_pooled_over_the_box(detector: Detector):
    """A ramp from left to right is one again in the box, from its left edge to its right one."""
    ramp = torch.arange(64).float().expand(1, 3, 64, 64)
    pooled = detector.pool_pixels([ramp], torch.tensor([[0.0, 8, 16, 36, 44]]))
    expected = 8 - 0.5 + (torch.arange(28) + 0.5)  # the box is 28 pixels wide
    torch.testing.assert_close(pooled, expected.expand(1, 3, 28, 28))


@torch.no_grad()
def test_the_rest_of_the_detector_does_not_see_the_pixels(detector: Detector):
    maps = detector.feature_maps(detector.batch_images(images(1)))
    assert len(maps) == 6
    with_pixels, without = detector.score_anchors(maps), detector.score_anchors(maps[:5])
    assert torch.equal(with_pixels.logits, without.logits)
    features = detector.region_features(maps, [BOXES])
    assert torch.equal(features, detector.region_features(maps[:5], [BOXES]))


def test_the_training_with_boxes_and_classes_leaves_the_detail_alone(detector: Detector):
    detector.train()
    before = {key: value.clone() for key, value in detector.state_dict().items()}
    losses = supervised_losses(detector, [rectangle_sample([[8.0, 8.0, 40.0, 48.0]], [0])])
    torch.stack(list(losses.values())).sum().backward()
    assert detector.mask_detail is not None
    assert all(p.grad is None for p in detector.mask_detail.parameters())
    for key, value in detector.state_dict().items():
        if key.startswith("mask_detail."):
            assert torch.equal(value, before[key])
