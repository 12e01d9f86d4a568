"""The supervised losses: RPN, boxes, classes, masks."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.detection._utils import BalancedPositiveNegativeSampler, Matcher
from torchvision.ops import box_iou, roi_align

from rncdl.data.samples import Sample
from rncdl.data.unlabelled_objects import WITHOUT_CLASS
from rncdl.detector.boxes import ANCHOR_CODER, REGION_CODER, at_least_float32, paired_iou
from rncdl.detector.map_cache import stack_maps
from rncdl.detector.model import MASK_SIZE, Detector, ImageBatch
from rncdl.detector.proposals import AnchorScores, select_proposals

RPN_POSITIVE_IOU, RPN_NEGATIVE_IOU, ROI_POSITIVE_IOU = 0.7, 0.3, 0.5
"""Overlap with an annotation from which an anchor or a region is an object, or below which none."""
RPN_POSITIVE_SHARE = 0.5
"""Of the sampled anchors."""
RPN_FITTING_IOU = 0.3
"""Overlap from which an anchor teaches how well it fits (`detector.objectness=fit`)."""
PROPOSAL_NMS = 0.7
UNMATCHED = -1
"""Index of the annotation of a box that overlaps none enough."""


class SupervisedStep(nn.Module):
    """Losses of a batch as a module's forward, the form in which DDP can watch it."""

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, samples: Sequence[Sample]) -> dict[str, Tensor]:
        """See `supervised_losses`."""
        return supervised_losses(self.detector, samples)


def supervised_losses(detector: Detector, samples: Sequence[Sample]) -> dict[str, Tensor]:
    """The scalars rpn_objectness, rpn_box, box, class and, where it has such heads, mask and iou.

    Images without annotations teach background.
    """
    settings = detector.settings
    device = detector.device
    batch = batch_of(detector, samples)
    boxes = [sample.boxes_xyxy.to(device, non_blocking=True) for sample in samples]
    labels = [sample.labels.to(device, non_blocking=True) for sample in samples]
    maps = detector.feature_maps(batch)
    scores = detector.score_anchors(maps)
    rpn_objectness, rpn_box = anchor_losses(
        scores,
        boxes,
        positive_iou=RPN_POSITIVE_IOU,
        negative_iou=RPN_NEGATIVE_IOU,
        num_samples=settings.rpn_samples,
        positive_share=RPN_POSITIVE_SHARE,
    )
    if settings.objectness == "fit":
        rpn_objectness = anchor_fit_loss(scores, boxes, num_samples=settings.rpn_samples)
    proposals = select_proposals(
        scores,
        batch.sizes_hw,
        nms=PROPOSAL_NMS,
        before_nms=settings.proposals_before_nms,
        after_nms=settings.proposals_after_nms,
    )
    regions = [
        sample_regions(
            torch.cat((proposal.boxes_xyxy, truth)),
            truth,
            positive_iou=ROI_POSITIVE_IOU,
            num_samples=settings.roi_samples,
            positive_share=settings.roi_positive_share,
        )
        for proposal, truth in zip(proposals, boxes, strict=True)
    ]
    features = detector.region_features(maps, [region.boxes_xyxy for region in regions])
    class_loss, box_loss = region_losses(
        at_least_float32(detector.known_head(features)),
        at_least_float32(detector.box_regressor(features)),
        regions=regions,
        truth_boxes=boxes,
        truth_labels=labels,
    )
    losses = {
        "rpn_objectness": rpn_objectness,
        "rpn_box": rpn_box,
        "box": box_loss,
        "class": class_loss,
    }
    predicted = detector.predict_iou(features)
    if predicted is not None:
        losses["iou"] = iou_loss(predicted, regions=regions, truth_boxes=boxes)
    if detector.mask_head is not None:
        of_masks = mask_loss(detector, maps, regions=regions, samples=samples, with_detail=False)
        losses["mask"] = settings.mask_loss_weight * of_masks
    return losses


def batch_of(detector: Detector, samples: Sequence[Sample]) -> ImageBatch:
    """The samples' images, with their backbone's maps where all samples bring them."""
    batch = detector.batch_images([sample.image for sample in samples])
    maps = [sample.maps for sample in samples if sample.maps is not None]
    if len(maps) == len(samples):
        batch.backbone_maps = stack_maps(maps, detector.device)
    return batch


