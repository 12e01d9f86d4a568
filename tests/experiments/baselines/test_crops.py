from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.transforms.v2 import functional as reference

from rncdl.config import DetectorSettings
from rncdl.data.colours import Strength
from rncdl.detector.backbones import build_backbone
from rncdl.detector.model import ImageBatch
from rncdl.experiments.baselines import crops
from rncdl.experiments.baselines.crops import CropClassifier, CropEncoder, cut_crops, draw_crops

NOTHING = Strength(0, 0, 0, 0, 0, 0, 0, (0, 0))


def noise(seed: int, count: int = 2, side: int = 64) -> Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(seed))


def cut_one(image: Tensor, box: list[int], side_px: int) -> Tensor:
    boxes = torch.tensor([box], dtype=torch.float32)
    return cut_crops(image[None], boxes, images=torch.zeros(1), side_px=side_px)[0]


def pad_to_square(image: Tensor, box: list[int]) -> Tensor:
    """What torchvision cuts and pads; sides differ by an even number."""
    x0, y0, x1, y1 = box
    width, height = x1 - x0, y1 - y0
    side = max(width, height)
    cut = reference.crop_image(image, y0, x0, height, width)
    return reference.pad_image(cut, [(side - width) // 2, (side - height) // 2])


def test_no_boxes_no_crops():
    found = cut_crops(noise(0), torch.zeros(0, 4), images=torch.zeros(0), side_px=8)
    assert found.shape == (0, 3, 8, 8)


@pytest.mark.parametrize("box", [[3, 5, 35, 37], [10, 0, 24, 32], [20, 40, 52, 60], [0, 0, 32, 2]])
def test_a_box_of_the_crop_s_size_is_padded_and_no_more(box: list[int]):
    image = noise(1)[0]
    torch.testing.assert_close(cut_one(image, box, 32), pad_to_square(image, box))


@pytest.mark.parametrize("box", [[2, 4, 50, 52], [8, 2, 32, 50], [3, 30, 51, 60]])
def test_a_larger_box_is_averaged(box: list[int]):
    """Exactly where its edges fall between the crop's pixels."""
    image = noise(2)[0]
    expected = functional.avg_pool2d(pad_to_square(image, box), 3)
    torch.testing.assert_close(cut_one(image, box, 16), expected)


@pytest.mark.parametrize("box", [[8, 8, 24, 24], [20, 10, 32, 26]])
def test_a_smaller_box_is_interpolated(box: list[int]):
    """Within the box: at its edge a crop already sees the pixel beside it, or the padding."""
    image = noise(3)[0]
    expected = reference.resize_image(pad_to_square(image, box), [32, 32], antialias=False)
    left = 2 * (16 - (box[2] - box[0])) // 2 + 1
    inside = (slice(None), slice(1, -1), slice(left, 32 - left))
    torch.testing.assert_close(cut_one(image, box, 32)[inside], expected[inside])


def test_any_box_is_nearly_what_torchvision_makes_of_it():
    y, x = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    smooth = torch.stack([(x / 9).sin(), (y / 7).cos(), (x + y) / 64])
    for box in ([5, 9, 52, 40], [11, 2, 29, 63], [30, 30, 37, 41]):
        expected = reference.resize_image(pad_to_square(smooth, box), [24, 24], antialias=True)
        assert (cut_one(smooth, box, 24) - expected).abs().mean() < 0.06


def test_boxes_are_cut_from_their_own_image():
    pixels = noise(4, count=3)
    boxes = torch.tensor([[4.0, 4, 20, 20]]).expand(3, 4)
    found = cut_crops(pixels, boxes, images=torch.tensor([2, 0, 1]), side_px=16)
    torch.testing.assert_close(found, pixels[[2, 0, 1], :, 4:20, 4:20])


def test_boxes_without_an_area_give_empty_crops():
    boxes = torch.tensor([[5.0, 5, 5, 5], [9, 3, 4, 8], [64, 64, 64, 64]])
    found = cut_crops(noise(5), boxes, images=torch.zeros(3), side_px=8)
    assert found.eq(0).all()


def views(pixels: Tensor, boxes: Tensor, *, strength: Strength, flip: float, seed: int) -> Tensor:
    return draw_crops(
        pixels,
        boxes,
        images=torch.zeros(len(boxes)),
        side_px=16,
        strength=strength,
        flip_chance=flip,
        generator=torch.Generator().manual_seed(seed),
    )


def test_a_view_shows_nothing_from_outside_its_box():
    pixels = torch.full((1, 3, 64, 64), 100.0)
    pixels[:, :, 7:43, 17:53] = 0  # a pixel of the crop more than the box, on each side
    boxes = torch.tensor([[20.0, 10, 50, 40]]).expand(50, 4)
    assert views(pixels, boxes, strength=NOTHING, flip=0.5, seed=0).abs().max() < 1e-3


def test_views_depend_on_the_generator_alone():
    boxes = torch.tensor([[10.0, 10, 40, 30], [0, 0, 60, 60]])
    strong = Strength(0.4, 0.4, 0.4, 0, 0, 0.2, 0, (0, 0))
    first, again, other = (
        views(noise(6), boxes, strength=strong, flip=0.5, seed=seed) for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


def test_grey_views_have_equal_channels_and_flips_mirror():
    boxes = torch.tensor([[10.0, 10, 40, 30]])
    grey = views(noise(7), boxes, strength=Strength(0, 0, 0, 0, 0, 1, 0, (0, 0)), flip=0, seed=3)
    torch.testing.assert_close(grey[:, 0], grey[:, 2])
    plain, mirrored = (
        views(noise(7), boxes, strength=NOTHING, flip=flip, seed=3) for flip in (0, 1)
    )
    torch.testing.assert_close(mirrored, plain.flip(-1))


def test_the_classifier_sees_every_box_once_in_order(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(crops, "CHUNK", 3)
    batch = ImageBatch(noise(8), [(64, 64)] * 2)
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(8, 2, generator=generator) * 40
    boxes = torch.cat([corners, corners + 5 + torch.rand(8, 2, generator=generator) * 15], 1)
    encoder = nn.Flatten()
    classifier = CropClassifier(encoder, nn.Identity(), 8)
    found = classifier.classify_boxes(batch, [boxes[:5], boxes[5:]])
    alone = [
        cut_crops(batch.pixels, box[None], images=torch.tensor([int(i >= 5)]), side_px=8)
        for i, box in enumerate(boxes)
    ]
    torch.testing.assert_close(found, torch.cat(alone).flatten(1))
    none = classifier.classify_boxes(batch, [boxes[:0], boxes[:0]])
    assert none.shape == (0, 3 * 8 * 8)


def test_the_encoder_starts_from_the_detector_s_start(tmp_path: Path):
    torch.manual_seed(5)
    start = build_backbone("resnet10").state_dict()
    torch.save(start, tmp_path / "start.pth")
    encoder = CropEncoder(DetectorSettings(backbone="resnet10", weights=tmp_path / "start.pth"))
    assert all(torch.equal(start[k], v) for k, v in encoder.backbone.state_dict().items())
    assert encoder(noise(9, side=32)).shape == (2, encoder.width)
