import pytest
import torch

from rncdl.config import DetectorSettings
from rncdl.detector.model import Detector
from rncdl.errors import UserError


@pytest.fixture(scope="module")
def detector(tiny_settings: DetectorSettings) -> Detector:
    torch.manual_seed(0)
    return Detector(tiny_settings, 3, masks=True).eval().requires_grad_(False)


def test_images_are_normalised_and_padded_with_zeros(detector: Detector) -> None:
    images = [
        torch.randint(0, 256, (3, 40, 70), dtype=torch.uint8),
        torch.randint(0, 256, (3, 64, 33), dtype=torch.uint8),
    ]
    batch = detector.batch_images(images)
    assert batch.sizes_hw == [(40, 70), (64, 33)]
    assert batch.pixels.shape == (2, 3, 64, 96)
    mean = torch.tensor(detector.settings.pixel_mean)[:, None, None]
    std = torch.tensor(detector.settings.pixel_std)[:, None, None]
    torch.testing.assert_close(batch.pixels[0, :, :40, :70], (images[0] - mean) / std)
    assert batch.pixels[0, :, 40:].abs().sum() == 0
    assert batch.pixels[0, :, :, 70:].abs().sum() == 0
    assert batch.pixels[1, :, :, 33:].abs().sum() == 0


def test_channels_lie_last_in_weights_from_a_file_and_in_maps(detector: Detector) -> None:
    """In the other layout a CPU takes up to twice the time."""
    copy = Detector(detector.settings, 3, masks=True)
    copy.load_state_dict({key: value.contiguous() for key, value in detector.state_dict().items()})
    kernels = [value for value in copy.parameters() if value.ndim == 4]
    maps = copy.feature_maps(copy.batch_images([torch.zeros(3, 64, 96, dtype=torch.uint8)]))
    assert len(kernels) > 10
    for value in [*kernels, *maps]:
        assert value.is_contiguous(memory_format=torch.channels_last)


def test_maps_and_anchors_fit(detector: Detector) -> None:
    batch = detector.batch_images([torch.zeros(3, 64, 96, dtype=torch.uint8)])
    maps = detector.feature_maps(batch)
    assert [tuple(m.shape) for m in maps] == [
        (1, 32, 16, 24),
        (1, 32, 8, 12),
        (1, 32, 4, 6),
        (1, 32, 2, 3),
        (1, 32, 1, 2),
    ]
    scores = detector.score_anchors(maps)
    total = 3 * (16 * 24 + 8 * 12 + 4 * 6 + 2 * 3 + 2)
    assert scores.logits.shape == (1, total)
    assert scores.deltas.shape == (1, total, 4)
    assert scores.anchors_xyxy.shape == (total, 4)


def test_scores_belong_to_the_anchor_of_their_place(detector: Detector) -> None:
    """A head that answers with its input's value shows which anchor a value is filed under."""
    maps = [torch.zeros(1, 32, *shape) for shape in ((4, 6), (2, 3), (1, 2), (1, 1), (1, 1))]
    plain = detector.score_anchors(maps)
    maps[0][0, :, 1, 2] = 100.0
    changed = (detector.score_anchors(maps).logits != plain.logits)[0].nonzero().flatten()
    centres = plain.anchors_xyxy[changed].view(-1, 2, 2).mean(1)
    # The head's 3 x 3 convolution sees a pixel from its eight neighbours too.
    assert centres[:, 0].min() == 4
    assert centres[:, 0].max() == 12
    assert centres[:, 1].min() == 0
    assert centres[:, 1].max() == 8


def test_no_boxes_give_no_features_boxes_or_masks(detector: Detector) -> None:
    batch = detector.batch_images([torch.zeros(3, 64, 64, dtype=torch.uint8)] * 2)
    maps = detector.feature_maps(batch)
    none = [torch.zeros(0, 4)] * 2
    features = detector.region_features(maps, none)
    assert features.shape == (0, 64)
    assert [b.shape for b in detector.refine_boxes(features, none, batch.sizes_hw)] == [(0, 4)] * 2
    assert detector.mask_logits(maps, none).shape == (0, 28, 28)


def test_an_untrained_regressor_leaves_boxes_where_they_are(detector: Detector) -> None:
    boxes = [torch.tensor([[3.0, 4, 30, 40]]), torch.tensor([[10.0, 10, 90, 20]])]
    refined = detector.refine_boxes(torch.zeros(2, 64), boxes, [(64, 64), (64, 64)])
    torch.testing.assert_close(refined[0], boxes[0])
    torch.testing.assert_close(refined[1], torch.tensor([[10.0, 10, 64, 20]]))


def test_images_of_a_batch_do_not_touch_each_other(detector: Detector) -> None:
    torch.manual_seed(1)
    images = [torch.randint(0, 256, (3, 64, 64), dtype=torch.uint8) for _ in range(2)]
    boxes = [torch.tensor([[5.0, 5, 40, 50]]), torch.tensor([[0.0, 0, 64, 64], [8, 8, 20, 20]])]
    together = detector.region_features(detector.feature_maps(detector.batch_images(images)), boxes)
    alone = [
        detector.region_features(detector.feature_maps(detector.batch_images([image])), [b])
        for image, b in zip(images, boxes, strict=True)
    ]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-4)


def test_box_head_norm_replaces_biases(tiny_settings: DetectorSettings) -> None:
    settings = tiny_settings.model_copy(update={"box_head_norm": True})
    names = set(Detector(settings, 3, masks=False).state_dict())
    assert "box_head.norm1.running_mean" in names
    assert "box_head.fc1.bias" not in names


def test_without_a_mask_head_masks_are_refused(tiny_settings: DetectorSettings) -> None:
    detector = Detector(tiny_settings, 3, masks=False)
    with pytest.raises(UserError, match="no mask head"):
        detector.mask_logits([], [])


def test_anchor_sizes_must_fit_the_levels(tiny_settings: DetectorSettings) -> None:
    settings = tiny_settings.model_copy(update={"anchor_sizes_px": (32.0, 64.0)})
    with pytest.raises(UserError, match="anchor_sizes_px has 2 sizes; give 5"):
        Detector(settings, 3, masks=False)
