"""Manners of drawing: the same class as a painting, a drawing in ink, a grey print or a negative.

Shape and pattern, which make a class, stay; colours and tones do not.
"""

from collections.abc import Callable

import numpy as np
from scipy.ndimage import gaussian_filter

Style = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(colours (3, h, w) in 0..1, cover (h, w) in 0..1) -> other colours for the same object."""

_LUMINANCE = np.array([0.2126, 0.7152, 0.0722], dtype=np.float32)
"""Of linear sRGB, Rec. 709; on screen values it is near enough for a print."""


def _paint(rgb: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    return rgb


def _draw_in_ink(rgb: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Dark lines on white: the pattern's darker ink and the outline."""
    tone = _tone(rgb)
    inside = alpha >= 0.5
    middle = (tone[inside].min() + tone[inside].max()) / 2 if inside.any() else 0.5
    is_dark = gaussian_filter((tone < middle).astype(np.float32), 0.4)
    width_px = max(0.8, 0.02 * max(alpha.shape))
    outline = np.clip(2.2 - 2.4 * gaussian_filter(alpha, width_px), 0, 1)
    white = 0.95 - 0.8 * np.maximum(0.7 * is_dark, outline)
    return np.broadcast_to(white.astype(np.float32), rgb.shape)


def _print_grey(rgb: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    return np.broadcast_to(_tone(rgb), rgb.shape)


def _turn_negative(rgb: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    return 1 - rgb


STYLES: tuple[Style, ...] = (_paint, _draw_in_ink, _print_grey, _turn_negative)
"""A world of n styles has the first n of them."""


def _tone(rgb: np.ndarray) -> np.ndarray:
    """(h, w) how light each pixel is."""
    tone: np.ndarray = np.tensordot(_LUMINANCE, rgb.astype(np.float32), 1)
    return tone
