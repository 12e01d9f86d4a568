"""Regions of pool images, and their features under every view."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.ops import box_iou

from rncdl.data.viewed_images import ViewedImage
from rncdl.detector.boxes import has_area
from rncdl.detector.locating import Search, locate
from rncdl.detector.model import Detector
from rncdl.detector.proposals import select_proposals


@dataclass(frozen=True)
class RegionChoice:
    """Which regions of an image are looked at."""

    per_image: int
    """the RPN's best so many"""
    nms: float | None
    """among them; None: none"""
    matched_per_image: int
    """at most so many proposals that lie on an annotation"""
    matched_iou: float
    before_nms: int
    """proposals per level before any NMS"""
    matched_nms: float
    matched_candidates: int
    """proposals after NMS among which matches are looked for"""


@dataclass
class ChosenRegions:
    """Regions of one image, in the pixels of the image on disk."""

    boxes_xyxy: Tensor
    """(R, 4)"""
    objectness: Tensor
    """(R,)"""
    matched_boxes_xyxy: Tensor
    """(M, 4): annotations and the proposals that lie on them; empty for unlabelled images"""
    matched_labels: Tensor
    """(M,) int64 in 0..K-1"""


@dataclass
class ExtractedRegions:
    """Chosen regions of one image and their features in its V views."""

    chosen: ChosenRegions
    features: Tensor
    """(V, R, F)"""
    matched_features: Tensor
    """(V, M, F)"""


@torch.no_grad()
def choose_regions(
    detector: Detector, images: Sequence[ViewedImage], choice: RegionChoice
) -> tuple[list[ChosenRegions], list[Tensor]]:
    """Each image's regions, refined once, and its matched ones, from one pass over `plain`.

    Also that pass's feature maps.
    """
    batch = detector.batch_images([image.plain for image in images])
    maps = detector.feature_maps(batch)
    scores = detector.score_anchors(maps)
    search = Search(before_nms=choice.before_nms, nms=choice.nms, per_image=choice.per_image)
    best = locate(detector, maps, batch, search=search, scores=scores)
    candidates: list[Tensor | None] = [None] * len(images)
    if any(len(image.labels) for image in images):
        found = select_proposals(
            scores,
            batch.sizes_hw,
            nms=choice.matched_nms,
            before_nms=choice.before_nms,
            after_nms=choice.matched_candidates,
        )
        candidates = [proposals.boxes_xyxy for proposals in found]
    chosen = []
    for image, image_boxes, objectness, candidate in zip(
        images, best.boxes, best.objectness, candidates, strict=True
    ):
        scale = image_boxes.new_tensor(image.plain_scale_xy).repeat(2)
        usable = has_area(image_boxes)
        truth = image.boxes_xyxy.to(image_boxes.device)
        matched, labels = match_proposals(
            truth.new_zeros(0, 4) if candidate is None else candidate / scale,
            truth,
            image.labels.to(truth.device),
            min_iou=choice.matched_iou,
            most=choice.matched_per_image,
        )
        chosen.append(
            ChosenRegions(
                boxes_xyxy=image_boxes[usable] / scale,
                objectness=objectness[usable],
                matched_boxes_xyxy=matched,
                matched_labels=labels,
            )
        )
    return chosen, maps


def match_proposals(
    proposals_xyxy: Tensor, truth_xyxy: Tensor, labels: Tensor, *, min_iou: float, most: int
) -> tuple[Tensor, Tensor]:
    """The annotations, then the proposals (P, 4) that overlap one, best proposals first.

    At most `most` boxes (M, 4) and the labels (M,) of the annotations they overlap the most.
    """
    if not len(truth_xyxy):
        return truth_xyxy.new_zeros(0, 4), labels[:0]
    overlap, nearest = box_iou(proposals_xyxy, truth_xyxy).max(1)
    on_truth = overlap >= min_iou
    boxes = torch.cat([truth_xyxy, proposals_xyxy[on_truth]])
    return boxes[:most], torch.cat([labels, labels[nearest[on_truth]]])[:most]


def extract_features(
    detector: Detector,
    images: Sequence[ViewedImage],
    chosen: Sequence[ChosenRegions],
    *,
    plain_maps: Sequence[Tensor] | None = None,
) -> list[ExtractedRegions]:
    """Features of the chosen regions in every view; views of one shape share a batch.

    `plain_maps`: the feature maps of the plain images, which spare views that show nothing else
    their pass. With gradients where the caller has not turned them off.
    """
    pairs = [(i, v) for i, image in enumerate(images) for v in range(len(image.views))]
    everywhere = [torch.cat([one.boxes_xyxy, one.matched_boxes_xyxy]) for one in chosen]
    rows: dict[tuple[int, int], Tensor] = {}
    if plain_maps is not None:
        plain = {i: v for i, v in pairs if images[i].is_plain(images[i].views[v])}
        boxes = [
            images[i].views[plain[i]].carry_boxes(regions) if i in plain else regions[:0]
            for i, regions in enumerate(everywhere)
        ]
        features = detector.region_features(plain_maps, boxes).split([len(b) for b in boxes])
        rows = {(i, v): features[i] for i, v in plain.items()}
        pairs = [pair for pair in pairs if pair not in rows]
    pairs.sort(key=lambda pair: images[pair[0]].views[pair[1]].image.shape)
    for start in range(0, len(pairs), len(images)):
        group = pairs[start : start + len(images)]
        views = [images[i].views[v] for i, v in group]
        batch = detector.batch_images([view.image for view in views])
        boxes = [view.carry_boxes(everywhere[i]) for view, (i, _) in zip(views, group, strict=True)]
        found = detector.region_features(detector.feature_maps(batch), boxes)
        rows.update(zip(group, found.split([len(b) for b in boxes]), strict=True))
    extracted = []
    for i, (image, regions) in enumerate(zip(images, chosen, strict=True)):
        stacked = torch.stack([rows[i, v] for v in range(len(image.views))])
        own, matched = stacked.split([len(regions.boxes_xyxy), len(regions.matched_labels)], dim=1)
        extracted.append(ExtractedRegions(regions, own, matched))
    return extracted
