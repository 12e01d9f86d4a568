"""One object: a silhouette in some pose, painted with its surface, lit, with soft edges."""

import math
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image, ImageDraw
from scipy.ndimage import gaussian_filter

from rncdl.data.shapes.catalogue import ObjectClass
from rncdl.data.shapes.outlines import Silhouette
from rncdl.data.shapes.silhouettes import SILHOUETTES
from rncdl.data.shapes.surfaces import PALETTES, PATTERNS, ink_to_rgb, vary_ink

SUPERSAMPLING = 3
"""Silhouettes and patterns are drawn this many times larger, then averaged down."""

_MAX_TILT_DEG = 30.0


@dataclass(frozen=True)
class Sprite:
    """A drawn object, cropped to its extent."""

    rgb: np.ndarray
    """(3, h, w) float32 in 0..1"""
    alpha: np.ndarray
    """(h, w) float32 in 0..1, how much of each pixel the object covers"""

    @property
    def mask(self) -> np.ndarray:
        """(h, w) bool: the pixels that belong to the object."""
        return self.alpha >= 0.5


def draw_object(
    kind: ObjectClass, side_px: float, *, light_deg: float, rng: np.random.Generator
) -> Sprite:
    """An instance of `kind` in a random pose, its outline's longer side `side_px` pixels."""
    angle = np.radians(rng.uniform(-_MAX_TILT_DEG, _MAX_TILT_DEG))
    flip = rng.choice((-1.0, 1.0))
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    to_picture = np.diag([flip, 1.0]) @ turn

    outline = [part.points @ to_picture for part in _deform(SILHOUETTES[kind.silhouette], rng)]
    every_point = np.concatenate(outline)
    low, high = every_point.min(axis=0), every_point.max(axis=0)
    scale = float(side_px * SUPERSAMPLING / (high - low).max())
    # A rim of one pixel, so that soft edges are not cut off.
    origin = low - SUPERSAMPLING / scale
    width_px, height_px = np.ceil((high - low) * scale / SUPERSAMPLING).astype(int) + 2

    canvas = Image.new("L", (width_px * SUPERSAMPLING, height_px * SUPERSAMPLING), 0)
    pen = ImageDraw.Draw(canvas)
    for part, points in zip(SILHOUETTES[kind.silhouette], outline, strict=True):
        corners = ((points - origin) * scale).ravel().tolist()
        pen.polygon(corners, fill=255 if part.adds else 0)
    alpha = _average_down(canvas)

    left, top = origin.tolist()
    picture_x = np.arange(canvas.width, dtype=np.float32) / scale + left
    picture_y = np.arange(canvas.height, dtype=np.float32)[:, None] / scale + top
    (xx, xy), (yx, yy) = np.linalg.inv(to_picture).tolist()
    pattern = _lay_pattern(
        kind.pattern,
        x=picture_x * xx + picture_y * yx,
        y=picture_x * xy + picture_y * yy,
        rng=rng,
    )
    second_ink = _average_down(Image.fromarray(pattern.view(np.uint8) * np.uint8(255)))
    rgb = _mix_inks(kind.palette_index, second_ink * _away_from_edge(alpha), rng=rng)
    return Sprite(rgb=_light(rgb, alpha, light_deg=light_deg, rng=rng), alpha=alpha)


def _deform(silhouette: Silhouette, rng: np.random.Generator) -> Silhouette:
    """The silhouette stretched, sheared, bent and wobbled a little."""
    stretch, shear, bend_x, bend_y = rng.uniform(-0.12, 0.12, 4)
    wave = rng.normal(0, 1.6, (2, 2))
    phase = rng.uniform(0, 2 * np.pi, 2)

    def move(points: np.ndarray) -> np.ndarray:
        x, y = points[:, 0] * np.exp(stretch), points[:, 1] * np.exp(-stretch)
        x, y = x + shear * y + bend_x * y * y, y + bend_y * x * x
        wobble = 0.035 * np.sin(points @ wave + phase)
        return np.stack([x, y], axis=1) + wobble

    return tuple(replace(part, points=move(part.points)) for part in silhouette)


def _lay_pattern(
    name: str, *, x: np.ndarray, y: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Where the second ink lies, for object coordinates x and y in about [-1, 1]."""
    repeats = 2.4 * np.exp(rng.uniform(-0.2, 0.2))
    turn = np.radians(rng.uniform(-12, 12))
    # Rings and rays keep their centre near the object's; for the others any shift is as good.
    shift_x, shift_y = rng.uniform(-0.15, 0.15, 2)
    c, s = float(np.cos(turn) * repeats), float(np.sin(turn) * repeats)
    x, y = x - float(shift_x), y - float(shift_y)
    return PATTERNS[name](c * x - s * y, s * x + c * y, rng)


def _mix_inks(palette_index: int, share: np.ndarray, *, rng: np.random.Generator) -> np.ndarray:
    """(3, h, w) the palette's inks, of a hue and strength of this object's own."""
    hue_deg, chroma = rng.normal(0, 30), rng.uniform(0.7, 1.1)
    main_ink, pattern_inks = PALETTES[palette_index]
    main, second = (
        ink_to_rgb(
            vary_ink(ink, hue_deg=hue_deg, lightness=rng.uniform(-0.07, 0.05), chroma=chroma)
        )
        for ink in (main_ink, pattern_inks[rng.integers(len(pattern_inks))])
    )
    return main[:, None, None] + share * (second - main)[:, None, None]


def _light(
    rgb: np.ndarray, alpha: np.ndarray, *, light_deg: float, rng: np.random.Generator
) -> np.ndarray:
    """The colours under a light from `light_deg`: a slope, and rounded sides."""
    height, width = alpha.shape
    toward_x, toward_y = math.cos(math.radians(light_deg)), math.sin(math.radians(light_deg))
    x = np.linspace(-1, 1, width, dtype=np.float32)
    y = np.linspace(-1, 1, height, dtype=np.float32)[:, None]
    slope = float(rng.uniform(0.05, 0.16)) * (x * toward_x + y * toward_y)
    inside = gaussian_filter(alpha, sigma=max(height, width) * 0.05)
    rim = 0.30 * np.clip(1 - inside, 0, 1)
    return np.clip(rgb * (1 + slope - rim), 0, 1)


def _away_from_edge(alpha: np.ndarray) -> np.ndarray:
    """(h, w) in 0..1: zero along the outline, which stays in the main ink and so reads clearly."""
    sigma_px = max(0.6, 0.012 * max(alpha.shape))
    return np.clip((gaussian_filter(alpha, sigma_px) - 0.6) / 0.3, 0, 1)


def _average_down(large: Image.Image) -> np.ndarray:
    """(h, w) float32 in 0..1, the mean of each supersampled cell."""
    return np.asarray(large.reduce(SUPERSAMPLING), dtype=np.float32) / 255
