import numpy as np
import torch

from rncdl.discovery.cut_outs import GREY, cut_out, extent, extents, show_around


def test_an_empty_mask_shows_nothing():
    image = np.full((9, 9, 3), 200, np.uint8)
    picture = cut_out(image, np.zeros((9, 9), bool), side_px=8, padding=0.1)
    assert picture.shape == (8, 8, 3)
    assert (picture == GREY).all()
    assert extent(np.zeros((9, 9), bool)) is None
    assert extents(np.zeros((0, 9, 9), bool)).shape == (0, 4)


def test_the_extent_is_the_smallest_box_around_the_mask():
    mask = np.zeros((2, 9, 9), bool)
    mask[0, 2:5, 3:7] = True
    assert extent(mask[0]) == (3, 2, 7, 5)
    torch.testing.assert_close(extents(mask), torch.tensor([[3.0, 2, 7, 5], [0, 0, 0, 0]]))


def test_the_object_fills_the_square_and_all_else_is_painted_over():
    image = np.full((40, 60, 3), 10, np.uint8)
    image[10:20, 20:40] = 250
    mask = np.zeros((40, 60), bool)
    mask[10:20, 20:40] = True
    picture = cut_out(image, mask, side_px=20, padding=0)
    assert (picture[5:15] == 250).all()  # twice as wide as high: grey above and below
    assert (picture[:5] == GREY).all()
    assert (picture[15:] == GREY).all()


def test_what_the_mask_leaves_out_inside_the_box_is_grey_too():
    image = np.full((10, 10, 3), 250, np.uint8)
    mask = np.ones((10, 10), bool)
    mask[:5, :5] = False
    picture = cut_out(image, mask, side_px=10, padding=0)
    assert (picture[:5, :5] == GREY).all()
    assert (picture[5:] == 250).all()


def test_padding_is_a_share_of_the_longer_side():
    image = np.full((30, 30, 3), 250, np.uint8)
    mask = np.zeros((30, 30), bool)
    mask[5:15, 5:15] = True
    picture = cut_out(image, mask, side_px=30, padding=0.25)
    shown = (picture == 250).all(2)
    assert extent(shown) == (5, 5, 25, 25)


def test_large_objects_are_averaged_down():
    """A chessboard of single pixels becomes the grey between its colours, without a pattern."""
    image = np.zeros((64, 64, 3), np.uint8)
    image[::2, ::2] = image[1::2, 1::2] = 200
    picture = cut_out(image, np.ones((64, 64), bool), side_px=8, padding=0)
    assert np.abs(picture.astype(int) - 100).max() <= 1


def test_a_box_is_shown_with_what_lies_around_it():
    image = np.full((40, 60, 3), 10, np.uint8)
    image[10:20, 20:40] = 250
    picture = show_around(image, np.array([20, 10, 40, 20]), side_px=40, padding=0.5)
    assert (picture[15:25, 10:30] == 250).all()  # the box, as it is
    is_box = np.zeros((40, 40), bool)
    is_box[15:25, 10:30] = True
    is_image = np.zeros((40, 40), bool)
    is_image[5:] = True  # the square begins five rows above the image
    assert (picture[is_image & ~is_box] == 10).all()
    assert (picture[~is_image] == GREY).all()


def test_a_box_is_shown_in_a_square_of_any_size():
    image = np.arange(30 * 20 * 3).reshape(30, 20, 3).astype(np.uint8)
    for box in ([0, 0, 20, 30], [5.3, 2.1, 5.4, 2.2], [-9, -9, 60, 60], [18, 28, 20, 30]):
        for side_px in (1, 8, 90):
            picture = show_around(image, np.array(box), side_px=side_px, padding=0.1)
            assert picture.shape == (side_px, side_px, 3)
