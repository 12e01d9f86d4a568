"""Measuring classifiers: one look at the annotations, one at the images, every number."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from rncdl.classes import ClassSplit
from rncdl.config import Settings
from rncdl.data.datasets import BadImage
from rncdl.data.records import AnnotationSet
from rncdl.detector.locating import RegionCache
from rncdl.detector.model import Detector
from rncdl.evaluation.ap_tables import write_class_csv
from rncdl.evaluation.assignment import Protocol, write_assignment, write_counts
from rncdl.evaluation.average_precision import APResult, evaluate_detections
from rncdl.evaluation.clusters import (
    assigned_category_ids,
    found_before,
    known_category_ids,
    score_clusters,
)
from rncdl.evaluation.perfect_clustering import name_perfectly
from rncdl.evaluation.recall import measure_recall
from rncdl.evaluation.results import Clusters, Report, Score, mean_by_group
from rncdl.prediction.annotated import look_at_annotations
from rncdl.prediction.classifier import Classifier
from rncdl.prediction.detections import Detections, read_detections, write_shared_detections
from rncdl.prediction.inference import Inference, PredictedBatch, predict_images
from rncdl.run_folder import EvaluationFolder
from rncdl.training.processes import Processes
from rncdl.version import versions

Frequencies = dict[int, Literal["r", "c", "f"]]


@dataclass(frozen=True)
class Examination:
    """What classifiers are measured on, and by which rules."""

    truth: AnnotationSet
    split: ClassSplit
    """the classes that the detector knows"""
    folder: EvaluationFolder
    settings: Settings
    known_ids: Collection[int] | None = None
    """categories that the tables count as known; None: those of `split`"""
    frequencies: Frequencies | None = None
    with_masks: bool = True
    with_bound: bool = False
    """whether to measure, too, what a perfect clustering of the same regions would reach"""


@dataclass(frozen=True)
class _Named:
    """A classifier whose outputs stand for classes of the evaluated file."""

    system: str
    classifier: Classifier
    protocol: Protocol | None
    category_ids: np.ndarray
    """(C,) int64, -1 where an output stands for none"""

    @property
    def name(self) -> str:
        return "_".join(filter(None, (self.system, self.protocol)))


@torch.inference_mode()
def measure(
    detector: Detector,
    classifiers: Mapping[str, Classifier],
    examination: Examination,
    *,
    processes: Processes,
    cache: RegionCache | None = None,
) -> Report | None:
    """Every number of every classifier; files in the folder. None but in the first process.

    All classifiers share the detector, so the images are looked at twice in all: once at their
    annotated boxes, to find out what each cluster stands for, and once for detections. `cache`
    carries what was located over to the next measuring of the same detector on the same file.
    """
    truth, split, settings = examination.truth, examination.split, examination.settings
    found = found_before(split, truth)
    clustering = {name: one for name, one in classifiers.items() if one.num_novel or found}
    look = look_at_annotations(
        detector, truth, list(clustering.values()), settings=settings, processes=processes
    )
    clusters = {
        name: score_clusters(outputs, truth, split, names=one.names)
        for (name, one), outputs in zip(clustering.items(), look.outputs, strict=True)
    }
    named = list(_name_outputs(classifiers, clusters, truth, split))
    unnamed = _keep_outputs(clustering) if examination.with_bound else []
    inference = Inference(
        detector,
        [
            one.classifier.limited_to(torch.from_numpy(one.category_ids >= 0))
            for one in (*named, *unnamed)
        ],
        settings,
        with_masks=examination.with_masks,
        cache=cache,
    )
    batches = predict_images(inference, truth.images, processes=processes)
    # The files are the hand-over between processes; one classifier's detections of a large set
    # fill the memory, all of them would not fit.
    bad_images = _write_predictions(batches, [*named, *unnamed], examination.folder, processes)
    lost = {
        bad.path for share in processes.gather([*look.bad_images, *bad_images]) for bad in share
    }
    if not processes.is_main:
        return None
    known_ids = split.known_ids(truth) if examination.known_ids is None else examination.known_ids
    scores = [score for one in named for score in _score(one, examination, known_ids)]
    _write_tables(examination.folder, named, clusters, scores, truth)
    return Report(
        score=settings.predict.score,
        num_images=len(truth.images),
        num_skipped=len(lost),
        recall=measure_recall(look.proposals, truth, known_category_ids=known_ids),
        clusters=clusters,
        scores=scores,
        bounds={
            one.system: _bound(one, clusters[one.system], examination, known_ids) for one in unnamed
        },
        mask_iou=mean_by_group(look.mask_ious, truth, known_ids),
        settings=settings.model_dump(mode="json"),
        versions=versions(),
    )


def known_scores(
    detector: Detector,
    classifier: Classifier,
    truth: AnnotationSet,
    split: ClassSplit,
    *,
    settings: Settings,
    processes: Processes,
) -> dict[str, float]:
    """AP of the known classes by a classifier that has no others."""
    inference = Inference(detector, [classifier], settings)
    batches = predict_images(inference, truth.images, processes=processes)
    own = [Detections.of_images(batch.images, batch.regions[0]) for batch in batches]
    joined = Detections.concatenate(processes.gather(Detections.concatenate(own)))
    found = name_detections(joined, known_category_ids(split, truth))
    scores = {}
    for kind in iou_types(truth, found):
        result = evaluate_detections(
            truth,
            found,
            iou_type=kind,
            known_category_ids=split.known_ids(truth),
            max_detections=settings.predict.max_detections,
        )
        scores[f"known_{kind}_ap"] = result.known.ap or 0.0
        scores[f"known_{kind}_ap50"] = result.known.ap50 or 0.0
    return scores


def name_detections(found: Detections, category_ids: np.ndarray) -> Detections:
    """Detections of outputs as detections of the classes they stand for; others are dropped."""
    named = replace(found, category_ids=category_ids[found.category_ids])
    return named.select(named.category_ids >= 0)


def iou_types(truth: AnnotationSet, found: Detections) -> list[Literal["bbox", "segm"]]:
    """What can be measured: boxes always, masks where both sides have them."""
    with_masks = truth.has_masks and (found.rles is not None or not len(found))
    return ["bbox", "segm"] if with_masks else ["bbox"]


def _name_outputs(
    classifiers: Mapping[str, Classifier],
    clusters: Mapping[str, Clusters],
    truth: AnnotationSet,
    split: ClassSplit,
) -> Iterator[_Named]:
    """Each classifier with its outputs named: by each protocol, where it has clusters."""
    for name, classifier in classifiers.items():
        if name not in clusters:
            yield _Named(name, classifier, None, known_category_ids(split, truth))
            continue
        for protocol, assignment in clusters[name].assignments.items():
            ids = assigned_category_ids(assignment, truth)
            yield _Named(name, classifier, protocol, ids)


def _keep_outputs(clustering: Mapping[str, Classifier]) -> list[_Named]:
    """Each classifier with all its outputs, as numbers in place of categories."""
    return [_Named(name, one, None, np.arange(len(one.names))) for name, one in clustering.items()]


def _bound(
    one: _Named, clusters: Clusters, examination: Examination, known_ids: Collection[int]
) -> APResult:
    """Box AP of a perfect clustering with the scores that this one's detections have."""
    truth, predict = examination.truth, examination.settings.predict
    assignment = clusters.assignments["fixed"]
    found = name_perfectly(
        read_detections(examination.folder.predictions(one.name), images=truth.images),
        truth,
        category_ids=assigned_category_ids(assignment, truth),
        is_cluster=assignment.is_cluster,
        nms=predict.nms,
    )
    return evaluate_detections(
        truth,
        found,
        iou_type="bbox",
        known_category_ids=known_ids,
        max_detections=predict.max_detections,
    )