def anchor_losses(
    scores: AnchorScores,
    truth_boxes: Sequence[Tensor],
    *,
    positive_iou: float,
    negative_iou: float,
    num_samples: int,
    positive_share: float,
) -> tuple[Tensor, Tensor]:
    """The RPN's cross-entropy over sampled anchors and L1 over the positive ones.

    Both are sums divided by `num_samples` times the number of images, so that an image with
    few positives does not count for more.
    """
    matcher = Matcher(positive_iou, negative_iou, allow_low_quality_matches=True)
    matches = [_match(matcher, truth, scores.anchors_xyxy) for truth in truth_boxes]
    is_object = [(match >= 0).float().masked_fill_(match < UNMATCHED, -1) for match in matches]
    sampler = BalancedPositiveNegativeSampler(num_samples, positive_share)
    chosen_positive, chosen_negative = (torch.stack(chosen) for chosen in sampler(is_object))
    image, anchor = chosen_positive.nonzero(as_tuple=True)
    positive_logits = at_least_float32(scores.logits[image, anchor])
    negative_logits = at_least_float32(scores.logits[chosen_negative.bool()])
    objectness = (
        functional.softplus(-positive_logits).sum() + functional.softplus(negative_logits).sum()
    )
    targets = ANCHOR_CODER.encode_single(
        _matched_boxes(truth_boxes, torch.stack(matches), image, anchor),
        scores.anchors_xyxy[anchor],
    )
    box = functional.l1_loss(
        at_least_float32(scores.deltas[image, anchor]), targets, reduction="sum"
    )
    normaliser = num_samples * len(truth_boxes)
    return objectness / normaliser, box / normaliser


def anchor_fit_loss(
    scores: AnchorScores, truth_boxes: Sequence[Tensor], *, num_samples: int
) -> Tensor:
    """Mean L1 between the objectness of sampled anchors on objects and their IoU with these.

    Background teaches nothing, so that an object nobody labelled is not taken for it (OLN).
    """
    matcher = Matcher(RPN_FITTING_IOU, RPN_FITTING_IOU, allow_low_quality_matches=True)
    matches = torch.stack([_match(matcher, truth, scores.anchors_xyxy) for truth in truth_boxes])
    sampler = BalancedPositiveNegativeSampler(num_samples, 1.0)
    chosen, _ = sampler(list((matches >= 0).long()))
    image, anchor = torch.stack(chosen).nonzero(as_tuple=True)
    fits = paired_iou(
        _matched_boxes(truth_boxes, matches, image, anchor), scores.anchors_xyxy[anchor]
    )
    predicted = at_least_float32(scores.logits[image, anchor]).sigmoid()
    return (predicted - fits).abs().sum() / max(1, len(fits))


@dataclass
class SampledRegions:
    """The S regions of one image that a step learns from."""

    boxes_xyxy: Tensor
    """(S, 4)"""
    matches: Tensor
    """(S,) int64, the annotation each one covers, `UNMATCHED` for background"""


@torch.no_grad()
def sample_regions(
    boxes_xyxy: Tensor,
    truth_boxes: Tensor,
    *,
    positive_iou: float,
    num_samples: int,
    positive_share: float,
) -> SampledRegions:
    """At most `num_samples` of the boxes, at most `positive_share` of them on an annotation."""
    matcher = Matcher(positive_iou, positive_iou, allow_low_quality_matches=False)
    matches = _match(matcher, truth_boxes, boxes_xyxy)
    sampler = BalancedPositiveNegativeSampler(num_samples, positive_share)
    ([positive], [negative]) = sampler([(matches >= 0).long()])
    rows = (positive | negative).nonzero().flatten()
    return SampledRegions(boxes_xyxy[rows], matches[rows])


