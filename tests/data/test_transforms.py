import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rncdl.data.colours import STRENGTHS
from rncdl.data.samples import Sample
from rncdl.data.transforms import augment_sample, mirror_sample, resize_sample, resized_size
from tests.data.made_up import gradient

SIDES = st.integers(1, 3000)


def filled(boxes, height, width):
    """(n, height, width) masks that fill boxes with whole-number corners."""
    masks = torch.zeros((len(boxes), height, width), dtype=torch.bool)
    for mask, (x1, y1, x2, y2) in zip(masks, boxes, strict=True):
        mask[y1:y2, x1:x2] = True
    return masks


def sample(boxes=((4, 6, 24, 16), (30, 20, 62, 44)), *, height=48, width=64, with_masks=True):
    return Sample(
        image=torch.from_numpy(gradient(height, width)).permute(2, 0, 1).contiguous(),
        boxes_xyxy=torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        labels=torch.arange(len(boxes)),
        masks=filled(boxes, height, width) if with_masks else None,
        image_index=3,
        path="a.png",
        original_size=(height, width),
    )


def boxes_of(masks):
    """(n, 4) float boxes around the pixels of masks."""
    boxes = []
    for mask in masks:
        y, x = torch.where(mask)
        boxes.append([x.min(), y.min(), x.max() + 1, y.max() + 1])
    return torch.tensor(boxes, dtype=torch.float32)


@pytest.mark.parametrize(
    ("size", "short", "long", "expected"),
    [
        ((480, 640), 800, 1333, (800, 1067)),
        ((640, 480), 800, 1333, (1067, 800)),
        ((400, 1600), 800, 1333, (333, 1333)),
        ((128, 128), 128, 128, (128, 128)),
        ((1, 5000), 800, 1333, (1, 1333)),
    ],
)
def test_sizes(size, short, long, expected):
    height, width = size
    assert resized_size(height, width, short, long) == expected


@given(SIDES, SIDES, SIDES, SIDES)
def test_a_limit_is_reached_and_none_exceeded(height, width, short, long):
    new = resized_size(height, width, short, long)
    assert min(new) == short or max(new) == long
    assert min(new) <= short
    assert max(new) <= max(long, 1)


def test_a_sample_without_annotations():
    empty = sample(boxes=())
    resized = resize_sample(empty, short_side_px=24, long_side_px=1000)
    for result in (resized, mirror_sample(resized)):
        assert result.image.shape == (3, 24, 32)
        assert result.boxes_xyxy.shape == (0, 4)
        assert result.masks is not None
        assert result.masks.shape == (0, 24, 32)
        assert result.masks.dtype == torch.bool


@pytest.mark.parametrize("short_side_px", [24, 96, 240])
def test_boxes_and_masks_follow_the_image(short_side_px):
    original = sample()
    resized = resize_sample(original, short_side_px=short_side_px, long_side_px=1000)
    scale = short_side_px / 48
    assert resized.image.dtype == torch.uint8
    assert resized.image.shape == (3, short_side_px, short_side_px * 64 // 48)
    torch.testing.assert_close(resized.boxes_xyxy, original.boxes_xyxy * scale)
    assert resized.masks is not None
    torch.testing.assert_close(boxes_of(resized.masks), resized.boxes_xyxy, atol=0, rtol=0)
    assert resized.original_size == (48, 64)


def test_masks_are_not_shifted_by_uneven_scales():
    resized = resize_sample(sample(), short_side_px=37, long_side_px=1000)
    assert resized.masks is not None
    shift = boxes_of(resized.masks) - resized.boxes_xyxy
    assert shift.abs().max() <= 0.5 + 1e-4


def test_colours_stay_in_place():
    resized = resize_sample(sample(), short_side_px=24, long_side_px=1000)
    expected = torch.from_numpy(gradient()).permute(2, 0, 1).float().unfold(1, 2, 2).unfold(2, 2, 2)
    assert (resized.image.float() - expected.mean((-1, -2)))[:, 2:-2, 2:-2].abs().max() <= 1


def test_the_same_size_costs_nothing():
    original = sample()
    assert resize_sample(original, short_side_px=48, long_side_px=64) is original


def test_mirrored_twice_is_the_sample_itself():
    original = sample()
    once = mirror_sample(original)
    assert once.boxes_xyxy[0].tolist() == [40, 6, 60, 16]
    assert once.masks is not None
    torch.testing.assert_close(boxes_of(once.masks), once.boxes_xyxy)
    np.testing.assert_array_equal(once.image.permute(1, 2, 0).numpy(), gradient()[:, ::-1])
    twice = mirror_sample(once)
    assert torch.equal(twice.image, original.image)
    assert torch.equal(twice.boxes_xyxy, original.boxes_xyxy)
    assert twice.masks is not None
    assert original.masks is not None
    assert torch.equal(twice.masks, original.masks)


def test_transforms_leave_their_input_alone():
    original = sample()
    augment_sample(
        original,
        np.random.default_rng(0),
        short_sides_px=[48],
        long_side_px=64,
        flip=1.0,
        colours=STRENGTHS["simclr"],
    )
    np.testing.assert_array_equal(original.image.permute(1, 2, 0).numpy(), gradient())
    assert original.boxes_xyxy[0].tolist() == [4, 6, 24, 16]


def test_augmentation_draws_every_side_and_flips_as_often_as_told():
    rng = np.random.default_rng(0)
    plain = sample(with_masks=False)
    drawn = [
        augment_sample(
            plain,
            rng,
            short_sides_px=[24, 36, 48],
            long_side_px=1000,
            flip=0.25,
            colours=STRENGTHS["none"],
        )
        for _ in range(400)
    ]
    heights = np.array([result.image.shape[1] for result in drawn])
    flips = [result.boxes_xyxy[0, 0].item() / result.image.shape[2] > 0.5 for result in drawn]
    assert {side: (heights == side).mean() > 0.25 for side in (24, 36, 48)} == dict.fromkeys(
        (24, 36, 48), True
    )
    assert 0.18 < np.mean(flips) < 0.32
    assert all(result.masks is None for result in drawn)


def recoloured(strength, seed=0):
    return augment_sample(
        sample(),
        np.random.default_rng(seed),
        short_sides_px=[48],
        long_side_px=64,
        flip=0.0,
        colours=STRENGTHS[strength],
    )


def test_colours_are_distorted_as_far_as_told_and_nothing_else_is():
    original = sample()
    moved = {
        strength: np.mean(
            [
                (recoloured(strength, seed).image.float() - original.image.float()).abs().mean()
                for seed in range(40)
            ]
        )
        for strength in STRENGTHS
    }
    assert moved["none"] == 0
    assert 2 < moved["weak"] < 0.7 * moved["simclr"]

    result = recoloured("simclr")
    assert not torch.equal(result.image, original.image)
    assert torch.equal(result.boxes_xyxy, original.boxes_xyxy)
    assert torch.equal(result.labels, original.labels)
    assert result.masks is not None
    assert original.masks is not None
    assert torch.equal(result.masks, original.masks)
    assert torch.equal(result.image, recoloured("simclr").image)
