"""From images to detections."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.ops import nms as suppress

from rncdl.data.samples import Sample
from rncdl.detector.boxes import has_area
from rncdl.detector.locating import Limits, Sightings, locate
from rncdl.detector.model import Detector, ImageBatch
from rncdl.detector.pasting import paste_masks
from rncdl.regions import Regions

Classify = Callable[[Tensor], Tensor]
"""Region features (R, F) to class probabilities (R, C), without a background."""


class LooksAtPixels(ABC):
    """A classifier that looks at the images themselves and not at the detector's features."""

    @abstractmethod
    def classify_boxes(self, batch: ImageBatch, boxes: Sequence[Tensor]) -> Tensor:
        """(R, C) probabilities of all images' boxes in their order.

        `boxes`: one (r, 4) per image, in pixels of the network's input; some may have no area.
        """


RegionClassifier = Classify | LooksAtPixels


def classify_regions(
    classifier: RegionClassifier, features: Tensor, *, batch: ImageBatch, boxes: Sequence[Tensor]
) -> Tensor:
    """(R, C) probabilities of regions, by their features (R, F) or by their place in the image."""
    if isinstance(classifier, LooksAtPixels):
        return classifier.classify_boxes(batch, boxes)
    return classifier(features)


@dataclass(frozen=True)
class Reading:
    """One way to read an image's regions: how they are classified, which outputs are wanted."""

    classify: RegionClassifier
    wanted: Tensor | None = None
    """(C,) bool: only these outputs are detected; None: all"""
    by_objectness: bool = False
    """scores are multiplied by the RPN's probability that the region is an object"""


def known_probabilities(detector: Detector, features: Tensor) -> Tensor:
    """(R, K) probabilities of the known classes; what is left to one is the background's."""
    with torch.autocast(features.device.type, enabled=False):
        return detector.known_head(features.float()).softmax(1)[:, :-1]


@dataclass(frozen=True)
class Detected:
    """What was found in a batch of images, still on the device."""

    samples: Sequence[Sample]
    chosen: "list[list[_Chosen]]"
    """per reading, per image"""
    used: list[Tensor]
    """per image, the regions that some reading chose"""
    original_boxes: list[Tensor]
    """per image (r, 4), in pixels of the image on disk"""
    objectness: list[Tensor]
    features: Sequence[Tensor] | None
    masks: Tensor | None
    """(U, S, S) probabilities of all images' used regions"""

    def regions(self) -> list[list[Regions]]:
        """For each reading, each image's detections, the best first, with masks as run lengths.

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
                for i, picked in enumerate(of_reading)
            ]
            for of_reading in self.chosen
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
    readings: Sequence[Reading],
    *,
    limits: Limits,
    with_masks: bool = True,
    with_features: bool = False,
    sightings: Sightings | None = None,
) -> Detected:
    """What each reading finds in each image.

    The detector is in evaluation mode; it looks at the images once for all readings, and readings
    that share a classifier ask it once. Annotations of the samples are not looked at. Masks come
    with it where the detector has a mask head and they are wanted; features are those of the
    box that a detection was refined from. `sightings` spare the search for regions in images that
    were searched before, by the same detector and limits.
    """
    batch = detector.batch_images([sample.image for sample in samples])
    wants_masks = with_masks and detector.mask_head is not None
    keys = [sample.image_index for sample in samples]
    seen = None if sightings is None else sightings.recall(keys)
    maps: list[Tensor] = []
    if seen is None or wants_masks:
        maps = detector.feature_maps(batch)
    located = seen or locate(detector, maps, batch, limits=limits)
    if sightings is not None:
        sightings.keep(keys, located)
    counts = [len(b) for b in located.boxes]
    objectness = torch.cat(located.objectness).float().sigmoid()
    chosen = []
    scored = _score_regions(readings, located.features, batch=batch, boxes=located.boxes)
    for reading, scores in scored:
        if reading.by_objectness:
            scores = scores * objectness[:, None]
        chosen.append(
            [
                _choose(image_boxes, image_scores, wanted=reading.wanted, limits=limits)
                for image_boxes, image_scores in zip(
                    located.boxes, scores.split(counts), strict=True
                )
            ]
        )
    used = [
        torch.unique(torch.cat([of_reading[i].rows for of_reading in chosen]))
        for i in range(len(samples))
    ]
    masks = None
    if wants_masks:
        boxes = [image_boxes[rows] for image_boxes, rows in zip(located.boxes, used, strict=True)]
        masks = detector.mask_logits(maps, boxes).float().sigmoid()
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


def _score_regions(
    readings: Sequence[Reading], features: Tensor, *, batch: ImageBatch, boxes: Sequence[Tensor]
) -> Iterator[tuple[Reading, Tensor]]:
    """Each reading with its probabilities (R, C); a classifier is asked once."""
    found: dict[int, Tensor] = {}
    for reading in readings:
        key = id(reading.classify)
        if key not in found:
            found[key] = classify_regions(reading.classify, features, batch=batch, boxes=boxes)
        yield reading, found[key]


def to_original_pixels(boxes_xyxy: Tensor, sample: Sample) -> Tensor:
    """Boxes (R, 4) of the sample's image in the pixels of the image on disk."""
    height, width = sample.original_size
    scale_y, scale_x = height / sample.image.shape[1], width / sample.image.shape[2]
    return boxes_xyxy * boxes_xyxy.new_tensor((scale_x, scale_y, scale_x, scale_y))


def to_sample_pixels(boxes_xyxy: Tensor, sample: Sample) -> Tensor:
    """Boxes (R, 4) of the image on disk in the pixels of the sample's image."""
    height, width = sample.original_size
    scale_y, scale_x = sample.image.shape[1] / height, sample.image.shape[2] / width
    return boxes_xyxy * boxes_xyxy.new_tensor((scale_x, scale_y, scale_x, scale_y))


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
