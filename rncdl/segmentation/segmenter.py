"""The interfaces of segmenters: boxes in an image to masks, and an image to what may be objects."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch

from rncdl.config import SegmentationSettings
from rncdl.errors import UserError


class Segmenter(ABC):
    """Cuts out the object that each of an image's boxes was drawn around, whatever its class."""

    @abstractmethod
    def segment(self, image: np.ndarray, boxes_xyxy: np.ndarray) -> np.ndarray:
        """(R, H, W) bool masks, each inside its box.

        `image` (H, W, 3) uint8 RGB, `boxes_xyxy` (R, 4) in its pixels. A box that holds too few
        pixels to tell object from background is its own mask; one outside the image has none.
        """

    def refine(
        self, image: np.ndarray, boxes_xyxy: np.ndarray, probabilities: np.ndarray
    ) -> np.ndarray:
        """As `segment`, begun from masks (R, S, S) in [0, 1] that lie over the boxes.

        A segmenter that cannot begin from masks looks at the boxes alone.
        """
        return self.segment(image, boxes_xyxy)


@dataclass(frozen=True)
class Proposed:
    """What may be the objects of an image, the likeliest first."""

    masks: np.ndarray
    """(R, H, W) bool"""
    scores: np.ndarray
    """(R,) about 0..1"""


class Proposer(ABC):
    """Finds what may be objects in an image by itself, without boxes."""

    @abstractmethod
    def propose(
        self, image: np.ndarray, *, limit: int, taken_xyxy: np.ndarray | None = None
    ) -> Proposed:
        """At most `limit` masks of an image (H, W, 3) uint8 RGB, none of them empty.

        `taken_xyxy` (n, 4) boxes in its pixels whose objects are known already: nobody needs to
        look inside them.
        """


def open_segmenter(settings: SegmentationSettings, device: torch.device) -> Segmenter | None:
    """The segmenter that the settings name; None where they name none.

    A network looks on the `device`.
    """
    if settings.segmenter == "none":
        return None
    if settings.segmenter == "grabcut":
        from rncdl.segmentation.grabcut import GrabCut

        return GrabCut()
    if settings.sam_weights is None:
        raise UserError(
            "segmentation.segmenter=sam needs segmentation.sam_weights=FILE: the weights of "
            "MobileSAM (mobile_sam.pt)."
        )
    from rncdl.segmentation.sam import load_mobile_sam

    sam = load_mobile_sam(
        settings.sam_weights, input_px=settings.sam_px, points_per_side=settings.sam_points
    )
    return sam.to(device)


def pixels_of_box(box_xyxy: np.ndarray, height: int, width: int) -> tuple[slice, slice]:
    """Rows and columns of the image that the box touches; empty slices where it lies outside."""
    x0, y0, x1, y1 = box_xyxy.tolist()
    return _pixels_between(y0, y1, height), _pixels_between(x0, x1, width)


def _pixels_between(start: float, end: float, length: int) -> slice:
    first = min(max(int(np.floor(start)), 0), length)
    return slice(first, max(min(int(np.ceil(end)), length), first))
