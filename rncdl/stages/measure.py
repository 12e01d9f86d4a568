"""Measuring systems: one look at the annotations, one at the images, every number of the tables."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from rncdl.classes import ClassSplit
from rncdl.config import Settings
from rncdl.data.datasets import BadImage
from rncdl.data.records import AnnotationSet
from rncdl.detections import Detections, read_detections, write_shared_detections
from rncdl.detector.inference import Reading, RegionClassifier
from rncdl.detector.locating import Sightings
from rncdl.detector.model import Detector
from rncdl.errors import UserError
from rncdl.evaluation.assignment import (
    UNMAPPED,
    Assignment,
    Protocol,
    assign_clusters,
    count_matrix,
    write_assignment,
    write_counts,
)
from rncdl.evaluation.average_precision import evaluate_detections
from rncdl.evaluation.clustering_scores import score_clustering
from rncdl.evaluation.recall import measure_recall
from rncdl.evaluation.report import Clusters, Report, Score
from rncdl.evaluation.tables import write_class_csv
from rncdl.prediction import look_at_annotations, predict_images
from rncdl.run_folder import EvaluationFolder
from rncdl.stages.info import versions
from rncdl.training.processes import Processes

PROTOCOLS: tuple[Protocol, ...] = ("fixed", "paper")

Frequencies = dict[int, Literal["r", "c", "f"]]


@dataclass(frozen=True)
class System:
    """One way to classify regions that is to be measured."""

    name: str
    classify: RegionClassifier
    num_clusters: int | None
    """N; None: only the known classes are classified, and no cluster needs a name"""
    by_objectness: bool = False
    """scores are multiplied by the RPN's probability that the region is an object"""


@dataclass(frozen=True)
class _Named:
    """A system whose outputs stand for classes of the evaluated file."""

    system: System
    protocol: Protocol | None
    category_ids: np.ndarray
    """(C,) int64, -1 where an output stands for none"""

    @property
    def name(self) -> str:
        return "_".join(filter(None, (self.system.name, self.protocol)))


def measure(
    detector: Detector,
    systems: Sequence[System],
    truth: AnnotationSet,
    split: ClassSplit,
    *,
    known_ids: Collection[int] | None = None,
    frequencies: Frequencies | None,
    folder: EvaluationFolder,
    settings: Settings,
    processes: Processes,
    with_masks: bool = True,
    sightings: Sightings | None = None,
) -> Report | None:
    """Every number of every system on `truth`; files in `folder`. None but in the first process.

    `known_ids`: the categories that the tables count as known; those the detector knows where
    not given.

    All systems share the detector, so the images are looked at twice in all: once at their
    annotated boxes, to find out what each cluster stands for, and once for detections. `sightings`
    carry what was found over to the next measuring of the same detector on the same file.
    """
    if known_ids is None:
        known_ids = split.known_ids(truth)
    skipped: list[BadImage] = []
    look = _look(
        detector, systems, truth, split, settings=settings, processes=processes, skipped=skipped
    )
    named = [one for system in systems for one in _name_system(system, look.clusters, truth, split)]
    batches = predict_images(
        detector,
        truth.images,
        [_reading(one, processes.device) for one in named],
        settings=settings,
        processes=processes,
        skipped=skipped,
        with_masks=with_masks,
        sightings=sightings,
    )
    _write_predictions(batches, named, folder, processes)
    lost = {bad.path for share in processes.gather(skipped) for bad in share}
    if not processes.is_main:
        return None
    scores = [
        score
        for one in named
        for score in _score(
            one,
            read_detections(folder.predictions(one.name), images=truth.images),
            truth,
            known_ids=known_ids,
            frequencies=frequencies,
            max_detections=settings.predict.max_detections,
        )
    ]
    _write_tables(folder, named, look.clusters, scores, truth)
    return Report(
        score=settings.predict.score,
        num_images=len(truth.images),
        num_skipped=len(lost),
        recall=measure_recall(look.proposals, truth, known_category_ids=known_ids),
        clusters=look.clusters,
        scores=scores,
        settings=settings.model_dump(mode="json"),
        versions=versions(),
    )


@dataclass(frozen=True)
class _Look:
    """What a first pass over the images tells."""

    clusters: dict[str, Clusters]
    """of the systems that have clusters"""
    proposals: list[np.ndarray]
    """per image (P, 4)"""


def _look(
    detector: Detector,
    systems: Sequence[System],
    truth: AnnotationSet,
    split: ClassSplit,
    *,
    settings: Settings,
    processes: Processes,
    skipped: list[BadImage],
) -> _Look:
    """Each system's clusters on the annotated boxes, and the proposals."""
    clustering = [system for system in systems if system.num_clusters is not None]
    outputs, proposals = look_at_annotations(
        detector,
        truth,
        [system.classify for system in clustering],
        settings=settings,
        processes=processes,
        skipped=skipped,
    )
    clusters = {
        system.name: _score_clusters(of_system, truth, split, num_clusters=system.num_clusters or 0)
        for system, of_system in zip(clustering, outputs, strict=True)
    }
    return _Look(clusters, proposals)


