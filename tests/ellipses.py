"""A segmenter for which every box holds an object, so that detectors of a few steps find some."""

import numpy as np

from rncdl.segmentation.segmenter import Segmenter


class Ellipses(Segmenter):
    """Takes the ellipse in each box for its object."""

    def segment(self, image: np.ndarray, boxes_xyxy: np.ndarray) -> np.ndarray:
        rows, columns = np.mgrid[: image.shape[0], : image.shape[1]] + 0.5
        masks = np.zeros((len(boxes_xyxy), *image.shape[:2]), dtype=bool)
        for mask, (x0, y0, x1, y1) in zip(masks, boxes_xyxy, strict=True):
            across = (columns - (x0 + x1) / 2) / max((x1 - x0) / 2, 1e-6)
            down = (rows - (y0 + y1) / 2) / max((y1 - y0) / 2, 1e-6)
            mask[:] = across**2 + down**2 <= 1
        return masks
