"""How much an image varies from one look at it to the next."""

from dataclasses import dataclass

from rncdl.config import Augmentation


@dataclass(frozen=True)
class Variation:
    """The sizes, mirroring and colours among which each look draws."""

    short_sides_px: tuple[int, ...]
    long_side_px: int
    """the longest side is never longer"""
    flip: float
    """chance of being mirrored"""
    strength: Augmentation
    """how far colours are distorted"""
