import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rncdl.data.masks import decode_masks, encode_rle, rle_to_json, to_rle
from rncdl.errors import UserError

MASKS = st.tuples(st.integers(1, 40), st.integers(1, 40)).flatmap(lambda size: arrays(bool, size))


def decode_mask(raw_json: bytes, height: int, width: int) -> np.ndarray:
    (mask,) = decode_masks([raw_json], height, width)
    return mask


def run_lengths(mask: np.ndarray) -> list[int]:
    """Uncompressed run lengths by their definition: down the columns, zeros first."""
    runs, current = [0], False
    for pixel in mask.T.ravel():
        if pixel != current:
            runs.append(0)
            current = bool(pixel)
        runs[-1] += 1
    return runs


def test_no_masks():
    assert decode_masks([], 5, 7).shape == (0, 5, 7)


@given(MASKS)
def test_run_lengths_of_both_kinds_give_the_mask_back(mask):
    size = list(mask.shape)
    compressed = json.dumps(rle_to_json(encode_rle(mask))).encode()
    uncompressed = json.dumps({"size": size, "counts": run_lengths(mask)}).encode()
    both = decode_masks([compressed, uncompressed], *size)
    np.testing.assert_array_equal(both, np.stack([mask, mask]))


def test_a_large_mask_with_long_runs_survives_compression():
    mask = np.zeros((1200, 900), dtype=bool)
    mask[100:1100, 50:800] = True
    mask[500:510, 60:70] = False
    raw = json.dumps(rle_to_json(encode_rle(mask))).encode()
    np.testing.assert_array_equal(decode_mask(raw, 1200, 900), mask)


def test_a_polygon_covers_its_inside():
    mask = decode_mask(b"[[10, 5, 30, 5, 30, 25, 10, 25]]", 48, 64)
    expected = np.zeros((48, 64), dtype=bool)
    expected[5:25, 10:30] = True
    np.testing.assert_array_equal(mask, expected)
    assert mask.dtype == bool


def inside_triangle(corners: list[float], height: int, width: int) -> np.ndarray:
    """(height, width) bool: pixel centres on the same side of all three edges."""
    y, x = np.mgrid[:height, :width] + 0.5
    points = np.reshape(corners, (3, 2))
    sides = [
        (bx - ax) * (y - ay) - (by - ay) * (x - ax)
        for (ax, ay), (bx, by) in zip(points, np.roll(points, -1, axis=0), strict=True)
    ]
    return np.all([side > 0 for side in sides], axis=0) | np.all([s < 0 for s in sides], axis=0)


def test_polygons_are_united_pixel_by_pixel_centre():
    polygons: list[list[float]] = [[5, 5, 40, 12, 20, 40], [30, 30, 60, 30, 45, 46]]
    expected = inside_triangle(polygons[0], 48, 64) | inside_triangle(polygons[1], 48, 64)
    mask = decode_mask(json.dumps(polygons).encode(), 48, 64)
    assert (mask & expected).sum() / (mask | expected).sum() > 0.97


@pytest.mark.parametrize("raw", [b"[]", b"[[]]", b"[[3, 4, 10, 12]]"])
def test_polygons_without_an_inside_cover_nothing(raw):
    assert not decode_mask(raw, 20, 20).any()


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b'"text"', "neither polygons nor run lengths"),
        (b"[[1, 2, 3, null, 5, 6]]", "neither polygons nor run lengths"),
        (b"[[1, 2, 3, 4, 5, 6, 7]]", "odd number"),
        (b"[[1, 2, 3, 4, 1e30, 6]]", "1e[+]30"),
        (b'{"size": [4, 5], "counts": [20]}', "size"),
        (b'{"size": [5, 4], "counts": [3, 2]}', "cover 5 pixels, its image has 20"),
        (b'{"size": [5, 4], "counts": [3, 100]}', "cover 103"),
        (b'{"size": [5, 4], "counts": [23, -3]}', "cover 20"),
        (b'{"size": [5, 4], "counts": ""}', "broken"),
        (b'{"size": [5, 4], "counts": "~"}', "broken"),
        (b'{"size": [5, 4], "counts": "ooooooooooooooo0"}', "broken"),
        (b'{"size": [5, 4], "counts": "abc"}', "segmentation"),
        ('{"size": [5, 4], "counts": "é"}'.encode(), "segmentation"),
    ],
)
def test_broken_masks_are_refused_in_words(raw, words):
    with pytest.raises(UserError, match=words):
        to_rle(raw, 5, 4)