def _write_predictions(
    batches: Iterable[Sequence[Detections]],
    named: Sequence[_Named],
    folder: EvaluationFolder,
    processes: Processes,
) -> None:
    """A file for each named system; `batches` has a part for each of them."""
    write_shared_detections(
        [folder.predictions(one.name) for one in named],
        (
            [name_outputs(part, one.category_ids) for part, one in zip(batch, named, strict=True)]
            for batch in batches
        ),
        processes,
    )


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
            assignment = clusters[one.system.name].assignments[one.protocol]
            write_assignment(folder.assignment(one.name), assignment, truth.categories)
    for system_name, of_system in clusters.items():
        write_counts(folder.confusion(system_name), of_system.counts, truth.categories)
    for score in scores:
        if score.cut == "before":
            write_class_csv(folder.classes(score.name), score.result, truth.categories)


def known_category_ids(split: ClassSplit, truth: AnnotationSet) -> np.ndarray:
    """(K,) the evaluated file's id of each known class, -1 where it lacks one."""
    ids = np.full(split.num_known, -1, dtype=np.int64)
    for category_id, k in split.known_ids(truth).items():
        ids[k] = category_id
    if (ids < 0).all():
        raise UserError(
            "The validation file has none of the known classes: "
            f"{', '.join(split.known[:10])}. Classes are matched by name."
        )
    return ids


def name_outputs(found: Detections, category_ids: np.ndarray) -> Detections:
    """Detections of outputs as detections of the classes they stand for; others are dropped."""
    named = replace(found, category_ids=category_ids[found.category_ids])
    return named.select(named.category_ids >= 0)


def iou_types(truth: AnnotationSet, found: Detections) -> list[Literal["bbox", "segm"]]:
    """What can be measured: boxes always, masks where both sides have them."""
    with_masks = truth.has_masks and (found.rles is not None or not len(found))
    return ["bbox", "segm"] if with_masks else ["bbox"]


def _score_clusters(
    outputs: np.ndarray, truth: AnnotationSet, split: ClassSplit, *, num_clusters: int
) -> Clusters:
    """Clustering scores on the annotated boxes, and the assignment by each protocol."""
    column_of = {category.id: column for column, category in enumerate(truth.categories)}
    seen = (outputs >= 0) & ~truth.is_crowd
    columns = np.array([column_of[i] for i in truth.category_ids.tolist()], dtype=np.int64)
    known_ids = split.known_ids(truth)
    is_known = np.isin(truth.category_ids, list(known_ids))
    known_columns = np.full(split.num_known, UNMAPPED, dtype=np.int64)
    for category_id, k in known_ids.items():
        known_columns[k] = column_of[category_id]
    counts = count_matrix(
        outputs[seen],
        columns[seen],
        num_outputs=split.num_known + num_clusters,
        num_classes=len(truth.categories),
    )
    groups = {"known": seen & is_known, "novel": seen & ~is_known, "all": seen}
    return Clusters(
        num_clusters=num_clusters,
        scores={
            name: score_clustering(outputs[rows], columns[rows]) for name, rows in groups.items()
        },
        assignments={
            protocol: assign_clusters(counts, known_columns, protocol=protocol)
            for protocol in PROTOCOLS
        },
        counts=counts,
    )


def _name_system(
    system: System, clusters: dict[str, Clusters], truth: AnnotationSet, split: ClassSplit
) -> list[_Named]:
    """The system with its outputs named: by each protocol, where it has clusters."""
    if system.num_clusters is None:
        return [_Named(system, None, known_category_ids(split, truth))]
    assignments = clusters[system.name].assignments
    return [
        _Named(system, protocol, _assigned_ids(assignments[protocol], truth))
        for protocol in PROTOCOLS
    ]


def _assigned_ids(assignment: Assignment, truth: AnnotationSet) -> np.ndarray:
    """(C,) the evaluated file's category id of each output, -1 where it has none."""
    category_ids = np.array([category.id for category in truth.categories], dtype=np.int64)
    return np.where(assignment.is_mapped, category_ids[assignment.class_columns], -1)


def _reading(one: _Named, device: torch.device) -> Reading:
    wanted = torch.from_numpy(one.category_ids >= 0).to(device)
    return Reading(one.system.classify, wanted, by_objectness=one.system.by_objectness)


def _score(
    one: _Named,
    found: Detections,
    truth: AnnotationSet,
    *,
    known_ids: Collection[int],
    frequencies: Frequencies | None,
    max_detections: int,
) -> list[Score]:
    """AP of boxes and masks; with clusters, unmapped ones dropped before and after the cut."""
    chosen: dict[Literal["before", "after"], Detections] = {"before": found}
    if one.protocol is not None:
        within = found.within_cut
        chosen["after"] = found if within is None else found.select(within)
    return [
        Score(
            system=one.system.name,
            protocol=one.protocol,
            cut=cut,
            result=evaluate_detections(
                truth,
                detections,
                iou_type=kind,
                known_category_ids=known_ids,
                max_detections=max_detections,
                frequencies=frequencies,
            ),
        )
        for cut, detections in chosen.items()
        for kind in iou_types(truth, found)
    ]
