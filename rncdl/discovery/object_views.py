"""What the teacher sees of an image: regions that may be objects, most often cut out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from pycocotools import mask as run_lengths
from torch import Tensor
from torch.nn import functional
from torchvision.ops import box_iou, nms

from rncdl.data.viewed_images import ViewedImage
from rncdl.detector.boxes import clip_boxes, has_area
from rncdl.detector.locating import Search, likelihood, locate
from rncdl.detector.mask_boxes import enlarge
from rncdl.detector.model import Detector
from rncdl.detector.pasting import paste_masks
from rncdl.discovery.cut_outs import cut_out, extents, show_around
from rncdl.discovery.extraction import ChosenRegions, ExtractedRegions
from rncdl.discovery.teacher import Teacher
from rncdl.segmentation.segmenter import Segmenter

Masks = Literal["both", "own", "segmenter", "none"]
_NMS = 0.5
_MARGIN = 1.2
"""A mask lies inside its box: so much more than the box is looked at, in case it is too small."""


@dataclass(frozen=True)
class ObjectChoice:
    """Which regions the teacher looks at, and how they are shown to it."""

    search: Search
    per_image: int
    masks: Masks
    """what they are cut out by; both: by the one that agrees with the region better; none: they
    are shown as they lie in the image"""
    crop_px: int
    padding: float
    outlines: bool = False
    """whether the outlines alone are shown as well; objects that are not cut out have none"""


@dataclass(frozen=True)
class Shown:
    """What the teacher is shown of some boxes."""

    crops: list[np.ndarray]
    outlines: list[np.ndarray]
    """one for each crop, or none at all"""
    agreement: Tensor
    """(R,) how far the masks agree with the boxes; where there are none, all do"""


class ObjectFinder:
    """Finds what may be objects, and lets the teacher look at each once."""

    def __init__(
        self,
        detector: Detector,
        teacher: Teacher,
        segmenter: Segmenter | None,
        choice: ObjectChoice,
    ) -> None:
        self._detector = detector
        self._teacher = teacher
        self._segmenter = segmenter
        self._choice = choice

    @property
    def num_features(self) -> int:
        """F of what the teacher sees of an object."""
        of_crop = self._teacher.num_features(self._choice.crop_px)
        return 2 * of_crop if self._choice.outlines else of_crop

    @torch.inference_mode()
    def look(self, images: Sequence[ViewedImage]) -> list[ExtractedRegions]:
        """Each image's objects with the teacher's features, in one view; then the annotated ones.

        The `objectness` of an object is how surely it is one: the IoU that the detector predicts
        for its region; where it has not learned to, the region's IoU with the box of its mask, or
        what the RPN says where there are no masks. Annotated objects are shown as found ones are.
        """
        batch = self._detector.batch_images([image.plain for image in images])
        maps = self._detector.feature_maps(batch)
        located = locate(self._detector, maps, batch, search=self._choice.search)
        found = []
        for i, image in enumerate(images):
            level_maps = [level[i : i + 1] for level in maps]
            boxes = located.boxes[i].float()
            usable = has_area(boxes)
            boxes, objectness = boxes[usable], located.objectness[i][usable]
            iou = self._detector.predict_iou(self._detector.region_features(level_maps, [boxes]))
            kept = nms(boxes, likelihood(objectness, iou), _NMS)[: self._choice.per_image]
            scale = boxes.new_tensor(image.plain_scale_xy).repeat(2)
            annotated = image.boxes_xyxy.to(boxes.device) * scale
            certainty = iou
            if certainty is None and self._choice.masks == "none":
                certainty = objectness.float().sigmoid()
            certain = None if certainty is None else certainty[kept]
            found.append(self._look_at(image, boxes[kept], certain, annotated, level_maps))
        return found

    @torch.inference_mode()
    def look_at_annotated(self, image: ViewedImage) -> Tensor:
        """(n, F) the teacher's features of an image's n annotated objects."""
        maps: list[Tensor] = []
        if self._choice.masks in ("both", "own"):
            maps = self._detector.feature_maps(self._detector.batch_images([image.plain]))
        boxes = image.boxes_xyxy.to(self._detector.device)
        annotated = boxes * boxes.new_tensor(image.plain_scale_xy).repeat(2)
        return self._features(
            self._show(image.plain.permute(1, 2, 0).cpu().numpy(), annotated, maps)
        )

    def _look_at(
        self,
        image: ViewedImage,
        boxes: Tensor,
        certainty: Tensor | None,
        annotated: Tensor,
        maps: Sequence[Tensor],
    ) -> ExtractedRegions:
        pixels = image.plain.permute(1, 2, 0).cpu().numpy()
        both = torch.cat([boxes, annotated])
        shown = self._show(pixels, both, maps)
        features = self._features(shown)
        scale = boxes.new_tensor(image.plain_scale_xy).repeat(2)
        count = len(boxes)
        chosen = ChosenRegions(
            boxes_xyxy=boxes / scale,
            objectness=shown.agreement[:count] if certainty is None else certainty,
            matched_boxes_xyxy=annotated / scale,
            matched_labels=image.labels,
        )
        return ExtractedRegions(chosen, features[None, :count], features[None, count:])

    def _show(self, pixels: np.ndarray, boxes: Tensor, maps: Sequence[Tensor]) -> Shown:
        """What the teacher is shown of boxes (R, 4)."""
        side_px, padding = self._choice.crop_px, self._choice.padding
        if self._choice.masks == "none":
            around = [
                show_around(pixels, box, side_px=side_px, padding=padding)
                for box in boxes.cpu().numpy()
            ]
            return Shown(around, [], torch.ones(len(boxes)))
        masks, agreement = self._cut(pixels, boxes, maps)
        crops = [cut_out(pixels, one, side_px=side_px, padding=padding) for one in masks]
        outlines = []
        if self._choice.outlines:
            white = np.full_like(pixels, 255)
            outlines = [cut_out(white, one, side_px=side_px, padding=padding) for one in masks]
        return Shown(crops, outlines, agreement)

    def _features(self, shown: Shown) -> Tensor:
        """(R, F); with outlines, those of the objects and those of their outlines weigh alike."""
        if not self._choice.outlines:
            return self._look(shown.crops)
        both = (self._look(shown.crops), self._look(shown.outlines))
        return torch.cat([functional.normalize(features) for features in both], 1)

    def _look(self, pictures: Sequence[np.ndarray]) -> Tensor:
        side = self._choice.crop_px
        stacked = np.stack(pictures) if pictures else np.zeros((0, side, side, 3), np.uint8)
        return self._teacher.look(torch.from_numpy(stacked).permute(0, 3, 1, 2))

    def _cut(
        self, pixels: np.ndarray, boxes: Tensor, maps: Sequence[Tensor]
    ) -> tuple[np.ndarray, Tensor]:
        """Masks (R, H, W) and how far they agree with the boxes (R, 4), (R,).

        Of the detector's own mask and the segmenter's, each box has the one that agrees better.
        """
        size = boxes.new_tensor(pixels.shape[:2])
        shown = clip_boxes(enlarge(boxes, _MARGIN), size)
        candidates = []
        if self._choice.masks != "segmenter":
            candidates.append(self._own_masks(pixels.shape[:2], shown, maps))
        if self._segmenter is not None:
            candidates.append(self._segmenter.segment(pixels, shown.cpu().numpy()))
        agreements = torch.stack([_agreement(boxes.cpu(), masks) for masks in candidates])
        best = agreements.max(0)
        rows = np.arange(len(boxes))
        return np.stack(candidates)[best.indices.numpy(), rows], best.values

    def _own_masks(
        self, size_hw: tuple[int, ...], shown: Tensor, maps: Sequence[Tensor]
    ) -> np.ndarray:
        height, width = size_hw
        if self._detector.mask_head is None:
            return np.zeros((len(shown), height, width), dtype=bool)
        probabilities = self._detector.mask_logits(maps, [shown]).float().sigmoid()
        pasted = paste_masks(probabilities, shown, (height, width))
        masks = [run_lengths.decode(one).astype(bool) for one in pasted]
        return np.stack(masks) if masks else np.zeros((0, height, width), dtype=bool)


def _agreement(boxes_xyxy: Tensor, masks: np.ndarray) -> Tensor:
    """(R,) IoU of each box with the box of its mask; zero where the mask is empty."""
    return box_iou(boxes_xyxy, extents(masks)).diagonal().nan_to_num()
