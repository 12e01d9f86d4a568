"""Drawings of what detectors find on a few images, beside the truth where it is given."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rncdl.config import Settings
from rncdl.data.records import AnnotationSet, ImageRecord
from rncdl.detections import Detections
from rncdl.detector.inference import Classify, Reading
from rncdl.detector.model import Detector
from rncdl.gallery.drawings import MIN_SHOWN_SCORE, draw_marks
from rncdl.gallery.examples import Example, Panel, annotation_marks, detection_marks
from rncdl.gallery.thumbnails import open_picture
from rncdl.prediction import classify_as_trained, predict_images
from rncdl.run_folder import RunFolder
from rncdl.stages.loading import load_dataset, load_detector
from rncdl.training.processes import alone

NUM_EXAMPLES = 12
NUM_SHOWCASED = 6
"""Side by side they take more room."""
_MIN_SUPERVISED_SCORE = 0.3
"""A supervised detector's scores are those of classes it was shown, and higher."""


@dataclass(frozen=True)
class ShownDetector:
    """One way to read the images, to be drawn as a panel."""

    title: str
    detector: Detector
    classify: Classify
    output_names: Sequence[str]
    by_objectness: bool = False
    """scores are multiplied by the RPN's probability that the region is an object"""
    min_score: float = MIN_SHOWN_SCORE


@dataclass(frozen=True)
class Showcase:
    """A labelled file on whose images truth and detections are to be shown side by side."""

    val: Path
    images: Path | None = None
    supervised: RunFolder | None = None
    """a run that was trained with all labels: the ceiling"""


def draw_examples(
    ours: ShownDetector, images: Sequence[ImageRecord], known: Sequence[str], *, settings: Settings
) -> list[Example]:
    """Detections on some of the images, evenly spread over them."""
    return _draw([ours], images, known, truth=None, settings=settings)


def draw_showcase(
    ours: ShownDetector, showcase: Showcase, known: Sequence[str], *, settings: Settings
) -> list[Example]:
    """Truth, the fully supervised detector where there is one, and ours, side by side."""
    truth = load_dataset(showcase.val, showcase.images, shown=False)
    shown = [ours]
    if showcase.supervised is not None:
        split = showcase.supervised.split()
        detector = load_detector(showcase.supervised, showcase.supervised.settings(), split)
        classify = classify_as_trained(detector)
        shown.insert(
            0,
            ShownDetector(
                "fully supervised",
                detector,
                classify,
                split.known,
                min_score=_MIN_SUPERVISED_SCORE,
            ),
        )
    return _draw(shown, truth.images, known, truth=truth, settings=settings)


def _draw(
    shown: Sequence[ShownDetector],
    images: Sequence[ImageRecord],
    known: Sequence[str],
    *,
    truth: AnnotationSet | None,
    settings: Settings,
) -> list[Example]:
    wanted = NUM_EXAMPLES if truth is None else NUM_SHOWCASED
    rows = np.unique(np.linspace(0, len(images) - 1, wanted).round().astype(int)).tolist()
    found = [_detect(one, [images[row] for row in rows], settings) for one in shown]
    examples = []
    for row in rows:
        image = images[row]
        picture = open_picture(image)
        if picture is None:
            continue
        marks = {} if truth is None else {"truth": annotation_marks(truth, row, known)}
        for one, detections in zip(shown, found, strict=True):
            of_image = detections.select(detections.image_ids == image.id)
            marks[one.title] = detection_marks(
                of_image, one.output_names, known, min_score=one.min_score
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


def _detect(one: ShownDetector, images: Sequence[ImageRecord], settings: Settings) -> Detections:
    parts = predict_images(
        one.detector,
        images,
        [Reading(one.classify, by_objectness=one.by_objectness)],
        settings=settings,
        processes=alone(settings.device),
        skipped=[],
    )
    return Detections.concatenate([part[0] for part in parts])
