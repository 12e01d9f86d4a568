"""What lies around the objects: tinted paper, and clutter that is not an object."""

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw

from rncdl.data.shapes.surfaces import Ink, ink_to_rgb

_PAPERS = (
    Ink(0.93, 0.030, 85),  # cream
    Ink(0.88, 0.035, 45),  # blush
    Ink(0.87, 0.030, 220),  # mist
    Ink(0.88, 0.035, 140),  # sage
    Ink(0.85, 0.045, 75),  # sand
    Ink(0.86, 0.030, 300),  # lilac
    Ink(0.30, 0.040, 265),  # night
    Ink(0.33, 0.035, 170),  # forest
)
_SHADOW_RGB = ink_to_rgb(Ink(0.25, 0.03, 280))


def draw_backdrop(image_px: int, rng: np.random.Generator) -> np.ndarray:
    """(3, image_px, image_px) float32 in 0..1: layers of related tones, then quiet clutter."""
    paper = _PAPERS[rng.integers(len(_PAPERS))]
    dark = paper.lightness < 0.5
    step = rng.uniform(0.02, 0.05) * (1 if dark else -1)
    tones = [
        ink_to_rgb(
            Ink(
                paper.lightness + layer * step,
                paper.chroma * (1 + 0.35 * layer),
                paper.hue_deg + rng.normal(0, 18),
            )
        )
        for layer in range(3)
    ]
    relief = _draw_relief(image_px, rng)
    edges = np.quantile(relief, np.sort(rng.uniform(0.2, 0.9, 2))).tolist()
    canvas = np.tile(tones[0][:, None, None], (1, image_px, image_px))
    for tone, edge in zip(tones[1:], edges, strict=True):
        # The layers meet within about a pixel, like cut paper.
        canvas = _blend(canvas, tone, np.clip((relief - edge) * (image_px / 3) + 0.5, 0, 1))

    for _ in range(rng.integers(3, 8)):
        cover = _CLUTTER[rng.integers(len(_CLUTTER))](image_px, rng)
        canvas = _blend(canvas, _quiet_rgb(dark, rng), cover)
    if rng.random() < 0.5:
        canvas = _blend(canvas, _SHADOW_RGB, 0.18 * _draw_spot(image_px, rng))
    return canvas