def region_losses(
    class_logits: Tensor,
    box_deltas: Tensor,
    *,
    regions: Sequence[SampledRegions],
    truth_boxes: Sequence[Tensor],
    truth_labels: Sequence[Tensor],
) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy over K + 1 classes, and L1 of the positives per sampled region.

    Regions of objects without a class are left out of the first.
    `class_logits` (R, K + 1) with the background last, `box_deltas` (R, 4), both in the order
    of the regions.
    """
    if not len(class_logits):
        return class_logits.sum(), box_deltas.sum()
    background = class_logits.shape[1] - 1
    matches = torch.cat([region.matches for region in regions])
    positive = (matches >= 0).nonzero().flatten()
    row = matches[positive] + _offsets(regions, truth_boxes)[positive]
    targets = torch.full_like(matches, background)
    targets[positive] = torch.cat(list(truth_labels))[row]
    summed = functional.cross_entropy(
        class_logits, targets, reduction="sum", ignore_index=WITHOUT_CLASS
    )
    class_loss = summed / (targets != WITHOUT_CLASS).sum().clamp(min=1)
    boxes = torch.cat([region.boxes_xyxy for region in regions])[positive]
    encoded = REGION_CODER.encode_single(torch.cat(list(truth_boxes))[row], boxes)
    box_loss = functional.l1_loss(box_deltas[positive], encoded, reduction="sum")
    return class_loss, box_loss / len(class_logits)


def iou_loss(
    predicted: Tensor, *, regions: Sequence[SampledRegions], truth_boxes: Sequence[Tensor]
) -> Tensor:
    """Mean L1 between the IoU (R,) predicted for regions on objects and the one they have.

    Background teaches nothing, so that an object nobody labelled is not taken for it (OLN).
    """
    targets = [
        box_iou(region.boxes_xyxy, truth).gather(1, region.matches.clamp(min=0)[:, None])[:, 0]
        if len(truth)
        else region.boxes_xyxy.new_zeros(len(region.boxes_xyxy))
        for region, truth in zip(regions, truth_boxes, strict=True)
    ]
    positive = torch.cat([region.matches for region in regions]) >= 0
    error = (predicted - torch.cat(targets)).abs() * positive
    return error.sum() / positive.sum().clamp(min=1)


@torch.no_grad()
def crop_masks(masks: Tensor, boxes_xyxy: Tensor, *, mask_index: Tensor, size: int) -> Tensor:
    """(P, size, size) float, 1 where mask `mask_index[p]` covers the cell of box p by half or more.

    `masks` (n, H, W) bool, `boxes_xyxy` (P, 4) in their pixels, `mask_index` (P,).
    """
    used, position = mask_index.unique(return_inverse=True)
    regions = torch.cat((position[:, None].to(boxes_xyxy.dtype), boxes_xyxy), 1)
    cropped = roi_align(masks[used][:, None].to(boxes_xyxy.dtype), regions, size, aligned=True)
    return (cropped[:, 0] >= 0.5).to(boxes_xyxy.dtype)


def mask_loss(
    detector: Detector,
    maps: Sequence[Tensor],
    *,
    regions: Sequence[SampledRegions],
    samples: Sequence[Sample],
    with_detail: bool,
) -> Tensor:
    """Mean cross-entropy of the positives' mask pixels; images without masks are left out."""
    assert detector.mask_head is not None
    boxes, targets = [], []
    for region, sample in zip(regions, samples, strict=True):
        positive = region.matches >= 0
        if sample.masks is None:
            positive = torch.zeros_like(positive)
        boxes.append(region.boxes_xyxy[positive])
        if sample.masks is not None and len(boxes[-1]):
            masks = sample.masks.to(detector.device, non_blocking=True)
            targets.append(
                crop_masks(masks, boxes[-1], mask_index=region.matches[positive], size=MASK_SIZE)
            )
    if not targets:
        # The others wait for this process in every SyncBatchNorm of the head and for every
        # parameter's gradient: one box passes through it, and counts for nothing. (Not none: for
        # an empty input SyncBatchNorm exchanges another number type than for half precision.)
        side_px = float(detector.settings.roi_reference_px)
        boxes[0] = boxes[0].new_tensor([[0.0, 0.0, side_px, side_px]])
        return detector.mask_logits(maps, boxes, with_detail=with_detail).float().sum() * 0
    logits = at_least_float32(detector.mask_logits(maps, boxes, with_detail=with_detail))
    return functional.binary_cross_entropy_with_logits(logits, torch.cat(targets))


def _match(matcher: Matcher, truth_boxes: Tensor, boxes_xyxy: Tensor) -> Tensor:
    """(boxes,) index of each box's annotation; -1 none, -2 neither with nor without one."""
    if not len(truth_boxes) or not len(boxes_xyxy):
        return torch.full((len(boxes_xyxy),), UNMATCHED, device=boxes_xyxy.device)
    return matcher(box_iou(truth_boxes, boxes_xyxy))


def _matched_boxes(
    truth_boxes: Sequence[Tensor], matches: Tensor, image: Tensor, box: Tensor
) -> Tensor:
    """The annotation of each pair (image, box); `matches` (B, boxes)."""
    starts = torch.tensor([0] + [len(t) for t in truth_boxes[:-1]], device=box.device).cumsum(0)
    return torch.cat(list(truth_boxes))[starts[image] + matches[image, box]]


def _offsets(regions: Sequence[SampledRegions], truth_boxes: Sequence[Tensor]) -> Tensor:
    """(R,) where the annotations of each region's image begin among those of the batch."""
    starts, start = [], 0
    for region, truth in zip(regions, truth_boxes, strict=True):
        starts.append(torch.full_like(region.matches, start))
        start += len(truth)
    return torch.cat(starts)
