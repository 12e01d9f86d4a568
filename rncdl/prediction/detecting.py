"""From a batch of images to its detections."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.ops import nms as suppress

from rncdl.data.samples import Sample, to_original_pixels
from rncdl.detector.boxes import has_area
from rncdl.detector.locating import Located, RegionCache, Search, locate
from rncdl.detector.model import Detector, ImageBatch
from rncdl.detector.pasting import paste_masks
from rncdl.prediction.classifier import Classifier
from rncdl.regions import Regions


@dataclass(frozen=True)
class Limits:
    """Which regions are looked at, and which detections are kept."""

    search: Search
    min_score: float
    nms: float
    """per class"""
    max_detections: int
    """per image"""


@dataclass(frozen=True)
class Detected:
    """What was found in a batch of images, still on the device."""

    samples: Sequence[Sample]
    chosen: "list[list[_Chosen]]"
    """per classifier, per image"""
    used: list[Tensor]
    """per image, the regions that some classifier chose"""
    original_boxes: list[Tensor]
    """per image (r, 4), in pixels of the image on disk"""
    objectness: list[Tensor]
    features: Sequence[Tensor] | None
    masks: Tensor | None
    """(U, S, S) probabilities of all images' used regions"""

    def regions(self) -> list[list[Regions]]:
        """For each classifier, each image's detections, the best first, with masks as run lengths.

        Waits for the device, and then works on the CPU alone.
        """
        rles = None if self.masks is None else self._paste(self.masks.cpu())
        return [
            [
                Regions(
                    boxes_xyxy=self.original_boxes[i][picked.rows],
                    scores=picked.scores,
                    labels=picked.labels,
                    objectness=self.objectness[i][picked.rows],
                    features=None if self.features is None else self.features[i][picked.rows],
                    rles=None if rles is None else [rles[i][row] for row in picked.rows.tolist()],
                    within_cut=picked.within_cut,
                    size_hw=self.samples[i].original_size,
                )
                for i, picked in enumerate(of_classifier)
            ]
            for of_classifier in self.chosen
        ]

    def _paste(self, masks: Tensor) -> list[dict[int, dict]]:
        """Of each image, region -> its mask, for the regions in use; a region has one mask."""
        counts = [len(rows) for rows in self.used]
        rows_of = torch.cat(self.used).cpu().split(counts)
        together = [boxes[rows] for boxes, rows in zip(self.original_boxes, self.used, strict=True)]
        boxes_of = torch.cat(together).cpu().split(counts)
        pasted = map(
            paste_masks,
            masks.split(counts),
            boxes_of,
            [sample.original_size for sample in self.samples],
        )
        return [
            dict(zip(rows.tolist(), of_image, strict=True))
            for rows, of_image in zip(rows_of, pasted, strict=True)
        ]


@torch.no_grad()
def detect(
    detector: Detector,
    samples: Sequence[Sample],
    classifiers: Sequence[Classifier],
    *,
    limits: Limits,
    with_masks: bool = True,
    with_features: bool = False,
    cache: RegionCache | None = None,
) -> Detected:
    """What each classifier finds in each image.

    The detector is in evaluation mode; it looks at the images once for all classifiers, and those
    that give the same probabilities are asked once. Annotations of the samples are not looked at.
    Masks come with it where the detector has a mask head and they are wanted; features are those
    of the box that a detection was refined from. `cache` spares the search for regions in images
    that were searched before, by the same detector and limits.
    """
    batch = detector.batch_images([sample.image for sample in samples])
    wants_masks = with_masks and detector.mask_head is not None
    keys = [sample.image_index for sample in samples]
    located = None if cache is None else cache.get(keys)
    maps: list[Tensor] = []
    if located is None or wants_masks:
        maps = detector.feature_maps(batch)
    if located is None:
        located = locate(detector, maps, batch, search=limits.search)
    if cache is not None:
        cache.keep(keys, located)
    chosen = _choose_by_each(classifiers, located, batch, limits=limits)
    used = [
        torch.unique(torch.cat([of_classifier[i].rows for of_classifier in chosen]))
        for i in range(len(samples))
    ]
    masks = None
    if wants_masks:
        boxes = [image_boxes[rows] for image_boxes, rows in zip(located.boxes, used, strict=True)]
        masks = detector.mask_logits(maps, boxes).float().sigmoid()
    counts = [len(image_boxes) for image_boxes in located.boxes]
    return Detected(
        samples=samples,
        chosen=chosen,
        used=used,
        original_boxes=[
            to_original_pixels(image_boxes, sample)
            for image_boxes, sample in zip(located.boxes, samples, strict=True)
        ],
        objectness=located.objectness,
        features=located.features.float().split(counts) if with_features else None,
        masks=masks,
    )


