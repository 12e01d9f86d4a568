import numpy as np
import pytest
from PIL import Image

from rncdl.gallery.drawings import (
    DRAWING_SIDE_PX,
    Marks,
    choose_shown,
    class_colour,
    draw_marks,
)

GREY = (120, 120, 120)
RED = (240, 30, 30)


def plain(width: int = 600, height: int = 500) -> Image.Image:
    return Image.new("RGB", (width, height), GREY)


def marks(*boxes: tuple[float, ...], **columns) -> Marks:
    return Marks(
        np.array(boxes, dtype=float).reshape(-1, 4),
        ["x"] * len(boxes),
        [RED] * len(boxes),
        **columns,
    )


def test_nothing_to_draw_leaves_the_image_as_it_is():
    assert draw_marks(plain(), marks()).tobytes() == plain().tobytes()


def test_a_small_image_is_enlarged_and_a_large_one_is_not():
    assert max(draw_marks(plain(64, 48), marks()).size) == pytest.approx(DRAWING_SIDE_PX, rel=0.1)
    assert draw_marks(plain(1500, 900), marks()).size == (1500, 900)


def test_a_box_is_drawn_around_the_region_and_not_over_it():
    drawn = np.asarray(draw_marks(plain(), marks((100, 200, 300, 400))))
    assert (drawn[200, 100:301] == RED).all()
    assert (drawn[400, 100:301] == RED).all()
    assert (drawn[200:401, 100] == RED).all()
    assert (drawn[200:401, 300] == RED).all()
    assert (drawn[210:390, 110:290] == GREY).all()
    below, right = drawn[402:], drawn[:, 302:]
    assert (below == GREY).all()
    assert (right == GREY).all()


def test_the_box_grows_with_an_enlarged_image():
    drawn = np.asarray(draw_marks(plain(60, 50), marks((10, 20, 30, 40))))
    scale = drawn.shape[1] // 60
    assert (drawn[40 * scale, 10 * scale : 30 * scale] == RED).all()
    assert (drawn[22 * scale : 38 * scale, 12 * scale : 28 * scale] == GREY).all()


def test_the_name_stands_above_the_box_or_inside_it_at_the_upper_border():
    above = np.asarray(draw_marks(plain(), marks((100, 200, 300, 400))))
    assert (above[:200] == RED).all(-1).any()
    inside = np.asarray(draw_marks(plain(), marks((100, 0, 300, 400))))
    assert (inside[5:15, 105:112] == RED).all(-1).any()


def test_names_of_neighbours_do_not_cover_each_other():
    one = marks((100, 200, 300, 400))
    both = Marks(
        np.array([(100.0, 200, 300, 400), (102, 201, 310, 420)]),
        ["first", "second"],
        [RED, (30, 30, 240)],
    )
    drawn = np.asarray(draw_marks(plain(), both))
    blue = (drawn == (30, 30, 240)).all(-1)
    assert (np.asarray(draw_marks(plain(), one))[:200] == RED).all(-1).any()
    assert (drawn[:200] == RED).all(-1).any()
    assert not blue[:195].any()
    # A plate has rows that are almost wholly of its colour, which its box has not.
    assert (blue[205:415, 110:170].mean(1) > 0.5).any()


def test_a_mask_tints_its_pixels_alone():
    mask = np.zeros((1, 500, 600), dtype=bool)
    mask[0, 250:260, 150:160] = True
    drawn = np.asarray(draw_marks(plain(), marks((100, 200, 300, 400), masks=mask)))
    tinted = (drawn != GREY).any(-1)[210:390, 110:290]
    assert np.array_equal(tinted, mask[0, 210:390, 110:290])
    assert drawn[255, 155, 0] > GREY[0] > drawn[255, 155, 1]


def test_boxes_beyond_the_image_are_cut_off_at_its_border():
    drawn = np.asarray(draw_marks(plain(), marks((-50, -50, 900, 900), (700, 700, 800, 800))))
    assert (drawn[499, 100:500] == RED).all()


def test_novel_classes_are_red_and_known_ones_are_not():
    names = [f"class {index}" for index in range(200)]
    for red, green, blue in (class_colour(name, novel=True) for name in names):
        assert red > 1.7 * max(green, blue)
    for red, green, blue in (class_colour(name, novel=False) for name in names):
        assert red < max(green, blue)
    assert len({class_colour(name, novel=False) for name in names}) > 100


def test_nothing_is_shown_of_nothing():
    assert choose_shown(np.zeros((0, 4)), np.zeros(0)).tolist() == []


def test_the_best_of_a_heap_is_shown_whatever_its_class():
    boxes = np.array(
        [
            (0, 0, 10, 10),
            (1, 0, 11, 10),  # nearly the first
            (6, 0, 16, 10),  # overlaps the first a little
            (0, 0, 5, 6),  # a large part of the first
            (2, 2, 5, 5),  # a small thing before the first
            (80, 80, 90, 90),
        ],
        dtype=float,
    )
    assert choose_shown(boxes, np.array([0.8, 0.7, 0.5, 0.6, 0.4, 0.9])).tolist() == [5, 0, 2, 4]
    assert choose_shown(boxes, np.array([0.5, 0.7, 0.05, 0.05, 0.05, 0.05])).tolist() == [1]
    assert choose_shown(boxes, np.full(6, 0.5), min_score=0.6).tolist() == []
