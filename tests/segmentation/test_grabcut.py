import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rncdl.segmentation.grabcut import GrabCut

SIDE_PX = 96


def scene(*, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A grainy picture of two discs on plain ground, their boxes and their masks."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:SIDE_PX, :SIDE_PX]
    image = np.full((SIDE_PX, SIDE_PX, 3), (120, 140, 110), dtype=np.float64)
    masks, boxes = [], []
    for x, y, radius, colour in ((30, 34, 16, (220, 60, 40)), (66, 60, 20, (40, 60, 200))):
        mask = (columns + 0.5 - x) ** 2 + (rows + 0.5 - y) ** 2 <= radius**2
        image[mask] = colour
        masks.append(mask)
        boxes.append([x - radius, y - radius, x + radius, y + radius])
    noisy = np.clip(image + rng.normal(0, 6, image.shape), 0, 255).astype(np.uint8)
    return noisy, np.array(boxes, dtype=np.float64), np.stack(masks)


def iou(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a & b).sum((1, 2)) / (a | b).sum((1, 2))


def box_mask(box_xyxy, height: int = SIDE_PX, width: int = SIDE_PX) -> np.ndarray:
    """The pixels that a box touches."""
    rows, columns = np.mgrid[:height, :width]
    x0, y0, x1, y1 = box_xyxy
    return (columns + 1 > x0) & (columns < x1) & (rows + 1 > y0) & (rows < y1)


def test_no_box_gives_no_mask():
    image, _, _ = scene()
    assert GrabCut().segment(image, np.zeros((0, 4))).shape == (0, SIDE_PX, SIDE_PX)


def test_discs_are_cut_out_of_their_boxes():
    image, boxes, truth = scene()
    found = GrabCut().segment(image, boxes)
    assert found.dtype == bool
    # The boxes themselves overlap the discs by pi / 4 = 0.79.
    assert (iou(found, truth) > 0.93).all()


def test_what_is_found_does_not_depend_on_the_class_of_colour():
    image, boxes, _ = scene()
    swapped = GrabCut().segment(np.ascontiguousarray(image[..., ::-1]), boxes)
    assert (iou(swapped, GrabCut().segment(image, boxes)) > 0.97).all()


def test_a_large_image_is_cut_out_as_a_small_one():
    image, boxes, truth = scene()
    large = cv2.resize(image, None, fx=6, fy=6, interpolation=cv2.INTER_NEAREST)
    found = GrabCut().segment(large, boxes * 6)
    assert (iou(found[:, 3::6, 3::6], truth) > 0.93).all()


@pytest.mark.parametrize("opencv_threads", [1, 4])
def test_threads_order_and_company_change_nothing(opencv_threads):
    image, boxes, _ = scene()
    many = np.concatenate([boxes + shift for shift in (0.0, -3.0, 2.5, 4.0)])
    alone = np.concatenate([GrabCut(1).segment(image, box[None]) for box in many])
    before = cv2.getNumThreads()
    cv2.setNumThreads(opencv_threads)
    try:
        together = GrabCut(4).segment(image, many)
        reversed_ = GrabCut(3).segment(image, many[::-1])[::-1]
    finally:
        cv2.setNumThreads(before)
    assert np.array_equal(together, alone)
    assert np.array_equal(reversed_, alone)


@pytest.mark.parametrize(
    "box",
    [(10, 10, 11, 11), (10.2, 10.2, 10.4, 10.4), (5, 20, 6, 90), (0, 0, SIDE_PX, SIDE_PX)],
    ids=["one pixel", "inside a pixel", "a line", "all of the image"],
)
def test_a_box_that_shows_too_little_keeps_something(box):
    image, _, _ = scene()
    [found] = GrabCut().segment(image, np.array([box], dtype=np.float64))
    assert found.any()
    assert not (found & ~box_mask(box)).any()


def test_the_whole_image_has_no_background_to_learn_from():
    image, _, _ = scene()
    assert GrabCut().segment(image, np.array([[0.0, 0.0, SIDE_PX, SIDE_PX]])).all()


@pytest.mark.parametrize("box", [(-30, 5, -2, 20), (200, 200, 260, 260), (40, 40, 40, 60)])
def test_a_box_outside_the_image_or_without_area_has_no_pixels(box):
    image, _, _ = scene()
    assert not GrabCut().segment(image, np.array([box], dtype=np.float64)).any()


def test_an_image_of_one_colour_is_no_obstacle():
    image = np.full((40, 50, 3), 77, dtype=np.uint8)
    [found] = GrabCut().segment(image, np.array([[10.0, 10.0, 30.0, 30.0]]))
    assert found.any()
    assert not (found & ~box_mask((10, 10, 30, 30), 40, 50)).any()


@settings(deadline=None, max_examples=40)
@given(
    corner=st.tuples(st.floats(-40, 110), st.floats(-40, 110)),
    sides=st.tuples(st.floats(0, 140), st.floats(0, 140)),
    size=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    seed=st.integers(0, 2**31),
)
def test_every_mask_lies_in_its_box_and_every_visible_box_has_one(corner, sides, size, seed):
    image = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    box = np.array([*corner, corner[0] + sides[0], corner[1] + sides[1]])
    [found] = GrabCut().segment(image, box[None])
    touched = box_mask(box, *size)
    assert not (found & ~touched).any()
    assert found.any() == touched.any()


def guesses(masks: np.ndarray, boxes: np.ndarray, *, cells: int = 28) -> np.ndarray:
    """The share of each cell of a box that the mask covers, from a mask drawn large."""
    crops = []
    for mask, (x0, y0, x1, y1) in zip(masks, boxes.astype(int), strict=True):
        crop = mask[y0:y1, x0:x1].astype(np.float32)
        crops.append(cv2.resize(crop, (cells, cells), interpolation=cv2.INTER_LINEAR))
    return np.stack(crops)


def test_nothing_to_refine_gives_no_mask():
    image, _, _ = scene()
    found = GrabCut().refine(image, np.zeros((0, 4)), np.zeros((0, 28, 28)))
    assert found.shape == (0, SIDE_PX, SIDE_PX)


def test_a_rough_guess_is_refined_to_the_discs():
    image, boxes, truth = scene()
    small = np.stack([cv2.erode(mask.astype(np.uint8), np.ones((7, 7))) > 0 for mask in truth])
    unsure = 0.2 + 0.6 * guesses(small, boxes)
    assert (iou(small, truth) < 0.75).all()
    assert (iou(GrabCut().refine(image, boxes, unsure), truth) > 0.93).all()


def test_what_the_guess_is_sure_of_stays():
    """Even where the colours say otherwise: half of a disc, or the ground beside it."""
    image, boxes, _ = scene()
    left = np.zeros((2, 28, 28))
    left[:, :, :14] = 1
    found = GrabCut().refine(image, boxes, left)
    for mask, (x0, y0, x1, y1) in zip(found, boxes.astype(int), strict=True):
        assert mask[y0:y1, x0 : (x0 + x1) // 2 - 1].all()
        assert not mask[y0:y1, (x0 + x1) // 2 + 1 :].any()


def test_of_two_discs_in_a_box_the_guessed_one_is_cut_out():
    image, boxes, truth = scene()
    both = np.array([[*boxes[:, :2].min(0), *boxes[:, 2:].max(0)]])
    for mask in truth:
        rough = 0.05 + 0.85 * guesses(mask[None], both)
        assert iou(GrabCut().refine(image, both, rough), mask[None])[0] > 0.93


@pytest.mark.parametrize("guess", [np.zeros((5, 5)), np.ones((5, 5)), np.full((5, 5), 0.5)])
@pytest.mark.parametrize("box", [(9, 9, 60, 50), (-30, 5, -2, 20), (3, 3, 4, 4), (40, 40, 40, 60)])
def test_a_refined_mask_lies_in_its_box_whatever_the_guess(box, guess):
    image, _, _ = scene()
    [found] = GrabCut().refine(image, np.array([box], dtype=np.float64), guess[None])
    assert not (found & ~box_mask(box)).any()


def test_a_few_pixels_of_a_huge_object_are_no_obstacle():
    image = np.random.default_rng(0).integers(0, 256, (1500, 1500, 3), dtype=np.uint8)
    speck = np.zeros((1, 300, 300))
    speck[0, 150, 150] = 1
    [found] = GrabCut().refine(image, np.array([[100.0, 100.0, 1400.0, 1400.0]]), speck)
    assert found.sum() < 100
