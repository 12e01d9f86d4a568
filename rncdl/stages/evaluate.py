"""`rncdl evaluate`: from a run, or a file of predictions, to the tables."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from rncdl.classes import ClassSplit
from rncdl.config import PredictSettings, resolve_settings
from rncdl.data.records import AnnotationSet
from rncdl.detector.model import Detector
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.evaluation.ap_tables import ap_table, write_class_csv
from rncdl.evaluation.average_precision import APResult, evaluate_detections
from rncdl.evaluation.frequencies import frequencies_from_training
from rncdl.evaluation.results import Report
from rncdl.experiments.measuring import Examination, Frequencies, iou_types, measure
from rncdl.inputs import load_dataset
from rncdl.models import load_detector, load_heads
from rncdl.naming.decisions import Decisions
from rncdl.prediction.classifier import (
    Classifier,
    discovery_classifier,
    known_only_classifier,
    trained_classifier,
)
from rncdl.prediction.detections import read_detections
from rncdl.run_folder import AS_TRAINED, RunFolder
from rncdl.training.processes import join_processes
from rncdl.training.progress import console, say


def evaluate(
    run_path: Path,
    val: Path,
    *,
    images: Path | None,
    name: str | None,
    train_labels: Path | None,
    overrides: Sequence[str],
    raw: bool = False,
) -> Report | None:
    """Measure a run on `val`: tables on the screen, files in the run folder.

    None but in the first process. `name`: a discovery; None takes the newest finished one;
    the detector as it was trained where there is none, or where `trained` is asked for. `raw`:
    clusters as they are; else as people have decided, where they have.
    """
    run = RunFolder(run_path)
    name = run.choose_discovery(name)
    base = run.settings() if name is None else run.discovery(name).settings()
    settings = resolve_settings(base=base, overrides=overrides)
    with join_processes(settings.device) as processes:
        # Read once for all: people may be deciding at this moment.
        decisions = {} if raw else processes.from_main(partial(_decisions, run, name))
        folder = run.evaluation(val.stem, name, decided=bool(decisions))
        truth = load_dataset(val, images, shown=processes.is_main)
        split = run.split()
        detector = load_detector(run, settings, split, discovery=name)
        detector.to(processes.device).eval()
        if name is None:
            classifiers = {"trained": trained_classifier(detector, split.known)}
        else:
            heads = load_heads(run, detector, name)
            classifiers = {
                system: one.decided(decisions.get(system))
                for system, one in classifiers_of(
                    detector, heads, split.known, settings.predict
                ).items()
            }
        examination = Examination(
            truth,
            split,
            folder,
            settings,
            frequencies=_frequencies(train_labels, truth),
            with_bound=not decisions,
        )
        report = measure(detector, classifiers, examination, processes=processes)
    if report is not None:
        title = f"{val.name}, {name or AS_TRAINED}{', as people have named' if decisions else ''}"
        report.save(folder.report_json, folder.report_md, title=title)
        for table in report.screen_tables():
            console.print(table)
        say(f"Report: {folder.report_md} and {folder.report_json}")
    return report


def _decisions(run: RunFolder, name: str | None) -> Mapping[str, Decisions]:
    """What people have decided, of each head that they have decided about."""
    if name is None:
        return {}
    folder = run.discovery(name)
    of_heads = {
        f"head{head}": folder.decisions(head)
        for head in range(len(folder.settings().discover.heads))
    }
    return {system: one for system, one in of_heads.items() if one.names or one.ignored}


def classifiers_of(
    detector: Detector, heads: DiscoveryHeads, known: Sequence[str], predict: PredictSettings
) -> dict[str, Classifier]:
    """By each novel head alone, and the known classes alone."""
    by_head = {
        f"head{head}": discovery_classifier(detector, heads, known, head=head, predict=predict)
        for head in range(len(heads.num_clusters))
    }
    known_only = known_only_classifier(detector, heads, known, predict=predict)
    return {**by_head, "knownonly": known_only}


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


def _frequencies(train_labels: Path | None, truth: AnnotationSet) -> Frequencies | None:
    if train_labels is None:
        return None
    return frequencies_from_training(load_dataset(train_labels, None, shown=False), truth)
