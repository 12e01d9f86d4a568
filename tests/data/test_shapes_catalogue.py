import itertools

import numpy as np
import pytest
from PIL import Image, ImageDraw

from rncdl.data.shapes.catalogue import (
    MAX_CLASSES,
    choose_known_ranks,
    divide_objects,
    frequency_letter,
    list_classes,
    long_tail_shares,
)
from rncdl.data.shapes.outlines import Silhouette
from rncdl.data.shapes.silhouettes import SILHOUETTES
from rncdl.data.shapes.surfaces import PATTERNS, Ink, ink_to_rgb


def test_no_classes_for_zero():
    assert list_classes(0) == []


def test_every_class_of_the_largest_world_is_distinct():
    classes = list_classes(MAX_CLASSES)
    assert len({c.name for c in classes}) == MAX_CLASSES
    assert len({(c.silhouette, c.pattern) for c in classes}) == MAX_CLASSES


def test_small_worlds_never_repeat_a_silhouette_and_share_patterns_and_palettes():
    classes = list_classes(20)
    assert len({c.silhouette for c in classes}) == 20
    assert len({(c.pattern, c.palette_index) for c in classes}) == 20
    assert len({c.palette_index for c in classes}) <= 7


def test_a_larger_world_begins_with_the_smaller_one():
    assert list_classes(200)[:20] == list_classes(20)


def _fill(silhouette: Silhouette, side_px: int = 64) -> np.ndarray:
    points = np.concatenate([part.points for part in silhouette if part.adds])
    low, high = points.min(axis=0), points.max(axis=0)
    scale = (side_px - 4) / (high - low).max()
    picture = Image.new("L", (side_px, side_px))
    for part in silhouette:
        corners = (part.points - (low + high) / 2) * scale + side_px / 2
        ImageDraw.Draw(picture).polygon(corners.ravel().tolist(), fill=255 if part.adds else 0)
    return np.asarray(picture) > 0


def test_no_two_silhouettes_look_alike():
    filled = {name: _fill(silhouette) for name, silhouette in SILHOUETTES.items()}
    for (a, mask_a), (b, mask_b) in itertools.combinations(filled.items(), 2):
        assert (mask_a & mask_b).sum() / (mask_a | mask_b).sum() < 0.9, (a, b)


def test_silhouettes_fit_the_unit_frame():
    for name, silhouette in SILHOUETTES.items():
        points = np.concatenate([part.points for part in silhouette if part.adds])
        assert np.abs(points).max() < 1.3, name
        assert (points.max(axis=0) - points.min(axis=0)).max() > 1.5, name


def test_every_pattern_uses_both_inks_and_no_two_agree():
    y, x = np.mgrid[-3:3:128j, -3:3:128j]
    laid = {name: p(x, y, np.random.default_rng(0)) for name, p in PATTERNS.items()}
    for name, where in laid.items():
        assert where.dtype == bool
        assert 0.15 < where.mean() < 0.6, name
    for (a, where_a), (b, where_b) in itertools.combinations(laid.items(), 2):
        assert 0.15 < (where_a ^ where_b).mean() < 0.85, (a, b)


@pytest.mark.parametrize(
    ("ink", "rgb"),
    [
        (Ink(0.0, 0.0, 0.0), (0, 0, 0)),
        (Ink(1.0, 0.0, 0.0), (1, 1, 1)),
        # OKLCH of sRGB's primaries, from the CSS Color 4 specification's definition.
        (Ink(0.627955, 0.257683, 29.2339), (1, 0, 0)),
        (Ink(0.452014, 0.313214, 264.052), (0, 0, 1)),
    ],
)
def test_inks_are_oklch(ink, rgb):
    np.testing.assert_allclose(ink_to_rgb(ink), rgb, atol=2e-3)


def test_shares_fall_from_first_to_last_by_the_imbalance():
    shares = long_tail_shares(20, 20.0)
    assert shares.sum() == pytest.approx(1)
    assert shares[0] / shares[-1] == pytest.approx(20)
    assert (np.diff(shares) < 0).all()
    np.testing.assert_allclose(shares[1:] / shares[:-1], shares[1] / shares[0])
    np.testing.assert_allclose(long_tail_shares(5, 1.0), 0.2)


def test_dividing_nothing_gives_nothing():
    assert divide_objects(long_tail_shares(4, 10.0), 0).tolist() == [0, 0, 0, 0]


def test_too_few_objects_go_to_the_most_frequent():
    assert divide_objects(np.array([0.1, 0.6, 0.3]), 2).tolist() == [0, 1, 1]


@pytest.mark.parametrize("num_objects", [20, 21, 77, 1000, 5400])
def test_all_objects_are_divided_and_none_of_the_classes_is_empty(num_objects):
    shares = long_tail_shares(20, 50.0)
    counts = divide_objects(shares, num_objects)
    assert counts.sum() == num_objects
    assert counts.min() >= 1
    assert (np.diff(counts) <= 0).all()
    if num_objects >= 5400:
        np.testing.assert_allclose(counts, shares * num_objects, atol=5)


@pytest.mark.parametrize("seed", range(10))
def test_known_classes_are_mostly_but_not_only_frequent(seed):
    ranks = choose_known_ranks(20, 8, rng=np.random.default_rng(seed))
    assert len(set(ranks.tolist())) == 8
    assert (ranks < 10).sum() == 6


@pytest.mark.parametrize(
    ("num_classes", "num_known"), [(2, 1), (3, 2), (5, 4), (20, 19), (1000, 1)]
)
def test_known_ranks_exist_for_every_number(num_classes, num_known):
    ranks = choose_known_ranks(num_classes, num_known, rng=np.random.default_rng(0))
    assert len(set(ranks.tolist())) == num_known
    assert set(ranks.tolist()) <= set(range(num_classes))


def test_frequency_letters():
    letters = [frequency_letter(n, 100.0) for n in (0, 39, 40, 79, 80, 500)]
    assert letters == ["r", "r", "c", "c", "f", "f"]
