import io

import numpy as np
import pytest
import torch
from PIL import Image

from rncdl.data.image_headers import read_sizes
from rncdl.data.images import read_image
from rncdl.errors import UserError
from tests.data.made_up import gradient, write_image

SIZE = (48, 64)


def saved(path, image, **options):
    image.save(path, **options)
    return path


def pixels(path, expected_size=SIZE):
    tensor = read_image(path, expected_size)
    assert tensor.dtype == torch.uint8
    assert tensor.shape[0] == 3
    return tensor.permute(1, 2, 0).numpy().astype(int)


def exif(orientation):
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


@pytest.fixture
def rgb():
    return Image.fromarray(gradient(*SIZE))


@pytest.mark.parametrize("name", ["a.png", "a.bmp", "a.tif", "lossless.webp"])
def test_lossless_formats_come_back_exactly(tmp_path, rgb, name):
    options = {"lossless": True} if name.endswith("webp") else {}
    np.testing.assert_array_equal(pixels(saved(tmp_path / name, rgb, **options)), gradient(*SIZE))


@pytest.mark.parametrize("name", ["a.jpg", "a.jpeg", "a.webp"])
def test_lossy_formats_come_close(tmp_path, rgb, name):
    error = np.abs(pixels(saved(tmp_path / name, rgb, quality=95)) - gradient(*SIZE))
    assert error.mean() < 3


def test_the_suffix_does_not_matter(tmp_path, rgb):
    buffer = io.BytesIO()
    rgb.save(buffer, "PNG")
    path = tmp_path / "really_a_png.jpg"
    path.write_bytes(buffer.getvalue())
    np.testing.assert_array_equal(pixels(path), gradient(*SIZE))


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.tif"])
def test_grey_becomes_three_equal_channels(tmp_path, rgb, name):
    grey = rgb.convert("L")
    found = pixels(saved(tmp_path / name, grey))
    assert (found == found[..., :1]).all()
    assert np.abs(found[..., 0] - np.asarray(grey).astype(int)).mean() < 2


@pytest.mark.parametrize("mode", ["P", "1"])
def test_palette_and_bilevel(tmp_path, rgb, mode):
    image = rgb.convert(mode)
    expected = np.asarray(image.convert("RGB"))
    np.testing.assert_array_equal(pixels(saved(tmp_path / "a.png", image)), expected)


@pytest.mark.parametrize("name", ["a.png", "a.tif"])
def test_16_bits_are_scaled_to_8(tmp_path, name):
    grey = gradient(*SIZE)[..., 0].astype(np.uint16)
    found = pixels(saved(tmp_path / name, Image.fromarray(grey * 257)))
    np.testing.assert_array_equal(found, np.repeat(grey[..., None], 3, axis=2))


def test_cmyk_jpeg(tmp_path, rgb):
    found = pixels(saved(tmp_path / "a.jpg", rgb.convert("CMYK"), quality=95))
    assert np.abs(found - gradient(*SIZE)).mean() < 4


@pytest.mark.parametrize("name", ["a.png", "a.webp", "a.tif"])
def test_transparent_parts_are_white(tmp_path, rgb, name):
    alpha = np.full(SIZE, 255, np.uint8)
    alpha[:, :20] = 0
    alpha[:, 20:40] = 128
    rgb.putalpha(Image.fromarray(alpha))
    options = {"lossless": True} if name.endswith("webp") else {}
    found = pixels(saved(tmp_path / name, rgb, **options))
    share = alpha[..., None] / 255
    assert np.abs(found - (gradient(*SIZE) * share + 255 * (1 - share))).max() <= 1


def test_a_transparent_palette_colour_is_white(tmp_path, rgb):
    image = rgb.quantize(16)
    first = np.asarray(image) == 0
    found = pixels(saved(tmp_path / "a.png", image, transparency=0))
    assert (found[first] == 255).all()
    np.testing.assert_array_equal(found[~first], np.asarray(image.convert("RGB"))[~first])


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp"])
def test_exif_rotation_is_undone(tmp_path, rgb, name):
    path = saved(tmp_path / name, rgb, exif=exif(6))
    upright = np.rot90(gradient(*SIZE), -1).astype(int)
    assert np.abs(pixels(path, (64, 48)) - upright).mean() < 6
    assert np.abs(pixels(path, None) - upright).mean() < 6
    assert read_sizes(path) == ((64, 48), (48, 64))


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp"])
def test_annotations_made_before_the_rotation_keep_it_undone(tmp_path, rgb, name):
    path = saved(tmp_path / name, rgb, exif=exif(6))
    assert np.abs(pixels(path, (48, 64)) - gradient(*SIZE)).mean() < 6


def test_exif_half_turn_keeps_the_size_and_is_undone(tmp_path, rgb):
    path = saved(tmp_path / "a.png", rgb, exif=exif(3))
    np.testing.assert_array_equal(pixels(path), gradient(*SIZE)[::-1, ::-1])
    assert read_sizes(path) == (SIZE, SIZE)


def test_broken_exif_data_do_not_matter(tmp_path, rgb):
    for name in ("a.jpg", "a.png", "a.webp"):
        path = saved(tmp_path / name, rgb, exif=b"Exif\x00\x00rubbish")
        assert np.abs(pixels(path) - gradient(*SIZE)).mean() < 6
        assert read_sizes(path) == (SIZE, SIZE)


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.bmp"])
def test_headers_are_read_without_the_pixels(tmp_path, rgb, name):
    path = saved(tmp_path / name, rgb)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 9 // 10])
    assert read_sizes(path) == (SIZE, SIZE)


def test_an_animation_gives_its_first_frame(tmp_path, rgb):
    black = Image.new("RGB", rgb.size)
    path = tmp_path / "a.webp"
    rgb.save(path, save_all=True, append_images=[black], lossless=True)
    np.testing.assert_array_equal(pixels(path), gradient(*SIZE))


def test_missing_file(tmp_path):
    for read in (read_image, read_sizes):
        with pytest.raises(UserError, match=r"nowhere\.png: cannot read the image \(No such file"):
            read(tmp_path / "nowhere.png")


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.bmp", "a.tif"])
def test_truncated_file(tmp_path, rgb, name):
    path = saved(tmp_path / name, rgb)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    with pytest.raises(UserError, match=f"{name}: broken or unsupported image") as caught:
        read_image(path)
    assert ".cpp" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"not an image", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"])
def test_not_an_image(tmp_path, data):
    path = tmp_path / "a.png"
    path.write_bytes(data)
    for read in (read_image, read_sizes):
        with pytest.raises(UserError, match=r"a\.png: broken or unsupported image"):
            read(path)


def test_float_pixels_are_refused(tmp_path):
    path = saved(tmp_path / "a.tif", Image.fromarray(np.ones(SIZE, np.float32)))
    with pytest.raises(UserError, match=r"a\.tif: .*8 or 16"):
        read_image(path)


def test_a_size_that_contradicts_the_annotations(tmp_path):
    path = write_image(tmp_path / "a.png", *SIZE)
    with pytest.raises(UserError, match=r"64 × 48 pixels .*annotation file says 100 × 50"):
        read_image(path, (50, 100))