def _choose_by_each(
    classifiers: Sequence[Classifier], located: Located, batch: ImageBatch, *, limits: Limits
) -> "list[list[_Chosen]]":
    """Per classifier, per image, the best detections."""
    counts = [len(image_boxes) for image_boxes in located.boxes]
    objectness = torch.cat(located.objectness)
    probabilities: dict[tuple[int, ...], Tensor] = {}
    chosen = []
    for classifier in classifiers:
        if classifier.source not in probabilities:
            probabilities[classifier.source] = classifier.probabilities(
                located.features, batch=batch, boxes=located.boxes
            )
        scores = classifier.scores(
            probabilities[classifier.source], objectness, located.localisation
        )
        chosen.append(
            [
                _choose(image_boxes, image_scores, wanted=classifier.wanted, limits=limits)
                for image_boxes, image_scores in zip(
                    located.boxes, scores.split(counts), strict=True
                )
            ]
        )
    return chosen


@dataclass
class _Chosen:
    """Detections of one image: region, output, score, and whether the plain cut has it too."""

    rows: Tensor
    labels: Tensor
    scores: Tensor
    within_cut: Tensor


def _choose(
    boxes_xyxy: Tensor, scores: Tensor, *, wanted: Tensor | None, limits: Limits
) -> _Chosen:
    """The best detections of the wanted outputs, and which of them are among the best of all."""
    usable = has_area(boxes_xyxy).nonzero().flatten()
    boxes, scores = boxes_xyxy[usable], scores[usable]

    def best(of_scores: Tensor) -> tuple[Tensor, Tensor]:
        return best_detections(
            boxes,
            of_scores,
            min_score=limits.min_score,
            nms=limits.nms,
            max_detections=limits.max_detections,
        )

    row, label = best(scores)
    within_cut = torch.ones_like(row, dtype=torch.bool)
    if wanted is not None and not bool(wanted.all()):
        of_all = row * scores.shape[1] + label
        row, label = best(scores * wanted.to(scores))
        within_cut = torch.isin(row * scores.shape[1] + label, of_all)
    return _Chosen(usable[row], label, scores[row, label], within_cut)


def best_detections(
    boxes_xyxy: Tensor, scores: Tensor, *, min_score: float, nms: float, max_detections: int
) -> tuple[Tensor, Tensor]:
    """Row and class (D,) of the best detections after NMS within each class, the best first.

    `boxes_xyxy` (R, 4), `scores` (R, C); a detection's score is above `min_score`.
    """
    # Greedy NMS goes down the scores, so what it keeps of the best n candidates does not depend
    # on the rest: n grows until enough are kept, and the millions below are never touched.
    flat = scores.flatten()
    count = 4 * max_detections
    while True:
        best, index = flat.topk(min(count, len(flat)))
        index = index[best > min_score]
        row, label = index // scores.shape[1], index % scores.shape[1]
        kept = _suppress_within_class(boxes_xyxy[row], label, nms=nms)
        if len(kept) >= max_detections or len(index) < count:
            kept = kept[:max_detections].to(row.device)
            return row[kept], label[kept]
        count *= 4


def _suppress_within_class(boxes_xyxy: Tensor, labels: Tensor, *, nms: float) -> Tensor:
    """Positions kept of candidates sorted from the best.

    Each class is moved to a place of its own: in double precision, for with thousands of
    classes float32 would lose the pixels' fractions; on the CPU where the device has none.
    """
    if not len(boxes_xyxy):
        return labels
    if boxes_xyxy.device.type == "mps":
        boxes_xyxy, labels = boxes_xyxy.cpu(), labels.cpu()
    boxes = boxes_xyxy.double()
    shift = labels * (boxes.max() + 1)
    ranks = torch.arange(len(boxes), 0, -1, dtype=boxes.dtype, device=boxes.device)
    return suppress(boxes + shift[:, None], ranks, nms)
