"""A whole picture: objects placed on a backdrop, and exactly which pixels of each can be seen."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.ndimage import gaussian_filter

from rncdl.data.shapes.backdrops import draw_backdrop, draw_ribbon, print_grain
from rncdl.data.shapes.catalogue import ObjectClass
from rncdl.data.shapes.objects import Sprite, draw_object
from rncdl.data.shapes.photographs import crop_photograph
from rncdl.data.shapes.styles import STYLES

MIN_SIDE = 0.27
MAX_SIDE = 0.6
"""Longer side of an object, as shares of the image side."""

MIN_VISIBLE = 0.55
"""The least share of an object's pixels that is in sight, whatever lies in front of it."""
_MIN_INSIDE = 0.75
"""The least share of an object that lies inside the picture."""
_MAX_COVERING = 0.2
"""The largest share of an object that lies in front of others; behind the rest is the backdrop."""
_RIBBON_SHARE = 0.2
"""Share of the scenes with a ribbon in front of the objects."""
_NOBODY = -1

Window = tuple[slice, slice]


@dataclass(frozen=True)
class Look:
    """How hard a world is to read. The defaults are the kind one: paper, and one manner to draw."""

    photographs: tuple[Path, ...] = ()
    """one of these lies behind the objects, if there are any"""
    num_styles: int = 1
    """manners in which an object may be drawn, whatever its class"""


@dataclass(frozen=True)
class Scene:
    """A picture and its objects, the farthest first."""

    image: np.ndarray
    """(H, W, 3) uint8"""
    class_indices: list[int]
    masks: list[np.ndarray]
    """(H, W) bool each, the visible part: disjoint and never empty"""


def draw_scene(
    kinds: Sequence[ObjectClass],
    class_indices: Sequence[int],
    *,
    image_px: int,
    rng: np.random.Generator,
    look: Look = Look(),  # noqa: B008
) -> Scene:
    """A scene with an object of each `kinds[i]`, i from `class_indices`.

    An object for which no room is left, even smaller, is left out.
    """
    canvas = _lay_ground(image_px, look.photographs, rng=rng)
    owner = np.full((image_px, image_px), _NOBODY)
    light_deg = rng.uniform(-150, -30)
    drawn: list[int] = []
    areas_px: list[int] = []
    # Large ones first: small ones then lie in front and are never lost behind.
    sides = np.sort(np.exp(rng.uniform(np.log(MIN_SIDE), np.log(MAX_SIDE), len(class_indices))))
    for class_index, side in zip(class_indices, sides[::-1], strict=True):
        for shrink in (1.0, 0.7, 0.5):
            side_px = image_px * max(MIN_SIDE, side * shrink)
            sprite = draw_object(kinds[class_index], side_px, light_deg=light_deg, rng=rng)
            sprite = _restyle(sprite, look.num_styles, rng=rng)
            place = _find_place(sprite, owner, areas_px=areas_px, rng=rng)
            if place is None:
                continue
            _paste(canvas, sprite, place, light_deg=light_deg)
            window, part = _overlap(sprite.alpha, place, image_px)
            owner[window][sprite.mask[part]] = len(drawn)
            areas_px.append(int(sprite.mask[part].sum()))
            drawn.append(class_index)
            break

    if rng.random() < _RIBBON_SHARE:
        ribbon_rgb, ribbon_alpha = draw_ribbon(image_px, rng)
        hidden = ribbon_alpha >= 0.5
        if _stay_visible(owner, owner[hidden], areas_px):
            canvas += ribbon_alpha * (ribbon_rgb[:, None, None] - canvas)
            owner[hidden] = _NOBODY
    masks = [owner == index for index in range(len(drawn))]
    return Scene(image=print_grain(canvas, rng), class_indices=drawn, masks=masks)


def _lay_ground(
    image_px: int, photographs: Sequence[Path], *, rng: np.random.Generator
) -> np.ndarray:
    """(3, image_px, image_px) what lies behind the objects."""
    if not photographs:
        return draw_backdrop(image_px, rng)
    return crop_photograph(photographs[int(rng.integers(len(photographs)))], image_px, rng=rng)


def _restyle(sprite: Sprite, num_styles: int, *, rng: np.random.Generator) -> Sprite:
    """The sprite in one of the first `num_styles` manners; draws no number where there is one."""
    if num_styles == 1:
        return sprite
    style = STYLES[rng.integers(num_styles)]
    return replace(sprite, rgb=style(sprite.rgb, sprite.alpha))


def _find_place(
    sprite: Sprite, owner: np.ndarray, *, areas_px: Sequence[int], rng: np.random.Generator
) -> tuple[int, int] | None:
    """(left, top) where the sprite fits in front of what is there; None after a few trials."""
    image_px = owner.shape[0]
    height, width = sprite.alpha.shape
    area_px = int(sprite.mask.sum())
    for _ in range(12):
        left = int(rng.integers(-width // 5, image_px - width + width // 5 + 1))
        top = int(rng.integers(-height // 5, image_px - height + height // 5 + 1))
        window, part = _overlap(sprite.alpha, (left, top), image_px)
        covered = owner[window][sprite.mask[part]]
        if (
            covered.size >= _MIN_INSIDE * area_px
            and (covered != _NOBODY).sum() <= _MAX_COVERING * area_px
            and _stay_visible(owner, covered, areas_px)
        ):
            return left, top
    return None


def _stay_visible(owner: np.ndarray, covered: np.ndarray, areas_px: Sequence[int]) -> bool:
    """True if every object keeps enough pixels when the `covered` ones change their owner."""
    slots = len(areas_px) + 1
    now = np.bincount(owner.ravel() + 1, minlength=slots)
    lost = np.bincount(covered.ravel() + 1, minlength=slots)
    return bool(((now - lost)[1:] >= MIN_VISIBLE * np.array(areas_px)).all())


def _paste(canvas: np.ndarray, sprite: Sprite, place: tuple[int, int], *, light_deg: float) -> None:
    """Paint the sprite's shadow, then the sprite, onto the canvas."""
    image_px = canvas.shape[1]
    unit_px = image_px / 128
    margin_px = int(np.ceil(5 * unit_px))
    shade = gaussian_filter(np.pad(sprite.alpha, margin_px), sigma=1.6 * unit_px)
    toward_light = np.array([np.cos(np.radians(light_deg)), np.sin(np.radians(light_deg))])
    left, top = np.round(place - 2.5 * unit_px * toward_light).astype(int) - margin_px
    window, part = _overlap(shade, (int(left), int(top)), image_px)
    canvas[:, *window] *= 1 - 0.30 * shade[part]

    window, part = _overlap(sprite.alpha, place, image_px)
    here = canvas[:, *window]
    here += sprite.alpha[part] * (sprite.rgb[:, *part] - here)


def _overlap(patch: np.ndarray, place: tuple[int, int], image_px: int) -> tuple[Window, Window]:
    """Where a patch at (left, top) lies on the canvas, and which part of the patch that is."""
    left, top = place
    height, width = patch.shape[:2]
    x0, y0 = max(0, left), max(0, top)
    x1, y1 = min(image_px, left + width), min(image_px, top + height)
    window = slice(y0, y1), slice(x0, x1)
    return window, (slice(y0 - top, y1 - top), slice(x0 - left, x1 - left))
