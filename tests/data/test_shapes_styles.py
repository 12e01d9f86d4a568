import numpy as np
import pytest

from rncdl.data.shapes.styles import STYLES


def striped_disc() -> tuple[np.ndarray, np.ndarray]:
    """Colours of a striped square, and a disc's cover."""
    rows, columns = np.mgrid[:40, :40]
    alpha = (np.hypot(rows - 19.5, columns - 19.5) < 18).astype(np.float32)
    stripes = (columns // 5 % 2).astype(np.float32)
    return np.stack([0.9 - 0.6 * stripes, 0.3 + 0.5 * stripes, 0.2 + 0 * stripes]), alpha


@pytest.mark.parametrize("style", STYLES)
def test_colours_stay_colours_and_the_pattern_can_be_seen(style):
    rgb, alpha = striped_disc()
    drawn = style(rgb, alpha)
    assert drawn.shape == rgb.shape
    assert drawn.min() >= 0
    assert drawn.max() <= 1
    first, second = drawn[:, 19, 17], drawn[:, 19, 22]
    assert np.abs(first - second).max() > 0.05


def test_styles_differ():
    rgb, alpha = striped_disc()
    drawn = [style(rgb, alpha) for style in STYLES]
    for i, one in enumerate(drawn):
        assert not any(np.allclose(one, other, atol=0.05) for other in drawn[:i])


def test_the_first_style_changes_nothing():
    rgb, alpha = striped_disc()
    assert np.array_equal(STYLES[0](rgb, alpha), rgb)
