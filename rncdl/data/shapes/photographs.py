"""Photographs behind the objects, in place of paper."""

from pathlib import Path

import numpy as np
from PIL import Image

from rncdl.data.images import read_image

_MIN_CROP = 0.6
"""The least share of a photograph's shorter side that is seen."""


def crop_photograph(path: Path, image_px: int, *, rng: np.random.Generator) -> np.ndarray:
    """(3, image_px, image_px) float32 in 0..1: a square of the photograph, or mirrored."""
    pixels = read_image(path).permute(1, 2, 0).numpy()
    height, width = pixels.shape[:2]
    side_px = max(1, int(min(height, width) * rng.uniform(_MIN_CROP, 1)))
    top, left = (int(rng.integers(0, length - side_px + 1)) for length in (height, width))
    square = Image.fromarray(pixels[top : top + side_px, left : left + side_px])
    small = np.asarray(square.resize((image_px, image_px), Image.Resampling.BILINEAR))
    if rng.random() < 0.5:
        small = small[:, ::-1]
    return np.ascontiguousarray(small.transpose(2, 0, 1), dtype=np.float32) / 255
