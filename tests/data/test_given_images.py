from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rncdl.data.given_images import GivenImage, pixels_of
from rncdl.errors import UserError

RGB = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
PIXELS = torch.from_numpy(RGB).permute(2, 0, 1)


def kinds_of_input(folder: Path) -> dict[str, GivenImage]:
    file = folder / "image.png"
    Image.fromarray(RGB).save(file)
    mirrored = np.ascontiguousarray(RGB[:, ::-1])
    return {
        "path": file,
        "str": str(file),
        "pillow": Image.fromarray(RGB),
        "array": RGB,
        "array of negative strides": mirrored[:, ::-1],
        "float32 array": RGB.astype(np.float32) / 255,
        "float64 array": RGB / 255,
        "tensor": PIXELS,
        "float tensor": PIXELS / 255,
        "double tensor": PIXELS.double() / 255,
        "tensor with a gradient": (PIXELS / 255).requires_grad_(),
    }


def test_every_kind_of_input_is_the_same_image(tmp_path: Path):
    for kind, image in kinds_of_input(tmp_path).items():
        pixels = pixels_of(image)
        assert pixels.dtype == torch.uint8, kind
        assert torch.equal(pixels, PIXELS), kind


def test_grey_becomes_rgb():
    grey = RGB[:, :, 0]
    expected = PIXELS[:1].expand(3, -1, -1)
    for image in (grey, grey[:, :, None], PIXELS[:1], Image.fromarray(grey), grey / 255):
        assert torch.equal(pixels_of(image), expected)


def test_a_transparent_pillow_image_is_laid_over_white():
    clear = np.dstack([RGB, np.zeros((5, 7), np.uint8)])
    assert (pixels_of(Image.fromarray(clear)) == 255).all()


def test_floating_pixels_take_the_nearest_value():
    assert pixels_of(np.array([[0.0, 0.4999, 0.999]]))[0, 0].tolist() == [0, 127, 255]


def test_the_callers_pixels_are_left_alone():
    mine = RGB.copy()
    pixels_of(mine).zero_()
    assert np.array_equal(mine, RGB)


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (np.zeros((0, 4, 3), np.uint8), r"array of shape \(0, 4, 3\)"),
        (np.zeros((3, 8, 9), np.uint8), r"shape \(3, 8, 9\).*\(height, width, 3\)"),
        (np.zeros((8, 9, 4), np.uint8), r"shape \(8, 9, 4\)"),
        (np.zeros((2, 8, 9, 3), np.uint8), r"shape \(2, 8, 9, 3\)"),
        (np.zeros((8, 9, 3), np.int64), "int64: give uint8"),
        (np.zeros((8, 9, 3), np.uint16), "uint16: give uint8"),
        (np.full((8, 9, 3), 255.0), "from 255 to 255: give values from 0 to 1"),
        (np.full((8, 9, 3), -0.5), "from -0.5"),
        (np.full((8, 9), np.nan), "nan"),
        (torch.zeros(8, 9, 3), r"tensor of shape \(8, 9, 3\).*\(3, height, width\)"),
        (torch.zeros(2, 3, 8, 9), r"list\(batch\)"),
        (torch.zeros(3, 0, 9), r"shape \(3, 0, 9\)"),
        (torch.zeros(3, 8, 9, dtype=torch.int32), "int32: give uint8"),
        ("missing.jpg", r"missing.jpg: cannot read the image \(No such file"),
        (3, "int is no image"),
        (None, "NoneType is no image"),
    ],
)
def test_what_is_no_image_is_told(image, words: str):
    with pytest.raises(UserError, match=words):
        pixels_of(image)
