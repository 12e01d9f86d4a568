"""What objects are painted with: patterns that repeat over a surface, and palettes of two inks."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Pattern = Callable[[np.ndarray, np.ndarray, np.random.Generator], np.ndarray]
"""(x, y, random) -> bool: where the second ink lies. One unit is one repeat of the pattern."""


def _stripes(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (x + y) * 0.75 % 1 < 0.45


def _scales(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    row = np.floor(y * 1.4)
    across = (x + 0.5 * (row % 2)) % 1 - 0.5
    below = y * 1.4 - row
    return np.abs(np.hypot(across * 2, below) - 0.95) < 0.24


def _dots(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    row = np.floor(y * 1.15)
    across = (x + 0.5 * (row % 2)) % 1 - 0.5
    return np.hypot(across, (y * 1.15 - row - 0.5) / 1.15) < 0.34


def _checks(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (np.floor(x * 1.5) + np.floor(y * 1.5)) % 2 < 1


def _rings(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.hypot(x, y) % 1 < 0.45


def _waves(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (y + 0.32 * np.sin(np.pi * x)) % 1 < 0.42


def _rays(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (np.arctan2(y, x) * 9 / (2 * np.pi)) % 1 < 0.45


def _zigzags(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (y * 0.9 + 1.1 * np.abs(x % 1 - 0.5)) % 1 < 0.42


def _speckles(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    # One speckle per cell of half a repeat, at a hashed place and of a hashed size.
    column, row = np.floor(x * 2), np.floor(y * 2)
    seed = rng.uniform(0, 100)
    hashed = np.sin(column * 127.1 + row * 311.7 + seed) * 43758.5
    place_x, place_y = hashed % 1, hashed * 7.31 % 1
    size = 0.12 + 0.22 * (hashed * 3.17 % 1)
    reach_x = x * 2 - column - 0.3 - 0.4 * place_x
    reach_y = y * 2 - row - 0.3 - 0.4 * place_y
    return np.hypot(reach_x, reach_y) < size


def _lattice(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (x % 1 < 0.26) | (y % 1 < 0.26)


def _marble(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    a, b, c = rng.uniform(0, 2 * np.pi, 3)
    swirl = np.sin(1.3 * y + a) + 0.8 * np.sin(1.9 * x + 1.1 * y + b)
    return np.sin(1.6 * x + 2.4 * swirl + c) > 0.25


def _bricks(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    row = np.floor(y * 1.3)
    return (y * 1.3 % 1 < 0.25) | ((x * 0.75 + 0.5 * (row % 2)) % 1 < 0.16)


PATTERNS: dict[str, Pattern] = {
    "striped": _stripes,
    "scaly": _scales,
    "dotted": _dots,
    "checked": _checks,
    "ringed": _rings,
    "wavy": _waves,
    "rayed": _rays,
    "zigzag": _zigzags,
    "speckled": _speckles,
    "latticed": _lattice,
    "marbled": _marble,
    "bricked": _bricks,
}
"""Adjective -> pattern."""


@dataclass(frozen=True)
class Ink:
    """A colour as lightness (0..1), chroma (0..0.3) and hue (degrees) in OKLCH."""

    lightness: float
    chroma: float
    hue_deg: float


_CREAM = Ink(0.93, 0.045, 85)
_BLUSH = Ink(0.86, 0.06, 30)
_SKY = Ink(0.88, 0.04, 215)
_NIGHT = Ink(0.32, 0.06, 265)

PALETTES: tuple[tuple[Ink, tuple[Ink, ...]], ...] = (
    (Ink(0.66, 0.17, 32), (_CREAM, _NIGHT)),  # coral
    (Ink(0.55, 0.09, 195), (_CREAM, _BLUSH)),  # teal
    (Ink(0.73, 0.15, 76), (_CREAM, _NIGHT)),  # mustard
    (Ink(0.45, 0.13, 275), (_BLUSH, _SKY)),  # indigo
    (Ink(0.58, 0.11, 132), (_CREAM, _BLUSH)),  # moss
    (Ink(0.50, 0.14, 345), (_BLUSH, _CREAM)),  # plum
    (Ink(0.56, 0.14, 42), (_SKY, _CREAM)),  # rust
)
"""Main ink, and the inks of which one draws the pattern.

Far fewer palettes than classes, and each object's hue is its own: colour alone names no class.
"""

_LAB_TO_CONES = np.array(
    [
        [1, 0.3963377774, 0.2158037573],
        [1, -0.1055613458, -0.0638541728],
        [1, -0.0894841775, -1.2914855480],
    ]
)
_CONES_TO_LINEAR = np.array(
    [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
)


def ink_to_rgb(ink: Ink) -> np.ndarray:
    """(3,) sRGB in 0..1, clipped to what a screen can show.

    OKLab's matrices are Björn Ottosson's, https://bottosson.github.io/posts/oklab (2020).
    """
    a = ink.chroma * np.cos(np.radians(ink.hue_deg))
    b = ink.chroma * np.sin(np.radians(ink.hue_deg))
    linear = np.clip(
        _CONES_TO_LINEAR @ (_LAB_TO_CONES @ np.array([ink.lightness, a, b])) ** 3, 0, 1
    )
    rgb = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return rgb.astype(np.float32)


def vary_ink(ink: Ink, *, hue_deg: float, lightness: float, chroma: float) -> Ink:
    """The ink turned by `hue_deg`, lighter by `lightness`, its chroma multiplied by `chroma`."""
    return Ink(ink.lightness + lightness, ink.chroma * chroma, ink.hue_deg + hue_deg)
