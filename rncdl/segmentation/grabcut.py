"""GrabCut from a box, alone or with a first guess (Rother, Kolmogorov and Blake, 2004), by OpenCV.

Two mixtures of colours, one of the object and one of what lies around it, and a graph cut between
them. It has no weights and knows no class, so novel objects are as easy for it as known ones.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import cv2
import numpy as np

from rncdl.segmentation.segmenter import Segmenter, pixels_of_box

_ROUNDS = 2
"""IoU 0.825 in 30 ms per object of the drawn world; four rounds 0.826 in 45, one 0.80 in 22."""
_MARGIN = 1 / 3
"""Share of the box's sides that is looked at around it, to learn the background's colours."""
_LONG_SIDE_PX = 256
"""Crops are doubled, at most to this: small objects gain borders, large ones would only cost."""
_MIN_PIXELS = 16
"""Fewer pixels, of object or background, are not enough for a mixture of five colours each."""
_SURE = 0.9
"""A pixel this likely, or this unlikely, of the object is not asked about again: from masks of IoU
0.73 and 0.85, of novel and known objects of a drawn world, to 0.80 and 0.91."""
_SEED = 0


class GrabCut(Segmenter):
    """Masks by colour; the boxes of an image are cut out side by side in threads."""

    def __init__(self, num_threads: int | None = None) -> None:
        """`num_threads` (default: as many as cores) changes nothing but the time."""
        self._num_threads = num_threads or os.cpu_count() or 1

    def segment(self, image: np.ndarray, boxes_xyxy: np.ndarray) -> np.ndarray:
        """See `Segmenter`."""
        return self._cut_out_each(image, boxes_xyxy, [None] * len(boxes_xyxy))

    def refine(
        self, image: np.ndarray, boxes_xyxy: np.ndarray, probabilities: np.ndarray
    ) -> np.ndarray:
        """See `Segmenter`."""
        return self._cut_out_each(image, boxes_xyxy, list(probabilities))

    def _cut_out_each(
        self, image: np.ndarray, boxes_xyxy: np.ndarray, guesses: Sequence[np.ndarray | None]
    ) -> np.ndarray:
        masks = np.zeros((len(boxes_xyxy), *image.shape[:2]), dtype=bool)
        with ThreadPoolExecutor(min(self._num_threads, max(1, len(masks)))) as pool:
            list(pool.map(partial(_cut_out, image), boxes_xyxy, guesses, masks))
        return masks


def _cut_out(
    image: np.ndarray, box_xyxy: np.ndarray, guess: np.ndarray | None, mask: np.ndarray
) -> None:
    """Write the object's pixels into `mask` (H, W)."""
    height, width = image.shape[:2]
    rows, columns = pixels_of_box(box_xyxy, height, width)
    state = np.full((height, width), cv2.GC_BGD, dtype=np.uint8)
    state[rows, columns] = cv2.GC_PR_FGD
    if guess is not None:
        state[rows, columns] = _first_state(_at_pixels(guess, box_xyxy, rows, columns))
    margin_y, margin_x = (
        int(np.ceil((side.stop - side.start) * _MARGIN)) for side in (rows, columns)
    )
    window = (
        slice(max(0, rows.start - margin_y), min(height, rows.stop + margin_y)),
        slice(max(0, columns.start - margin_x), min(width, columns.stop + margin_x)),
    )
    shown = state[window]
    mask[window] = _is_object(shown)
    if min(np.count_nonzero(mask[window]), np.count_nonzero(~mask[window])) < _MIN_PIXELS:
        return
    cut = _grab_cut(image[window], shown)
    if cut.any():
        mask[window] = cut


def _at_pixels(guess: np.ndarray, box_xyxy: np.ndarray, rows: slice, columns: slice) -> np.ndarray:
    """(rows, columns) float32: a guess (S, S), laid over its box, at these pixels' centres."""
    x0, y0, x1, y1 = box_xyxy.tolist()
    height, width = guess.shape
    across = (np.arange(columns.start, columns.stop) + 0.5 - x0) / max(x1 - x0, 1e-6) * width - 0.5
    down = (np.arange(rows.start, rows.stop) + 0.5 - y0) / max(y1 - y0, 1e-6) * height - 0.5
    if not len(across) or not len(down):
        return np.zeros((len(down), len(across)), dtype=np.float32)
    x, y = np.meshgrid(across.astype(np.float32), down.astype(np.float32))
    repeat = cv2.BORDER_REPLICATE
    return cv2.remap(guess.astype(np.float32), x, y, cv2.INTER_LINEAR, borderMode=repeat)


def _first_state(probabilities: np.ndarray) -> np.ndarray:
    """What GrabCut is told about pixels: surely or perhaps of the object, or of the background."""
    state = np.where(probabilities >= 0.5, cv2.GC_PR_FGD, cv2.GC_PR_BGD).astype(np.uint8)
    state[probabilities >= _SURE] = cv2.GC_FGD
    state[probabilities < 1 - _SURE] = cv2.GC_BGD
    return state


def _is_object(state: np.ndarray) -> np.ndarray:
    return (state == cv2.GC_FGD) | (state == cv2.GC_PR_FGD)


def _grab_cut(crop: np.ndarray, state: np.ndarray) -> np.ndarray:
    """(h, w) bool, the object's pixels of a crop (h, w, 3), none of them surely background.

    `state` (h, w): what is known before. The same for the same input, in any thread: OpenCV's
    random numbers are each thread's own.
    """
    height, width = state.shape
    scale = min(2.0, _LONG_SIDE_PX / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    smooth = cv2.INTER_LINEAR if scale > 1 else cv2.INTER_AREA
    enlarged = cv2.resize(crop, size, interpolation=smooth)
    found = cv2.resize(state, size, interpolation=cv2.INTER_NEAREST)
    if _is_object(found).all() or not _is_object(found).any():  # what little there was has shrunk
        return _is_object(state)
    no_rectangle = (0, 0, 0, 0)
    behind, in_front = np.zeros((1, 65)), np.zeros((1, 65))
    cv2.setRNGSeed(_SEED)
    mode = cv2.GC_INIT_WITH_MASK
    cv2.grabCut(enlarged, found, no_rectangle, behind, in_front, _ROUNDS, mode)
    is_object = _is_object(found).astype(np.float32)
    shrunk = cv2.resize(is_object, (width, height), interpolation=cv2.INTER_AREA) >= 0.5
    return shrunk & (state != cv2.GC_BGD)
