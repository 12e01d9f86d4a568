"""Where the objects of an image may be: the RPN's boxes, refined."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torchvision.ops import nms

from rncdl.detector.mask_boxes import fit_to_masks
from rncdl.detector.model import Detector, ImageBatch
from rncdl.detector.proposals import AnchorScores, select_proposals


@dataclass(frozen=True)
class Search:
    """Which of the RPN's boxes are taken, and how they are moved to the objects."""

    before_nms: int
    """boxes per level"""
    nms: float | None
    """among them; None: none"""
    per_image: int
    """boxes per image after NMS"""
    refinements: int = 1
    """how often the regressor moves the boxes"""
    mask_share: float = 0.0
    """how far, after that, they are moved to where their masks end"""
    region_nms: float | None = None
    """among refined boxes, whatever their class; None: none"""


@dataclass(frozen=True)
class Located:
    """The regions of a batch: where they are, what they look like, how likely they are objects."""

    boxes: list[Tensor]
    """per image (r, 4), the likeliest objects first"""
    features: Tensor
    """(R, F) of all images, of the boxes before they were moved for the last time"""
    objectness: list[Tensor]
    """per image (r,) logits of the RPN"""
    localisation: Tensor | None
    """(R,) of all images, IoU that the boxes seem to have with objects; None: never learned"""


def locate(
    detector: Detector,
    maps: Sequence[Tensor],
    batch: ImageBatch,
    *,
    search: Search,
    scores: AnchorScores | None = None,
) -> Located:
    """The RPN's boxes, refined, kept apart and fitted to their masks where the search wants that.

    `scores`: of the anchors, where the caller has them already.
    """
    proposals = select_proposals(
        detector.score_anchors(maps) if scores is None else scores,
        batch.sizes_hw,
        nms=search.nms,
        before_nms=search.before_nms,
        after_nms=search.per_image,
    )
    boxes = [proposal.boxes_xyxy for proposal in proposals]
    for _ in range(search.refinements):
        features = detector.region_features(maps, boxes)
        boxes = detector.refine_boxes(features, boxes, batch.sizes_hw)
    objectness = [proposal.objectness for proposal in proposals]
    located = Located(boxes, features, objectness, detector.predict_iou(features))
    if search.region_nms is not None:
        located = keep_apart(located, overlap=search.region_nms)
    if search.mask_share > 0 and detector.mask_head is not None:
        fitted = fit_to_masks(
            detector, maps, located.boxes, batch.sizes_hw, share=search.mask_share
        )
        located = replace(located, boxes=fitted)
    return located


def keep_apart(located: Located, *, overlap: float) -> Located:
    """The regions that overlap no likelier one by more than `overlap`, the likeliest first."""
    counts = [len(own) for own in located.boxes]
    likely = likelihood(torch.cat(located.objectness), located.localisation).split(counts)
    kept = [
        nms(boxes.float(), scores, overlap)
        for boxes, scores in zip(located.boxes, likely, strict=True)
    ]
    starts = torch.tensor([0, *counts[:-1]]).cumsum(0).tolist()
    rows = torch.cat([start + own for start, own in zip(starts, kept, strict=True)])
    return Located(
        [boxes[own] for boxes, own in zip(located.boxes, kept, strict=True)],
        located.features[rows],
        [logits[own] for logits, own in zip(located.objectness, kept, strict=True)],
        None if located.localisation is None else located.localisation[rows],
    )


def likelihood(objectness: Tensor, localisation: Tensor | None) -> Tensor:
    """(R,) in 0..1, how likely regions are objects and fit them.

    `objectness` (R,) logits of the RPN; `localisation` (R,) predicted IoU: the geometric mean of
    both, as in OLN; None: the RPN alone.
    """
    likely = objectness.float().sigmoid()
    return likely if localisation is None else (likely * localisation.float()).sqrt()


class RegionCache:
    """Regions located before, so that other classifiers need not search for them again."""

    def __init__(self, most_bytes: int = 2**30) -> None:
        """Beyond `most_bytes` of boxes and features nothing more is kept."""
        self._bytes_left = most_bytes
        self._kept: dict[tuple[int, ...], Located] = {}

    def get(self, images: Sequence[int]) -> Located | None:
        """What was kept of a batch of images; None: nothing."""
        return self._kept.get(tuple(images))

    def keep(self, images: Sequence[int], located: Located) -> None:
        """Keep what was located in a batch of images, if it fits."""
        num_bytes = sum(tensor.nbytes for tensor in (*located.boxes, located.features))
        if tuple(images) not in self._kept and num_bytes <= self._bytes_left:
            self._bytes_left -= num_bytes
            self._kept[tuple(images)] = located
