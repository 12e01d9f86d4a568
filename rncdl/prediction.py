"""From images to detections, a batch at a time."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rncdl.config import PredictSettings, Settings
from rncdl.data.batch_loader import Batch, BatchLoader
from rncdl.data.batches import EvaluationBatches
from rncdl.data.datasets import BadImage, PlainImages
from rncdl.data.records import AnnotationSet, ImageRecord
from rncdl.data.samples import Sample
from rncdl.detections import Detections
from rncdl.detector.inference import (
    Classify,
    Detected,
    Reading,
    RegionClassifier,
    classify_regions,
    detect,
    known_probabilities,
    to_original_pixels,
    to_sample_pixels,
)
from rncdl.detector.locating import Limits, Sightings, locate
from rncdl.detector.model import Detector
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.regions import Regions
from rncdl.training.prefetching import map_behind
from rncdl.training.processes import Processes, autocast, choose_precision
from rncdl.training.progress import ProgressLine


def classify_as_trained(detector: Detector) -> Classify:
    """The supervised detector's own classification: K probabilities, less the background's."""
    return partial(known_probabilities, detector)


def known_classifier(detector: Detector, predict: PredictSettings) -> Classify | None:
    """Who classifies the known classes in place of a discovery's heads; None: nobody."""
    return classify_as_trained(detector) if predict.known == "trained" else None


def classify_with_head(
    heads: DiscoveryHeads, head: int, *, score: str, known: Classify | None = None
) -> Classify:
    """K + N probabilities by one novel head; `foreground` weighs them by that of an object.

    `known`: classifies the known classes in place of the heads, in probabilities that leave the
    background its own.
    """

    def classify(features: Tensor) -> Tensor:
        probabilities = heads.probabilities(features.float(), head)
        if score == "foreground":
            probabilities = probabilities * heads.foreground(features.float())[:, None]
        if known is not None:
            clusters = probabilities[:, heads.num_known :]
            probabilities = torch.cat([known(features), clusters], 1)
        return probabilities

    return classify


def classify_known_only(
    heads: DiscoveryHeads, *, score: str, known: Classify | None = None
) -> Classify:
    """K probabilities that sum to one, by the heads or by `known`: the clusters are not asked."""

    def classify(features: Tensor) -> Tensor:
        if known is None:
            probabilities = heads.known(features.float()).softmax(1)
        else:
            probabilities = functional.normalize(known(features), p=1)
        if score == "foreground":
            probabilities = probabilities * heads.foreground(features.float())[:, None]
        return probabilities

    return classify


def limits_of(predict: PredictSettings) -> Limits:
    """What is kept of the regions, from the settings."""
    return Limits(
        proposals_before_nms=predict.proposals_before_nms,
        proposals_after_nms=predict.proposals_after_nms,
        proposal_nms=predict.proposal_nms,
        min_score=predict.min_score,
        nms=predict.nms,
        max_detections=predict.max_detections,
        refinements=predict.refinements,
        mask_share=predict.mask_share,
    )


def load_batches(
    images: Sequence[ImageRecord],
    *,
    settings: Settings,
    processes: Processes,
    title: str,
    start_batch: int = 0,
) -> Generator[Batch[Sample], None, None]:
    """This process's share of the images in batches, from `start_batch` on, counted on the screen.

    Images that cannot be read are told in their batch where the settings say so; otherwise they
    are an error.
    """
    data = settings.data
    dataset = PlainImages(
        images,
        short_side_px=data.eval_short_side_px,
        long_side_px=data.long_side_px,
        on_bad_image=data.on_bad_image,
    )
    batches = EvaluationBatches(
        len(images),
        batch_size=settings.predict.batch_size,
        rank=processes.rank,
        world_size=processes.count,
        start_batch=start_batch,
    )
    done = min(len(images), start_batch * settings.predict.batch_size * processes.count)
    with ProgressLine(
        title, len(images), unit="images", start=done, shown=processes.is_main
    ) as progress:
        for batch in BatchLoader(dataset, batches, workers=data.workers):
            yield batch
            progress.advance(processes.count * (len(batch.samples) + len(batch.bad_images)))


def detect_samples(
    detector: Detector,
    samples: Sequence[Sample],
    readings: Sequence[Reading],
    *,
    settings: Settings,
    with_masks: bool = True,
    with_features: bool = False,
    sightings: Sightings | None = None,
) -> Detected:
    """What `detect` finds by the settings' limits, on the detector's device in its precision."""
    device = detector.device
    with autocast(device, choose_precision(settings.train.precision, device)):
        return detect(
            detector,
            samples,
            readings,
            limits=limits_of(settings.predict),
            with_masks=with_masks,
            with_features=with_features,
            sightings=sightings,
        )


