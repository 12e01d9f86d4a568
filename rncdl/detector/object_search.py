"""A look through the labelled images for objects that nobody labelled (ours).

A region that the RPN takes for an object, that no annotation covers, and whose box a segmenter that
knows no class confirms, is taken for one. The detector that has found them learns from them
afterwards what objects beyond the known classes look like.

A segmenter that needs no regions can look by itself (`train.objects_from=segmenter`): it finds
objects where the RPN, for which they were background, proposes nothing.

A finished detector that looks again also says how well its regions fit, and where in them the
objects are: the segmenter then begins from its masks.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from torch import Tensor
from torchvision.ops import box_iou, masks_to_boxes, nms

from rncdl.classes import KnownLabels
from rncdl.config import Settings
from rncdl.data.batch_loader import Batch, BatchLoader
from rncdl.data.datasets import ItemKey, PlainImages
from rncdl.data.masks import encode_rle, rle_to_json
from rncdl.data.samples import Sample, to_original_pixels, to_sample_pixels
from rncdl.data.transforms import resize_masks
from rncdl.data.unlabelled_objects import FoundObject, ObjectsFolder, UnlabelledObjects
from rncdl.detector.boxes import clip_boxes
from rncdl.detector.locating import Search, locate
from rncdl.detector.losses import PROPOSAL_NMS
from rncdl.detector.mask_boxes import enlarge
from rncdl.detector.model import Detector
from rncdl.errors import UserError
from rncdl.origins import digest
from rncdl.segmentation.segmenter import Proposer, Segmenter, open_segmenter
from rncdl.training.processes import Processes, autocast, choose_precision
from rncdl.training.progress import ProgressLine, say

IMAGES_PER_PART = 128
"""Images whose objects are written together: so many are looked at again after an interruption."""
_MAX_ANNOTATED_IOU = 0.3
_MAX_SHARED = 0.6
"""Share of what a segmenter proposes that may lie in an annotated box: more is a part of it."""
_MIN_FILL, _MAX_FILL = 0.25, 0.97
"""Share of its box that an object's mask covers: less is a splinter, more is no outline at all."""
_NMS = 0.4
_REGIONS_PER_IMAGE = 50
_PROPOSED_PER_IMAGE = 100
_REFINEMENTS = 2
_MIN_SIDE_PX = 8
_MARGIN = 1.2
"""So much larger than the region is the box in which its object is looked for."""
_MIN_PREDICTED_IOU = 0.7
"""How well a finished detector must take a region to fit. 97 % of such regions of a drawn world are
objects, and the masks of these have IoU 0.82 with the drawn ones; from 0.65 on 87 % and 0.81."""


@dataclass(frozen=True)
class ObjectSearch:
    """What is needed to look for objects."""

    segmenter: Segmenter
    min_score: float
    """objectness of a region"""
    min_iou: float
    """of a region's box with that of its mask"""
    per_image: int
    """the most objects of an image"""
    regions: Search
    """which regions are looked at"""
    by_finished_detector: bool = False
    """whether what the detector predicts is trusted: how well regions fit, and masks"""
    proposer: Proposer | None = None
    """looks through whole images in place of the detector"""

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        device: torch.device,
        *,
        wanted_by: Literal["objects_at", "mask_steps"] = "objects_at",
    ) -> "ObjectSearch":
        """As the settings say, with a segmenter on the device; without one there is none.

        `wanted_by`: the setting of `train` that wants it; with `mask_steps` it is the look of a
        finished detector.
        """
        segmenter = open_segmenter(settings.segmentation, device)
        if segmenter is None:
            raise UserError(
                f"train.{wanted_by}={getattr(settings.train, wanted_by)} looks for objects that "
                "nobody labelled, and needs a segmenter to confirm them: set "
                f"segmentation.segmenter=grabcut or sam, or train.{wanted_by}=0."
            )
        by_finished_detector = wanted_by == "mask_steps"
        proposer = None
        if settings.train.objects_from == "segmenter" and not by_finished_detector:
            if not isinstance(segmenter, Proposer):
                raise UserError(
                    "train.objects_from=segmenter needs one that finds objects by itself: set "
                    "segmentation.segmenter=sam, or train.objects_from=regions."
                )
            proposer = segmenter
        return cls(
            segmenter,
            settings.train.objects_min_score,
            settings.train.objects_min_iou,
            settings.train.objects_per_image,
            Search(
                before_nms=settings.predict.proposals_before_nms,
                nms=PROPOSAL_NMS,
                per_image=_REGIONS_PER_IMAGE,
                refinements=_REFINEMENTS,
            ),
            by_finished_detector=by_finished_detector,
            proposer=proposer,
        )


