"""From many images to their detections, a batch at a time."""

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass

from rncdl.config import PredictSettings, Settings
from rncdl.data.batch_loader import Batch, BatchLoader
from rncdl.data.batches import EvaluationBatches
from rncdl.data.datasets import BadImage, PlainImages
from rncdl.data.records import ImageRecord
from rncdl.data.samples import Sample
from rncdl.detector.locating import RegionCache, Search
from rncdl.detector.model import Detector
from rncdl.prediction.classifier import Classifier
from rncdl.prediction.detecting import Detected, Limits, detect
from rncdl.regions import Regions
from rncdl.training.prefetching import map_behind
from rncdl.training.processes import Processes, autocast, choose_precision
from rncdl.training.progress import ProgressLine


@dataclass(frozen=True)
class Inference:
    """How images are looked at."""

    detector: Detector
    classifiers: Sequence[Classifier]
    settings: Settings
    with_masks: bool = True
    with_features: bool = False
    cache: RegionCache | None = None
    """of what was located before, by this detector in the very same list of images"""


@dataclass(frozen=True)
class PredictedBatch:
    """What was found in some images."""

    images: list[ImageRecord]
    regions: list[list[Regions]]
    """per classifier, per image"""
    bad_images: list[BadImage]
    """images of the batch that could not be read"""


def limits_of(predict: PredictSettings) -> Limits:
    """Which regions and detections the settings keep."""
    search = Search(
        before_nms=predict.proposals_before_nms,
        nms=predict.proposal_nms,
        per_image=predict.proposals_after_nms,
        refinements=predict.refinements,
        mask_share=predict.mask_share,
        region_nms=predict.region_nms,
    )
    return Limits(search, predict.min_score, predict.nms, predict.max_detections)


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
        processes=processes,
        start_batch=start_batch,
    )
    done = min(len(images), start_batch * settings.predict.batch_size * processes.count)
    with ProgressLine(
        title, len(images), unit="images", start=done, shown=processes.is_main
    ) as progress:
        for batch in BatchLoader(dataset, batches, workers=data.workers):
            yield batch
            progress.advance(processes.count * (len(batch.samples) + len(batch.bad_images)))


def detect_samples(inference: Inference, samples: Sequence[Sample]) -> Detected:
    """What `detect` finds by the settings' limits, on the detector's device in its precision."""
    detector, settings = inference.detector, inference.settings
    with autocast(detector.device, choose_precision(settings.train.precision, detector.device)):
        return detect(
            detector,
            samples,
            inference.classifiers,
            limits=limits_of(settings.predict),
            with_masks=inference.with_masks,
            with_features=inference.with_features,
            cache=inference.cache,
        )


def predict_images(
    inference: Inference,
    images: Sequence[ImageRecord],
    *,
    processes: Processes,
    start_batch: int = 0,
) -> Generator[PredictedBatch, None, None]:
    """What each classifier finds in this process's share of the images, from `start_batch` on.

    While a GPU looks at one batch, a thread draws the masks of the batch before.
    """
    inference.detector.eval()
    loading = load_batches(
        images,
        settings=inference.settings,
        processes=processes,
        title="predict",
        start_batch=start_batch,
    )

    def finished(seen: tuple[Batch[Sample], Detected | None]) -> PredictedBatch:
        batch, found = seen
        return PredictedBatch(
            images=[images[sample.image_index] for sample in batch.samples],
            regions=[[] for _ in inference.classifiers] if found is None else found.regions(),
            bad_images=list(batch.bad_images),
        )

    with closing(loading) as batches:
        looked_at = (
            (batch, detect_samples(inference, batch.samples) if batch.samples else None)
            for batch in batches
        )
        if inference.detector.device.type == "cpu":
            yield from map(finished, looked_at)
        else:
            yield from map_behind(finished, looked_at)
