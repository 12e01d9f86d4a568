import pytest
import torch
from torchvision.transforms.v2 import functional

from rncdl.data.colours import blur
from rncdl.data.views import View, draw_view

IMAGE = torch.randint(0, 256, (3, 40, 60), generator=torch.Generator().manual_seed(0)).byte()


def draw(seed: int, *, strength="weak", short_sides=(40,), flip=0.5, image=IMAGE) -> View:
    return draw_view(
        image,
        torch.Generator().manual_seed(seed),
        strength=strength,
        short_sides_px=short_sides,
        long_side_px=200,
        flip_chance=flip,
    )


def test_no_distortion_leaves_every_pixel_alone():
    view = draw(3, strength="none", flip=0)
    assert torch.equal(view.image, IMAGE)
    assert not view.distorted
    assert draw(3, flip=0).distorted


def test_no_boxes_stay_no_boxes():
    assert draw(0).carry_boxes(torch.zeros(0, 4)).shape == (0, 4)


@pytest.mark.parametrize("strength", ["weak", "simclr"])
def test_the_seed_decides_everything(strength):
    first, second = draw(7, strength=strength), draw(7, strength=strength)
    assert torch.equal(first.image, second.image)
    assert first.flipped == second.flipped
    assert len({draw(seed, strength=strength).image.sum().item() for seed in range(8)}) > 4


@pytest.mark.parametrize("short_side", [20, 40, 80])
@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_boxes_stay_on_what_they_covered(short_side, flip):
    """A bright square's box, carried along, still encloses the bright pixels of the view."""
    image = torch.zeros(3, 40, 60, dtype=torch.uint8)
    image[:, 8:24, 4:28] = 255
    view = draw(1, image=image, short_sides=(short_side,), flip=flip)
    assert view.flipped == bool(flip)
    box = view.carry_boxes(torch.tensor([[4.0, 8.0, 28.0, 24.0]]))[0]
    bright = (view.image.float().mean(0) > 0.5 * view.image.max()).nonzero()
    top_left, bottom_right = bright.min(0).values, bright.max(0).values + 1
    found = torch.stack([top_left[1], top_left[0], bottom_right[1], bottom_right[0]])
    assert (found - box).abs().max() <= 1


def test_the_long_side_has_its_limit():
    view = draw_view(
        IMAGE,
        torch.Generator(),
        strength="weak",
        short_sides_px=[80],
        long_side_px=90,
        flip_chance=0.0,
    )
    assert view.image.shape == (3, 60, 90)
    assert (view.scale_x, view.scale_y) == (1.5, 1.5)


@pytest.mark.parametrize("sigma", [0.6, 1.5])
def test_blur_equals_torchvisions(sigma):
    """Away from the border, where the two fill in differently."""
    size = 2 * -(-3 * sigma // 1) + 1
    expected = functional.gaussian_blur_image(IMAGE, [int(size)] * 2, [sigma, sigma])
    inner = (slice(None), slice(5, -5), slice(5, -5))
    difference = blur(IMAGE, sigma)[inner].int() - expected[inner].int()
    assert difference.abs().max() <= 1


def test_no_blur_leaves_the_image_alone():
    assert torch.equal(blur(IMAGE, 0.0), IMAGE)