def _write_predictions(
    batches: Iterable[PredictedBatch],
    named: Sequence[_Named],
    folder: EvaluationFolder,
    processes: Processes,
) -> list[BadImage]:
    """A file for each named classifier; returns the images this process had to skip."""
    bad_images: list[BadImage] = []

    def columns() -> Iterator[list[Detections]]:
        for batch in batches:
            bad_images.extend(batch.bad_images)
            yield [
                name_detections(Detections.of_images(batch.images, regions), one.category_ids)
                for regions, one in zip(batch.regions, named, strict=True)
            ]

    write_shared_detections([folder.predictions(one.name) for one in named], columns(), processes)
    return bad_images


def _write_tables(
    folder: EvaluationFolder,
    named: Sequence[_Named],
    clusters: Mapping[str, Clusters],
    scores: Sequence[Score],
    truth: AnnotationSet,
) -> None:
    """What each output stands for, and AP class by class."""
    for one in named:
        if one.protocol is not None:
            assignment = clusters[one.system].assignments[one.protocol]
            write_assignment(
                folder.assignment(one.name),
                assignment,
                truth.categories,
                names=one.classifier.names,
            )
    for system, of_system in clusters.items():
        write_counts(folder.confusion(system), of_system.counts, truth.categories)
    for score in scores:
        if score.cut == "before":
            write_class_csv(folder.classes(score.name), score.result, truth.categories)


def _score(one: _Named, examination: Examination, known_ids: Collection[int]) -> Iterator[Score]:
    """AP of boxes and masks; with clusters, unmapped ones dropped before and after the cut."""
    truth = examination.truth
    found = read_detections(examination.folder.predictions(one.name), images=truth.images)
    chosen: dict[Literal["before", "after"], Detections] = {"before": found}
    if one.protocol is not None:
        within = found.within_cut
        chosen["after"] = found if within is None else found.select(within)
    for cut, detections in chosen.items():
        for kind in iou_types(truth, found):
            result = evaluate_detections(
                truth,
                detections,
                iou_type=kind,
                known_category_ids=known_ids,
                max_detections=examination.settings.predict.max_detections,
                frequencies=examination.frequencies,
            )
            yield Score(system=one.system, protocol=one.protocol, cut=cut, result=result)
