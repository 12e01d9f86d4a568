"""Drawings of what detectors find on a few images, beside the truth where it is given."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rncdl.config import Settings
from rncdl.data.records import AnnotationSet, ImageRecord
from rncdl.detector.model import Detector
from rncdl.gallery.drawings import MIN_SHOWN_SCORE, draw_marks
from rncdl.gallery.examples import Example, Panel, annotation_marks, region_marks
from rncdl.gallery.thumbnails import open_picture
from rncdl.inputs import load_dataset
from rncdl.models import load_detector
from rncdl.prediction.classifier import Classifier, trained_classifier
from rncdl.prediction.inference import Inference, predict_images
from rncdl.regions import Regions
from rncdl.run_folder import RunFolder
from rncdl.training.processes import alone

NUM_EXAMPLES = 12
NUM_COMPARED = 6
"""Side by side they take more room."""
_MIN_SUPERVISED_SCORE = 0.3
"""A supervised detector's scores are those of classes it was shown, and higher."""


@dataclass(frozen=True)
class DrawnDetector:
    """A detector whose detections are drawn as a panel."""

    title: str
    detector: Detector
    classifier: Classifier
    min_score: float = MIN_SHOWN_SCORE


@dataclass(frozen=True)
class ComparedImages:
    """A labelled file on whose images truth and detections are to be shown side by side."""

    val: Path
    images: Path | None = None
    supervised: RunFolder | None = None
    """a run that was trained with all labels: the ceiling"""


def draw_examples(
    ours: DrawnDetector, images: Sequence[ImageRecord], known: Sequence[str], *, settings: Settings
) -> list[Example]:
    """Detections on some of the images, evenly spread over them."""
    return _draw([ours], images, known, truth=None, settings=settings)


def draw_comparison(
    ours: DrawnDetector, compared: ComparedImages, known: Sequence[str], *, settings: Settings
) -> list[Example]:
    """Truth, the fully supervised detector where there is one, and ours, side by side."""
    truth = load_dataset(compared.val, compared.images, shown=False)
    shown = [ours]
    if compared.supervised is not None:
        supervised = compared.supervised
        split = supervised.split()
        detector = load_detector(supervised, supervised.settings(), split)
        detector.to(ours.detector.device).eval()
        classifier = trained_classifier(detector, split.known)
        shown.insert(
            0, DrawnDetector("fully supervised", detector, classifier, _MIN_SUPERVISED_SCORE)
        )
    return _draw(shown, truth.images, known, truth=truth, settings=settings)


def _draw(
    shown: Sequence[DrawnDetector],
    images: Sequence[ImageRecord],
    known: Sequence[str],
    *,
    truth: AnnotationSet | None,
    settings: Settings,
) -> list[Example]:
    wanted = NUM_EXAMPLES if truth is None else NUM_COMPARED
    rows = np.unique(np.linspace(0, len(images) - 1, wanted).round().astype(int)).tolist()
    found = [_detect(one, [images[row] for row in rows], settings) for one in shown]
    examples = []
    for row in rows:
        image = images[row]
        picture = open_picture(image)
        if picture is None:
            continue
        marks = {} if truth is None else {"truth": annotation_marks(truth, row, known)}
        for one, regions_of in zip(shown, found, strict=True):
            if image.id in regions_of:
                marks[one.title] = region_marks(
                    regions_of[image.id], one.classifier.names, known, min_score=one.min_score
                )
        panels = [
            Panel(
                title,
                draw_marks(picture, of_title),
                f"{image.path.name}, {title}: {', '.join(of_title.names) or 'nothing'}",
            )
            for title, of_title in marks.items()
        ]
        examples.append(Example(panels, image.path.name))
    return examples


def _detect(
    one: DrawnDetector, images: Sequence[ImageRecord], settings: Settings
) -> dict[int, Regions]:
    """What is found in each image that can be read, by its id."""
    inference = Inference(one.detector, [one.classifier], settings)
    batches = predict_images(inference, images, processes=alone(settings.device))
    return {
        image.id: regions
        for batch in batches
        for image, regions in zip(batch.images, batch.regions[0], strict=True)
    }
