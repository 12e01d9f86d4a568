"""Closed outlines in the unit frame: the few strokes from which every silhouette is made.

The frame is [-1, 1] on both axes with y pointing down, as in images. Outlines have many points,
so that a later bend or wobble moves edges as well as corners.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

# Closest spacing that still bends smoothly when an object fills half of a 128 px image.
_STEP = 0.06


@dataclass(frozen=True)
class Part:
    """One closed outline that adds to the silhouette or cuts a hole into what came before."""

    points: np.ndarray
    """(P, 2) x, y"""
    adds: bool = True


Silhouette = tuple[Part, ...]


def polygon(*corners: tuple[float, float]) -> Silhouette:
    """A straight-edged outline through `corners`."""
    start = np.array(corners, dtype=np.float64)
    end = np.roll(start, -1, axis=0)
    edges = [
        np.linspace(a, b, max(2, int(np.hypot(*(b - a)) / _STEP)), endpoint=False)
        for a, b in zip(start, end, strict=True)
    ]
    return (Part(np.concatenate(edges)),)


def box(left: float, top: float, right: float, bottom: float) -> Silhouette:
    """An upright rectangle."""
    return polygon((left, top), (right, top), (right, bottom), (left, bottom))


def polar(radius: Callable[[np.ndarray], np.ndarray], num_points: int = 240) -> Silhouette:
    """The outline at distance `radius(angle)` from the centre; angle 0 points up, clockwise."""
    angle = np.linspace(0, 2 * np.pi, num_points, endpoint=False)
    r = radius(angle)
    return (Part(np.stack([r * np.sin(angle), -r * np.cos(angle)], axis=1)),)


def ellipse(
    x: float, y: float, rx: float, ry: float | None = None, *, tilt_deg: float = 0.0
) -> Silhouette:
    """An ellipse around (x, y); a circle when `ry` is not given."""
    angle = np.linspace(0, 2 * np.pi, 48, endpoint=False)
    points = np.stack([rx * np.cos(angle), (rx if ry is None else ry) * np.sin(angle)], axis=1)
    return (Part(points @ _rotation(tilt_deg) + (x, y)),)


def ribbon(centre_line: Sequence[tuple[float, float]] | np.ndarray, width: float) -> Silhouette:
    """A round-ended stroke along a smooth line (M, 2)."""
    line = np.asarray(centre_line, dtype=np.float64)
    along = np.gradient(line, axis=0)
    along /= np.linalg.norm(along, axis=1, keepdims=True)
    normal = np.stack([-along[:, 1], along[:, 0]], axis=1) * (width / 2)
    turn = np.linspace(0, np.pi, 12)[1:-1, None]
    end_cap = line[-1] + normal[-1] * np.cos(turn) + along[-1] * (width / 2) * np.sin(turn)
    start_cap = line[0] - normal[0] * np.cos(turn) - along[0] * (width / 2) * np.sin(turn)
    return (Part(np.concatenate([line + normal, end_cap, (line - normal)[::-1], start_cap])),)


def bar(start: tuple[float, float], end: tuple[float, float], width: float) -> Silhouette:
    """A straight round-ended stroke."""
    return ribbon(np.linspace(start, end, 16), width)


def arc(
    x: float, y: float, radius: float, *, from_deg: float, to_deg: float, width: float
) -> Silhouette:
    """A round-ended stroke along a circle; 0 degrees points up, clockwise."""
    angle = np.radians(np.linspace(from_deg, to_deg, 40))
    return ribbon(np.stack([x + radius * np.sin(angle), y - radius * np.cos(angle)], 1), width)


def star(num_points: int, inner_radius: float) -> Silhouette:
    """A star with straight edges; its notches lie at `inner_radius`."""
    angles = np.pi * np.arange(2 * num_points) / num_points
    radii = np.where(np.arange(2 * num_points) % 2 == 0, 1.0, inner_radius)
    return polygon(*zip(radii * np.sin(angles), -radii * np.cos(angles), strict=True))


def blossom(num_petals: int, depth: float) -> Silhouette:
    """Round petals with notches that go `depth` inwards."""
    return polar(lambda angle: 1 - depth * (1 - np.abs(np.cos(angle * num_petals / 2))))


def gear(num_teeth: int, hole_radius: float) -> Silhouette:
    """A toothed wheel with a hole."""
    rim = polar(lambda angle: 0.86 + 0.14 * np.tanh(4 * np.cos(num_teeth * angle)), 480)
    return rim + cut(ellipse(0, 0, hole_radius))


def spiral(turns: float, width: float) -> Silhouette:
    """A round-ended stroke winding outwards."""
    angle = np.linspace(0, 2 * np.pi * turns, 160)
    radius = 0.12 + 0.75 * angle / angle[-1]
    return ribbon(np.stack([radius * np.sin(angle), -radius * np.cos(angle)], axis=1), width)


def wave(height: float, width: float) -> Silhouette:
    """A round-ended stroke along one and a half sine waves."""
    x = np.linspace(-0.9, 0.9, 60)
    return ribbon(np.stack([x, height * np.sin(1.5 * np.pi * x)], axis=1), width)


def heart() -> Silhouette:
    """A heart, point down."""
    t = np.linspace(0, 2 * np.pi, 120, endpoint=False)
    y = (13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)) / 16
    return (Part(np.stack([np.sin(t) ** 3, -y], axis=1)),)


def drop() -> Silhouette:
    """A drop of water, point up."""
    t = np.linspace(0, 2 * np.pi, 80, endpoint=False)
    return (Part(np.stack([0.72 * np.sin(t) * np.sin(t / 2) ** 1.3, -np.cos(t)], axis=1)),)


def lens(top: float, bottom: float, half_width: float) -> Silhouette:
    """Two arcs that meet in points at the top and the bottom."""
    t = np.linspace(0, np.pi, 40)
    right = np.stack([half_width * np.sin(t) ** 1.4, top + (bottom - top) * t / np.pi], axis=1)
    return (Part(np.concatenate([right, right[-2:0:-1] * (-1, 1)])),)


def cut(silhouette: Silhouette) -> Silhouette:
    """The same outlines, taken away instead of added."""
    return tuple(replace(part, adds=False) for part in silhouette)


def mirrored(silhouette: Silhouette) -> Silhouette:
    """The outlines and their mirror images left to right."""
    return silhouette + tuple(
        replace(part, points=part.points * (-1.0, 1.0)) for part in silhouette
    )


def turned(silhouette: Silhouette, degrees: float) -> Silhouette:
    """The outlines turned clockwise around the centre."""
    rotation = _rotation(degrees)
    return tuple(replace(part, points=part.points @ rotation) for part in silhouette)


def repeated(silhouette: Silhouette, copies: int) -> Silhouette:
    """The outlines in `copies` equal turns around the centre."""
    return sum((turned(silhouette, 360 * k / copies) for k in range(copies)), ())


def _rotation(degrees: float) -> np.ndarray:
    """(2, 2) matrix that turns row vectors clockwise on screen (y down)."""
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return np.array([[c, s], [-s, c]])