def predict_images(
    detector: Detector,
    images: Sequence[ImageRecord],
    readings: Sequence[Reading],
    *,
    settings: Settings,
    processes: Processes,
    skipped: list[BadImage],
    with_masks: bool = True,
    sightings: Sightings | None = None,
) -> Iterator[list[Detections]]:
    """For each batch of this process's share of the images, the detections of each reading.

    Their `category_ids` are output indices. `sightings`: of these very images. While a GPU looks at
    one batch, a thread draws the masks of the batch before.
    """
    detector.to(processes.device).eval()

    def found_in_batches() -> Iterator[Detected]:
        for batch in load_batches(images, settings=settings, processes=processes, title="predict"):
            skipped.extend(batch.bad_images)
            if batch.samples:
                yield detect_samples(
                    detector,
                    batch.samples,
                    readings,
                    settings=settings,
                    with_masks=with_masks,
                    sightings=sightings,
                )

    def columns(found: Detected) -> list[Detections]:
        records = [images[sample.image_index] for sample in found.samples]
        return [to_detections(of_reading, records) for of_reading in found.regions()]

    if processes.device.type == "cpu":
        yield from map(columns, found_in_batches())
    else:
        yield from map_behind(columns, found_in_batches())


def to_detections(found: Sequence[Regions], images: Sequence[ImageRecord]) -> Detections:
    """The regions of several images as columns; `category_ids` are output indices."""
    parts = []
    for regions, image in zip(found, images, strict=True):
        assert regions.labels is not None
        assert regions.scores is not None
        assert regions.within_cut is not None
        parts.append(
            Detections(
                image_ids=np.full(len(regions), image.id, dtype=np.int64),
                category_ids=regions.labels.cpu().numpy(),
                scores=regions.scores.float().cpu().numpy(),
                boxes_xyxy=regions.boxes_xyxy.float().cpu().numpy(),
                rles=regions.rles,
                within_cut=regions.within_cut.cpu().numpy(),
            )
        )
    return Detections.concatenate(parts)


def look_at_annotations(
    detector: Detector,
    truth: AnnotationSet,
    classifiers: Sequence[RegionClassifier],
    *,
    settings: Settings,
    processes: Processes,
    skipped: list[BadImage],
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What the network makes of the annotated boxes, and where it would look by itself.

    Returns for each classifier the best output (A,) of every annotation's box, -1 where its image
    was skipped, and for each image its refined proposals (P, 4), not fitted to masks, best first.
    For evaluation only.
    """
    device = processes.device
    precision = choose_precision(settings.train.precision, device)
    # Masks of all regions would cost more than all the rest.
    limits = replace(limits_of(settings.predict), mask_share=0.0)
    outputs = [np.full(len(truth.category_ids), -1, dtype=np.int64) for _ in classifiers]
    proposals: dict[int, np.ndarray] = {}
    detector.to(device).eval()
    for loaded in load_batches(truth.images, settings=settings, processes=processes, title="look"):
        skipped.extend(loaded.bad_images)
        samples = loaded.samples
        if not samples:
            continue
        with torch.inference_mode(), autocast(device, precision):
            batch = detector.batch_images([sample.image for sample in samples])
            maps = detector.feature_maps(batch)
            located = locate(detector, maps, batch, limits=limits)
            rows = [truth.rows_of_image(sample.image_index) for sample in samples]
            truth_boxes = [
                to_sample_pixels(torch.from_numpy(truth.boxes_xyxy[of_image]).float(), sample).to(
                    device
                )
                for of_image, sample in zip(rows, samples, strict=True)
            ]
            features = detector.region_features(maps, truth_boxes)
            best = [
                classify_regions(classifier, features, batch=batch, boxes=truth_boxes)
                .argmax(1)
                .cpu()
                .numpy()
                for classifier in classifiers
            ]
        flat_rows = np.concatenate([np.arange(r.start, r.stop) for r in rows])
        for column, values in zip(outputs, best, strict=True):
            column[flat_rows] = values
        for sample, image_boxes in zip(samples, located.boxes, strict=True):
            in_pixels = to_original_pixels(image_boxes, sample).float().cpu().numpy()
            proposals[sample.image_index] = in_pixels
    return _join_looks(outputs, proposals, num_images=len(truth.images), processes=processes)


def _join_looks(
    outputs: list[np.ndarray],
    proposals: dict[int, np.ndarray],
    *,
    num_images: int,
    processes: Processes,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """All processes' shares together; an annotation nobody looked at keeps its -1."""
    shares = processes.gather((outputs, proposals))
    joined = [np.maximum.reduce(columns) for columns in zip(*(s[0] for s in shares), strict=True)]
    of_image = {index: boxes for share in shares for index, boxes in share[1].items()}
    nothing = np.zeros((0, 4), dtype=np.float32)
    return joined, [of_image.get(index, nothing) for index in range(num_images)]