def draw_ribbon(image_px: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A plain band from border to border, to lie in front: colour (3,) and cover (H, W) in 0..1."""
    ink = Ink(rng.choice((0.35, 0.75, 0.9)), 0.04, rng.uniform(0, 360))
    return ink_to_rgb(ink), _draw_curve(image_px, rng.uniform(0.02, 0.045), rng=rng)


def print_grain(canvas: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(H, W, 3) uint8: the canvas (3, H, W) with a little paper grain, alike in all colours."""
    grain = rng.standard_normal(canvas.shape[1:], dtype=np.float32) * 0.014
    printed = (np.clip(canvas + grain, 0, 1) * 255 + 0.5).astype(np.uint8)
    return np.ascontiguousarray(printed.transpose(1, 2, 0))


def _blend(canvas: np.ndarray, rgb: np.ndarray, cover: np.ndarray) -> np.ndarray:
    """The canvas (3, H, W) with a colour (3,) over it where `cover` (H, W) is above 0."""
    return canvas + cover * (rgb[:, None, None] - canvas)


def _quiet_rgb(dark: bool, rng: np.random.Generator) -> np.ndarray:
    """(3,) a muted colour that stands out less than any object."""
    lightness = rng.uniform(0.40, 0.55) if dark else rng.uniform(0.62, 0.85)
    return ink_to_rgb(Ink(lightness, rng.uniform(0.02, 0.07), rng.uniform(0, 360)))


def _draw_relief(image_px: int, rng: np.random.Generator) -> np.ndarray:
    """(H, W) a smooth random landscape with values in about -1..1, often lying like hills."""
    knots = rng.uniform(-1, 1, (4, 4)).astype(np.float32)
    smooth = Image.fromarray(knots).resize((image_px, image_px), Image.Resampling.BICUBIC)
    slope = np.linspace(-1, 1, image_px, dtype=np.float32)[:, None] * float(rng.uniform(0, 1.5))
    return np.asarray(smooth) + slope


def _draw_haze(image_px: int, rng: np.random.Generator) -> np.ndarray:
    return 0.4 * _draw_spot(image_px, rng)


def _draw_line(image_px: int, rng: np.random.Generator) -> np.ndarray:
    opacity = float(rng.uniform(0.4, 0.9))
    return opacity * _draw_curve(image_px, rng.uniform(0.006, 0.014), rng=rng)


def _draw_halftone(image_px: int, rng: np.random.Generator) -> np.ndarray:
    """A printer's screen of fine dots or lines that fades out at its border."""
    angle, period_px = rng.uniform(0, np.pi), rng.uniform(0.025, 0.045) * image_px
    turn = (
        float(2 * np.pi / period_px * np.cos(angle)),
        float(2 * np.pi / period_px * np.sin(angle)),
    )
    rows = np.arange(image_px, dtype=np.float32)[:, None]
    columns = np.arange(image_px, dtype=np.float32)
    screen = np.cos(columns * turn[0] + rows * turn[1])
    if rng.random() < 0.6:
        screen = (screen + np.cos(rows * turn[0] - columns * turn[1])) / 2
    return np.clip(screen + 2 * _draw_spot(image_px, rng) - 1.2, 0, 0.5)


def _scatter_dashes(image_px: int, rng: np.random.Generator) -> np.ndarray:
    picture = Image.new("L", (2 * image_px, 2 * image_px), 0)
    pen = ImageDraw.Draw(picture)
    count = int(rng.integers(6, 18))
    starts = rng.uniform(0, 2 * image_px, (count, 2))
    ends = starts + rng.normal(0, 0.025 * image_px, (count, 2))
    for dash in np.hstack([starts, ends]).tolist():
        pen.line(dash, fill=180, width=max(1, round(0.018 * image_px)))
    return np.asarray(picture.reduce(2), dtype=np.float32) / 255


_CLUTTER: tuple[Callable[[int, np.random.Generator], np.ndarray], ...] = (
    _draw_haze,
    _draw_line,
    _draw_line,
    _draw_halftone,
    _scatter_dashes,
)
"""(image_px, random) -> how much of each pixel is covered, (H, W) in 0..1."""


def _draw_spot(image_px: int, rng: np.random.Generator) -> np.ndarray:
    """(H, W) in 0..1, an ellipse with soft borders somewhere in the picture."""
    x, y = (rng.uniform(0, 1, 2) * image_px).tolist()
    rx, ry = (rng.uniform(0.08, 0.28, 2) * image_px).tolist()
    across = (np.arange(image_px, dtype=np.float32) - x) / rx
    down = (np.arange(image_px, dtype=np.float32)[:, None] - y) / ry
    return np.clip(1.3 - np.sqrt(across**2 + down**2), 0, 0.6) / 0.6


def _draw_curve(image_px: int, width: float, *, rng: np.random.Generator) -> np.ndarray:
    """(H, W) in 0..1, a curved stroke across the picture; `width` as a share of its side."""
    start_angle = rng.uniform(0, 2 * np.pi)
    end_angle = start_angle + np.pi + rng.normal(0, 0.6)
    start = np.array([np.cos(start_angle), np.sin(start_angle)])
    end = np.array([np.cos(end_angle), np.sin(end_angle)])
    middle = rng.normal(0, 0.4, 2)
    t = np.linspace(0, 1, 32)[:, None]
    points = (1 - t) ** 2 * start + 2 * t * (1 - t) * middle + t**2 * end
    # Ends at 0.75 sides from the centre lie outside the picture whatever the angle.
    corners = ((points * 0.75 + 0.5) * 2 * image_px).ravel().tolist()
    picture = Image.new("L", (2 * image_px, 2 * image_px), 0)
    width_px = max(1, round(2 * width * image_px))
    ImageDraw.Draw(picture).line(corners, fill=255, width=width_px, joint="curve")
    return np.asarray(picture.reduce(2), dtype=np.float32) / 255
