import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rncdl.data.records import ImageRecord
from rncdl.gallery.thumbnails import (
    cut_thumbnail,
    cut_thumbnails,
    encode_within,
    join_strip,
    plan_thumbnails,
)


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 255, (height, width, 3), dtype=np.uint8))


def decode(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))


def test_a_region_fills_the_middle_of_its_thumbnail():
    image = Image.new("RGB", (200, 100), "white")
    image.paste((0, 0, 200), (60, 40, 80, 60))
    pixels = np.asarray(cut_thumbnail(image, (60, 40, 80, 60), 50)).astype(int)
    assert pixels.shape == (50, 50, 3)
    assert (np.abs(pixels[10:40, 10:40] - (0, 0, 200)) < 20).all()
    assert (pixels[:3] > 200).all()


@pytest.mark.parametrize(
    "box", [(0, 0, 5, 5), (195, 95, 200, 100), (0, 0, 200, 100), (50, 0, 52, 100), (9, 9, 9.2, 9.1)]
)
def test_any_box_gives_a_square(box):
    assert cut_thumbnail(noise(200, 100), box, 40).size == (40, 40)


def test_a_region_at_the_border_is_filled_up_from_inside_the_image():
    pixels = np.asarray(cut_thumbnail(Image.new("RGB", (200, 100), "white"), (0, 0, 9, 9), 40))
    assert (pixels == 255).all()


def test_each_region_is_cut_from_its_image_and_unreadable_images_give_none(tmp_path: Path):
    colours = {"red.png": (200, 0, 0), "blue.png": (0, 0, 200)}
    for name, colour in colours.items():
        Image.new("RGB", (30, 20), colour).save(tmp_path / name)
    images = [
        ImageRecord(index, tmp_path / name, 20, 30)
        for index, name in enumerate(["red.png", "lost.png", "blue.png"])
    ]
    boxes = np.array([(0, 0, 5, 5)] * 4, dtype=np.float32)
    found = cut_thumbnails(images, np.array([2, 0, 1, 2]), boxes, side_px=8)
    assert [picture and picture.getpixel((4, 4)) for picture in found] == [
        (0, 0, 200),
        (200, 0, 0),
        None,
        (0, 0, 200),
    ]


def test_a_strip_holds_its_pictures_in_a_row():
    pictures = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    strip = join_strip(pictures)
    assert strip.size == (24, 8)
    assert [strip.getpixel((x, 4)) for x in (4, 12, 20)] == [(255, 0, 0), (0, 255, 0), (0, 0, 255)]


def test_no_pictures_need_no_bytes():
    assert encode_within([], max_bytes=0) == []


def test_pictures_are_as_good_as_the_bytes_allow():
    pictures = [noise(80, 40, seed) for seed in range(5)]
    sizes = []
    for max_bytes in (100_000, 15_000, 2_000):
        encoded = encode_within(pictures, max_bytes=max_bytes)
        sizes.append(sum(map(len, encoded)))
        assert sizes[-1] <= max_bytes
        assert [decode(uri).format for uri in encoded] == ["WEBP"] * 5
    assert sizes[0] > sizes[1] > sizes[2]
    assert decode(encode_within(pictures, max_bytes=100_000)[0]).size == (80, 40)


def test_the_bytes_suffice_even_where_some_pictures_are_much_heavier_than_others():
    plain = Image.new("RGB", (80, 40))
    pictures = [noise(80, 40, index) if index % 2 else plain for index in range(128)]
    encoded = encode_within(pictures, max_bytes=60_000)
    assert sum(map(len, encoded)) <= 60_000
    assert "" not in encoded


def test_where_there_is_no_room_for_all_the_last_are_left_out():
    encoded = encode_within([noise(80, 40, seed) for seed in range(50)], max_bytes=1_500)
    assert sum(map(len, encoded)) <= 1_500
    assert encoded[0] != ""
    assert encoded[-1] == ""
    assert len(encoded) == 50


def test_more_clusters_get_fewer_and_smaller_pictures():
    plans = [plan_thumbnails(number) for number in (10, 300, 1000, 3000)]
    pixels = [plan.side_px**2 * sum(plan.per_kind.values()) for plan in plans]
    assert pixels == sorted(pixels, reverse=True)
    assert all(
        set(plan.per_kind) == {"confident", "typical", "random", "doubtful"} for plan in plans
    )
