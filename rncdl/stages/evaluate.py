"""`rncdl evaluate`: from a run, or a file of predictions, to the tables."""

from collections.abc import Sequence
from pathlib import Path

import torch

from rncdl.classes import ClassSplit
from rncdl.config import Settings, resolve_settings
from rncdl.data.records import AnnotationSet
from rncdl.detections import Detections, read_detections
from rncdl.detector.inference import Reading
from rncdl.detector.model import Detector
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.evaluation.average_precision import APResult, evaluate_detections
from rncdl.evaluation.frequencies import frequencies_from_training
from rncdl.evaluation.report import Report
from rncdl.evaluation.tables import ap_table, write_class_csv
from rncdl.prediction import (
    classify_as_trained,
    classify_known_only,
    classify_with_head,
    known_classifier,
    predict_images,
)
from rncdl.run_folder import AS_TRAINED, RunFolder
from rncdl.stages.loading import load_dataset, load_detector, load_heads
from rncdl.stages.measure import (
    Frequencies,
    System,
    iou_types,
    known_category_ids,
    measure,
    name_outputs,
)
from rncdl.training.processes import Processes, join_processes
from rncdl.training.progress import console, say


def evaluate(
    run_path: Path,
    val: Path,
    *,
    images: Path | None,
    name: str | None,
    train_labels: Path | None,
    overrides: Sequence[str],
) -> Report | None:
    """Measure a run on `val`: tables on the screen, files in the run folder.

    None but in the first process. `name`: a discovery; None takes the newest finished one;
    the detector as it was trained where there is none, or where `trained` is asked for.
    """
    run = RunFolder(run_path)
    name = run.choose_discovery(name)
    base = run.settings() if name is None else run.discovery(name).settings()
    settings = resolve_settings(base=base, overrides=overrides)
    folder = run.evaluation(val.stem, name)
    with join_processes(settings.device) as processes:
        truth = load_dataset(val, images, shown=processes.is_main)
        detector = load_detector(run, settings, run.split(), discovery=name)
        if name is None:
            systems = [System("trained", classify_as_trained(detector), None)]
        else:
            heads = load_heads(run, detector, name).to(processes.device).eval()
            systems = systems_of(detector, heads, settings)
        with torch.inference_mode():
            report = measure(
                detector,
                systems,
                truth,
                run.split(),
                frequencies=_frequencies(train_labels, truth),
                folder=folder,
                settings=settings,
                processes=processes,
            )
    if report is not None:
        report.save(folder.report_json, folder.report_md, title=f"{val.name}, {name or AS_TRAINED}")
        for table in report.screen_tables():
            console.print(table)
        say(f"Report: {folder.report_md} and {folder.report_json}")
    return report


def systems_of(detector: Detector, heads: DiscoveryHeads, settings: Settings) -> list[System]:
    """Each novel head alone, and the known classes alone."""
    score, known = settings.predict.score, known_classifier(detector, settings.predict)
    known_only = System(
        "knownonly",
        classify_known_only(heads, score=score, known=known),
        None,
        by_objectness=score == "objectness",
    )
    return [*head_systems(detector, heads, settings), known_only]


def head_systems(
    detector: Detector, heads: DiscoveryHeads, settings: Settings, *, prefix: str = ""
) -> list[System]:
    """Each novel head as a system of its own, named `prefix` and its number."""
    score, known = settings.predict.score, known_classifier(detector, settings.predict)
    return [
        System(
            f"{prefix}head{head}",
            classify_with_head(heads, head, score=score, known=known),
            num_clusters,
            by_objectness=score == "objectness",
        )
        for head, num_clusters in enumerate(heads.num_clusters)
    ]


def evaluate_predictions(
    predictions: Path,
    val: Path,
    *,
    images: Path | None,
    known: str | None,
    train_labels: Path | None,
    overrides: Sequence[str],
) -> list[APResult]:
    """AP of a COCO-results file without any model; its category ids are those of `val`.

    Without `known`, all classes count as known. Nothing to share: other processes than the first
    have no results.
    """
    settings = resolve_settings(overrides=overrides)
    with join_processes(settings.device) as processes:
        if not processes.is_main:
            return []
    truth = load_dataset(val, images, shown=True)
    found = read_detections(predictions, images=truth.images)
    known_ids = (
        set(ClassSplit.from_names(known).known_ids(truth))
        if known
        else {category.id for category in truth.categories}
    )
    results = []
    for kind in iou_types(truth, found):
        result = evaluate_detections(
            truth,
            found,
            iou_type=kind,
            known_category_ids=known_ids,
            max_detections=settings.predict.max_detections,
            frequencies=_frequencies(train_labels, truth),
        )
        console.print(ap_table(result, title=f"{predictions.name}, {kind}"))
        csv_path = predictions.with_name(f"{predictions.stem}_classes_{kind}.csv")
        write_class_csv(csv_path, result, truth.categories)
        results.append(result)
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
    joined = Detections.concatenate(processes.gather(own))
    found = name_outputs(joined, known_category_ids(split, truth))
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


def _frequencies(train_labels: Path | None, truth: AnnotationSet) -> Frequencies | None:
    if train_labels is None:
        return None
    return frequencies_from_training(load_dataset(train_labels, None, shown=False), truth)