def look_for_objects(
    detector: Detector,
    labels: KnownLabels,
    search: ObjectSearch,
    folder: ObjectsFolder,
    *,
    settings: Settings,
    processes: Processes,
) -> UnlabelledObjects:
    """The objects of all labelled images, from the folder as far as they are there.

    Every process calls this, looks at its share of the images and is given all that was found.
    """
    num_parts = -(-len(labels.annotations.images) // IMAGES_PER_PART)
    origin = _origin(detector, labels, search, settings)
    processes.from_main(partial(folder.begin, origin))
    missing = processes.from_main(partial(folder.missing, num_parts))
    own = missing[processes.rank :: processes.count]
    batches = [_batches_of(part, labels, settings.predict.batch_size) for part in own]
    loaded = _load([batch for of_part in batches for batch in of_part], labels, settings)
    is_training = detector.training
    detector.eval()
    images = len(labels.annotations.images)
    done = images - min(images, len(missing) * IMAGES_PER_PART)
    with ProgressLine(
        "objects", images, unit="images", start=done, shown=processes.is_main
    ) as progress:
        for part, of_part in zip(own, batches, strict=True):
            found: list[FoundObject] = []
            for keys in of_part:
                found += _look_at(detector, next(loaded).samples, labels, search, settings)
                progress.advance(min(processes.count * len(keys), images - progress.done))
            folder.write(part, found)
    detector.train(is_training)
    processes.wait_for_all()
    objects = folder.read()
    if processes.is_main:
        say(f"{len(objects)} objects that nobody labelled, in {images} images: {folder.path}")
    return objects


def _origin(
    detector: Detector, labels: KnownLabels, search: ObjectSearch, settings: Settings
) -> dict[str, Any]:
    """Everything that the objects depend on."""
    values = [value.detach().cpu().contiguous() for value in detector.state_dict().values()]
    annotations, data, train = labels.annotations, settings.data, settings.train
    images = [[str(image.path), image.height, image.width] for image in annotations.images]
    return {
        "found_by": _found_by(search),
        "detector": digest(*(value.numpy().tobytes() for value in values)),
        "images": digest(json.dumps(images).encode()),
        "annotations": digest(annotations.image_index.tobytes(), annotations.boxes_xyxy.tobytes()),
        "images_per_part": IMAGES_PER_PART,
        "batch_size": settings.predict.batch_size,
        "proposals_before_nms": settings.predict.proposals_before_nms,
        "short_side_px": data.eval_short_side_px,
        "long_side_px": data.long_side_px,
        "precision": train.precision,
        "min_score": train.objects_min_score,
        "min_iou": train.objects_min_iou,
        "per_image": train.objects_per_image,
        "segmentation": settings.segmentation.model_dump(mode="json"),
    }


def _found_by(search: ObjectSearch) -> str:
    if search.proposer is not None:
        return "the segmenter, beside what is annotated"
    if search.by_finished_detector:
        return f"the finished detector, from a predicted IoU of {_MIN_PREDICTED_IOU} on"
    return "the detector in training"


def _batches_of(part: int, labels: KnownLabels, batch_size: int) -> list[list[ItemKey]]:
    """The images of a part, in batches that are the same however many processes share them."""
    first = part * IMAGES_PER_PART
    last = min(first + IMAGES_PER_PART, len(labels.annotations.images))
    return [
        [(index, 0) for index in range(start, min(start + batch_size, last))]
        for start in range(first, last, batch_size)
    ]


def _load(
    batches: list[list[ItemKey]], labels: KnownLabels, settings: Settings
) -> Iterator[Batch[Sample]]:
    data = settings.data
    dataset = PlainImages(
        labels.annotations.images,
        short_side_px=data.eval_short_side_px,
        long_side_px=data.long_side_px,
        on_bad_image=data.on_bad_image,
    )
    return iter(BatchLoader(dataset, batches, workers=data.workers))


@torch.inference_mode()
def _look_at(
    detector: Detector,
    samples: Sequence[Sample],
    labels: KnownLabels,
    search: ObjectSearch,
    settings: Settings,
) -> list[FoundObject]:
    if not samples:
        return []
    if search.proposer is not None:
        return [
            one for sample in samples for one in _proposed(sample, labels, search, search.proposer)
        ]
    precision = choose_precision(settings.train.precision, detector.device)
    with autocast(detector.device, precision):
        batch = detector.batch_images([sample.image for sample in samples])
        maps = detector.feature_maps(batch)
        located = locate(detector, maps, batch, search=search.regions)
    found: list[FoundObject] = []
    for i, (sample, logits) in enumerate(zip(samples, located.objectness, strict=True)):
        boxes, scores = located.boxes[i].float().cpu(), logits.float().sigmoid().cpu()
        rows = free_regions(boxes, scores, _annotated(sample, labels), search)
        boxes, scores = boxes[rows], scores[rows]
        if search.by_finished_detector:
            of_image = [level[i : i + 1] for level in maps]
            with autocast(detector.device, precision):
                fits = well_fitting(detector, of_image, boxes)
                boxes, scores = boxes[fits], scores[fits]
                masks = cut_out_by_masks(detector, of_image, sample.image, boxes, search.segmenter)
        else:
            masks = cut_out(sample.image, boxes, search.segmenter)
        kept, fitted = confirmed(boxes, masks, min_iou=search.min_iou)
        found += _as_found(sample, fitted, scores[kept], masks[kept])
    return found


def _proposed(
    sample: Sample, labels: KnownLabels, search: ObjectSearch, proposer: Proposer
) -> Iterator[FoundObject]:
    """What the segmenter takes for objects in an image, and nobody has annotated."""
    pixels = np.ascontiguousarray(sample.image.permute(1, 2, 0).numpy())
    annotated = _annotated(sample, labels)
    proposed = proposer.propose(pixels, limit=_PROPOSED_PER_IMAGE, taken_xyxy=annotated.numpy())
    masks, scores = torch.from_numpy(proposed.masks), torch.from_numpy(proposed.scores).float()
    rows, boxes = outlined(masks)
    whole = ~parts_of(boxes, annotated)
    rows, boxes = rows[whole], boxes[whole]
    free = free_regions(boxes, scores[rows], annotated, search)
    return _as_found(sample, boxes[free], scores[rows[free]], masks[rows[free]])


def _annotated(sample: Sample, labels: KnownLabels) -> Tensor:
    """(n, 4) annotated boxes in the sample's pixels."""
    rows = labels.annotations.rows_of_image(sample.image_index)
    return to_sample_pixels(torch.from_numpy(labels.annotations.boxes_xyxy[rows]).float(), sample)


def free_regions(
    boxes_xyxy: Tensor, scores: Tensor, annotated_xyxy: Tensor, search: ObjectSearch
) -> Tensor:
    """Rows of the likeliest regions that no annotation covers, after NMS."""
    usable = (scores > search.min_score) & (
        boxes_xyxy[:, 2:] - boxes_xyxy[:, :2] > _MIN_SIDE_PX
    ).all(1)
    if len(annotated_xyxy):
        usable &= box_iou(boxes_xyxy, annotated_xyxy).amax(1) < _MAX_ANNOTATED_IOU
    rows = usable.nonzero().flatten()
    return rows[nms(boxes_xyxy[rows], scores[rows], _NMS)[: search.per_image]]


def parts_of(boxes_xyxy: Tensor, annotated_xyxy: Tensor) -> Tensor:
    """(R,) bool, which boxes lie for the most part in an annotated one."""
    if not len(annotated_xyxy):
        return torch.zeros(len(boxes_xyxy), dtype=torch.bool)
    corners = torch.maximum(boxes_xyxy[:, None, :2], annotated_xyxy[:, :2])
    opposite = torch.minimum(boxes_xyxy[:, None, 2:], annotated_xyxy[:, 2:])
    shared = (opposite - corners).clamp(min=0).prod(2).amax(1)
    return shared > _MAX_SHARED * (boxes_xyxy[:, 2:] - boxes_xyxy[:, :2]).prod(1)


def cut_out(image: Tensor, boxes_xyxy: Tensor, segmenter: Segmenter) -> Tensor:
    """(R, H, W) bool masks of the objects in an image's (3, H, W) boxes, looked for around them."""
    shown = clip_boxes(enlarge(boxes_xyxy, _MARGIN), torch.tensor(image.shape[1:]))
    pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
    return torch.from_numpy(segmenter.segment(pixels, shown.numpy()))


def well_fitting(detector: Detector, maps: Sequence[Tensor], boxes_xyxy: Tensor) -> Tensor:
    """(R,) bool, which boxes of one image the detector takes to fit their objects.

    All, where it has not learned to tell.
    """
    features = detector.region_features(maps, [boxes_xyxy.to(detector.device)])
    predicted = detector.predict_iou(features)
    if predicted is None:
        return torch.ones(len(boxes_xyxy), dtype=torch.bool)
    return predicted.cpu() > _MIN_PREDICTED_IOU


def cut_out_by_masks(
    detector: Detector,
    maps: Sequence[Tensor],
    image: Tensor,
    boxes_xyxy: Tensor,
    segmenter: Segmenter,
) -> Tensor:
    """As `cut_out`, but the segmenter begins from the detector's own masks."""
    if detector.mask_head is None:
        return cut_out(image, boxes_xyxy, segmenter)
    shown = clip_boxes(enlarge(boxes_xyxy, _MARGIN), torch.tensor(image.shape[1:]))
    logits = detector.mask_logits(maps, [shown.to(detector.device)])
    guesses = logits.float().sigmoid().cpu().numpy()
    pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
    return torch.from_numpy(segmenter.refine(pixels, shown.numpy(), guesses))


def confirmed(boxes_xyxy: Tensor, masks: Tensor, *, min_iou: float) -> tuple[Tensor, Tensor]:
    """Rows of the regions (R, 4) whose masks (R, H, W) agree with them, and those masks' boxes."""
    rows, extents = outlined(masks)
    agrees = box_iou(boxes_xyxy[rows], extents).diagonal() > min_iou
    return rows[agrees], extents[agrees]


def outlined(masks: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of the masks (R, H, W) that fill their boxes as objects do, and those boxes."""
    rows = masks.flatten(1).any(1).nonzero().flatten()
    extents = masks_to_boxes(masks[rows]) + torch.tensor([0, 0, 1, 1])
    fill = masks[rows].flatten(1).sum(1) / (extents[:, 2:] - extents[:, :2]).prod(1)
    fits = (fill > _MIN_FILL) & (fill < _MAX_FILL)
    return rows[fits], extents[fits]


def _as_found(
    sample: Sample, boxes_xyxy: Tensor, scores: Tensor, masks: Tensor
) -> Iterator[FoundObject]:
    """The objects in pixels of the image on disk."""
    boxes = to_original_pixels(boxes_xyxy, sample).tolist()
    full = resize_masks(masks, sample.original_size).numpy()
    for box, score, mask in zip(boxes, scores.tolist(), full, strict=True):
        runs = msgspec.json.encode(rle_to_json(encode_rle(mask)))
        yield FoundObject(sample.image_index, tuple(box), score, msgspec.Raw(runs))
