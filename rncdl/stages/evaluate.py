"""`rncdl evaluate`: from a run and a fully annotated file to the tables."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from rncdl.classes import ClassSplit
from rncdl.config import Settings, resolve_settings
from rncdl.data.datasets import BadImage
from rncdl.data.records import AnnotationSet
from rncdl.detections import Detections, read_detections, write_shared_detections
from rncdl.detector.inference import Reading
from rncdl.detector.model import Detector
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.errors import UserError
from rncdl.evaluation.assignment import (
    UNMAPPED,
    Assignment,
    Protocol,
    assign_clusters,
    count_matrix,
    write_assignment,
)
from rncdl.evaluation.average_precision import APResult, evaluate_detections
from rncdl.evaluation.clustering_scores import score_clustering
from rncdl.evaluation.frequencies import frequencies_from_training
from rncdl.evaluation.recall import measure_recall
from rncdl.evaluation.report import HeadReport, Report, Score
from rncdl.evaluation.tables import ap_table, write_class_csv
from rncdl.prediction import (
    classify_as_trained,
    classify_known_only,
    classify_with_head,
    look_at_annotations,
    predict_images,
)
from rncdl.run_folder import EvaluationFolder, RunFolder
from rncdl.stages.info import versions
from rncdl.stages.loading import load_dataset, load_detector, load_heads
from rncdl.training.processes import Processes, join_processes
from rncdl.training.progress import console, say

PROTOCOLS: tuple[Protocol, ...] = ("fixed", "paper")


@dataclass(frozen=True)
class _Named:
    """A reading of the images, and which class of the evaluated file each output stands for."""

    name: str
    reading: Reading
    category_ids: np.ndarray
    """(C,) int64, -1 where an output stands for none"""


def evaluate(
    run_path: Path,
    val: Path,
    *,
    images: Path | None,
    name: str | None,
    train_labels: Path | None,
    overrides: Sequence[str],
) -> Report | None:
    """Measure a run on `val`; tables on the screen, files in the run folder. None but in the first
    process.
    """
    run = RunFolder(run_path)
    names = run.discovery_names()
    if name is None and names:
        name = names[-1]
    base = run.settings() if name is None else run.discovery(name).settings()
    settings = resolve_settings(base=base, overrides=overrides)
    with join_processes(settings.device) as processes:
        truth = load_dataset(val, images, shown=processes.is_main)
        frequencies = None
        if train_labels is not None:
            training = load_dataset(train_labels, None, shown=False)
            frequencies = frequencies_from_training(training, truth)
        detector = load_detector(run, settings, run.split(), discovery=name)
        heads = None if name is None else load_heads(run, detector, name)
        folder = run.evaluation(val.stem, name)
        report = _evaluate(
            detector,
            heads,
            truth,
            run.split(),
            frequencies=frequencies,
            folder=folder,
            settings=settings,
            processes=processes,
        )
    if report is None:
        return None
    report = replace(report, val=str(val), discovery=name)
    report.save(folder.report_json, folder.report_md)
    for table in report.screen_tables():
        console.print(table)
    say(f"Report: {folder.report_md} and {folder.report_json}")
    return report


def evaluate_predictions(
    predictions: Path,
    val: Path,
    *,
    images: Path | None,
    known: str | None,
    train_labels: Path | None,
    overrides: Sequence[str],
) -> list[APResult]:
    """AP of a COCO-results file without any model; its category ids are those of `val`."""
    settings = resolve_settings(overrides=overrides)
    truth = load_dataset(val, images, shown=True)
    detections = read_detections(predictions, images=truth.images)
    split = ClassSplit.from_names(known) if known else None
    frequencies = None
    if train_labels is not None:
        training = load_dataset(train_labels, None, shown=False)
        frequencies = frequencies_from_training(training, truth)
    known_ids = set(split.known_ids(truth)) if split else {c.id for c in truth.categories}
    results = []
    for kind in _kinds(truth, detections):
        result = evaluate_detections(
            truth,
            detections,
            iou_type=kind,
            known_category_ids=known_ids,
            max_detections=settings.predict.max_detections,
            frequencies=frequencies,
        )
        console.print(ap_table(result, title=f"{predictions.name}, {kind}"))
        results.append(result)
        csv_path = predictions.with_name(f"{predictions.stem}_classes_{kind}.csv")
        write_class_csv(csv_path, result, truth.categories)
    return results


def known_scores(
    detector: Detector,
    truth: AnnotationSet,
    split: ClassSplit,
    *,
    settings: Settings,
    processes: Processes,
) -> dict[str, float]:
    """AP of the known classes by the detector as it was trained."""
    reading = Reading(classify_as_trained(detector))
    parts = predict_images(
        detector, truth.images, [reading], settings=settings, processes=processes, skipped=[]
    )
    own = Detections.concatenate([of_batch[0] for of_batch in parts])
    found = _name_outputs(
        Detections.concatenate(processes.gather(own)), _known_category_ids(split, truth)
    )
    scores = {}
    for kind in _kinds(truth, found):
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


def _evaluate(
    detector: Detector,
    heads: DiscoveryHeads | None,
    truth: AnnotationSet,
    split: ClassSplit,
    *,
    frequencies: dict[int, Literal["r", "c", "f"]] | None,
    folder: EvaluationFolder,
    settings: Settings,
    processes: Processes,
) -> Report | None:
    skipped: list[BadImage] = []
    score = settings.predict.score
    if heads is not None:
        heads.to(processes.device).eval()
    classifiers = (
        []
        if heads is None
        else [classify_with_head(heads, h, score=score) for h in range(len(heads.novel))]
    )
    outputs, proposals = look_at_annotations(
        detector, truth, classifiers, settings=settings, processes=processes, skipped=skipped
    )
    recall = measure_recall(proposals, truth, known_category_ids=split.known_ids(truth))
    head_reports = []
    readings = []
    if heads is None:
        readings.append(
            _Named(
                "known",
                Reading(classify_as_trained(detector)),
                _known_category_ids(split, truth),
            )
        )
    else:
        readings.append(
            _Named(
                "known_only",
                Reading(classify_known_only(heads, score=score)),
                _known_category_ids(split, truth),
            )
        )
        for h, of_head in enumerate(outputs):
            head_report = _report_head(of_head, truth, split, num_clusters=heads.num_clusters[h])
            head_reports.append(head_report)
            for protocol, assignment in head_report.assignments.items():
                ids = _assigned_category_ids(assignment, truth)
                wanted = torch.from_numpy(ids >= 0).to(processes.device)
                reading = Reading(classifiers[h], wanted)
                readings.append(_Named(f"head{h}_{protocol}", reading, ids))
    paths = [folder.predictions(reading.name) for reading in readings]
    batches = predict_images(
        detector,
        truth.images,
        [reading.reading for reading in readings],
        settings=settings,
        processes=processes,
        skipped=skipped,
    )
    named = (
        [_name_outputs(part, r.category_ids) for part, r in zip(batch, readings, strict=True)]
        for batch in batches
    )
    write_shared_detections(paths, named, processes)
    num_skipped = sum(processes.gather(len({bad.path for bad in skipped})))
    if not processes.is_main:
        return None
    scores = []
    for one, path in zip(readings, paths, strict=True):
        found = read_detections(path, images=truth.images)
        scores.extend(
            _score(one.name, found, truth, split, frequencies=frequencies, settings=settings)
        )
    for protocol in PROTOCOLS:
        for h, head_report in enumerate(head_reports):
            write_assignment(
                folder.assignment(f"head{h}_{protocol}"),
                head_report.assignments[protocol],
                truth.categories,
            )
    for scored in scores:
        if scored.cut == "before":
            write_class_csv(
                folder.classes(f"{scored.reading}_{scored.result.iou_type}"),
                scored.result,
                truth.categories,
            )
    return Report(
        val="",
        discovery=None,
        protocol=settings.evaluate.protocol,
        score=score,
        num_images=len(truth.images),
        num_skipped=num_skipped,
        recall=recall,
        heads=head_reports,
        scores=scores,
        settings=settings.model_dump(mode="json"),
        versions=versions(),
    )


def _report_head(
    outputs: np.ndarray, truth: AnnotationSet, split: ClassSplit, *, num_clusters: int
) -> HeadReport:
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
    return HeadReport(
        num_clusters=num_clusters,
        clustering={
            "all": score_clustering(outputs[seen], columns[seen]),
            "known": score_clustering(outputs[seen & is_known], columns[seen & is_known]),
            "novel": score_clustering(outputs[seen & ~is_known], columns[seen & ~is_known]),
        },
        assignments={
            protocol: assign_clusters(counts, known_columns, protocol=protocol)
            for protocol in PROTOCOLS
        },
    )


def _score(
    name: str,
    found: Detections,
    truth: AnnotationSet,
    split: ClassSplit,
    *,
    frequencies: dict[int, Literal["r", "c", "f"]] | None,
    settings: Settings,
) -> list[Score]:
    """AP of one reading: of boxes and masks, unmapped outputs dropped before and after the cut."""
    assert found.within_cut is not None or not len(found)
    scores = []
    for cut in ("before", "after"):
        chosen = found
        if cut == "after" and found.within_cut is not None:
            if found.within_cut.all() and not name.startswith("head"):
                continue
            chosen = found.select(found.within_cut)
        for kind in _kinds(truth, found):
            result = evaluate_detections(
                truth,
                chosen,
                iou_type=kind,
                known_category_ids=split.known_ids(truth),
                max_detections=settings.predict.max_detections,
                frequencies=frequencies,
            )
            scores.append(Score(reading=name, cut=cut, result=result))
    return scores


def _kinds(truth: AnnotationSet, found: Detections) -> list[Literal["bbox", "segm"]]:
    with_masks = truth.has_masks and (found.rles is not None or not len(found))
    return ["bbox", "segm"] if with_masks else ["bbox"]


def _known_category_ids(split: ClassSplit, truth: AnnotationSet) -> np.ndarray:
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


def _assigned_category_ids(assignment: Assignment, truth: AnnotationSet) -> np.ndarray:
    """(C,) the evaluated file's category id of each output, -1 where it has none."""
    category_ids = np.array([category.id for category in truth.categories], dtype=np.int64)
    return np.where(assignment.is_mapped, category_ids[assignment.class_columns], -1)


def _name_outputs(found: Detections, category_ids: np.ndarray) -> Detections:
    """Detections of outputs as detections of the classes they stand for; others are dropped."""
    named = replace(found, category_ids=category_ids[found.category_ids])
    return named.select(named.category_ids >= 0)
