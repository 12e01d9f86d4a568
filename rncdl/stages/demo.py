"""`rncdl demo`: the whole job on the drawn world, and what to compare it with."""

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from rncdl.config import Settings, change, resolve_settings
from rncdl.data.shapes import World
from rncdl.detector.model import Detector
from rncdl.discovery.bank import Bank
from rncdl.evaluation.ap_tables import markdown_table, screen_table
from rncdl.evaluation.average_precision import APResult
from rncdl.evaluation.results import Report
from rncdl.experiments.baselines.centroids import fit_centroids
from rncdl.experiments.measuring import Examination, measure
from rncdl.files import write_atomically
from rncdl.inputs import load_dataset, named_inputs
from rncdl.models import build_heads, load_detector, load_heads
from rncdl.prediction.classifier import (
    Classifier,
    baseline_classifier,
    discovery_classifier,
    trained_classifier,
)
from rncdl.run_folder import RunFolder, TrainingInputs
from rncdl.stages.discover import discover
from rncdl.stages.evaluate import classifiers_of
from rncdl.stages.prepare import prepare_shapes
from rncdl.stages.report import write_report
from rncdl.stages.report_drawings import ComparedImages
from rncdl.stages.train import begin_training, resume_training
from rncdl.training.processes import Processes, join_processes
from rncdl.training.progress import console, say
from rncdl.training.schedule import shorten_schedule
from rncdl.version import versions

PRESET = "shapes-teacher"


@dataclass(frozen=True)
class DemoSize:
    """How much the demo does."""

    classes: int = 20
    known: int = 8
    image_px: int = 128
    labelled: int = 1200
    unlabelled: int = 1200
    val: int = 300
    detector_steps: int = 520
    ceiling_steps: int = 180
    """of the fully supervised detector, which starts from the demo's own"""
    overrides: tuple[str, ...] = ()
    """settings that differ from the preset's"""


@dataclass(frozen=True)
class _Row:
    """One line of the table at the end: box AP of the three groups, novel clustering accuracy."""

    name: str
    boxes: APResult
    masks: APResult
    accuracy: float | None

    def cells(self) -> list[str]:
        groups = [self.boxes.known, self.boxes.novel, self.boxes.all, self.masks.novel]
        values = [100 * (group.ap or 0.0) for group in groups]
        accuracy = "-" if self.accuracy is None else f"{self.accuracy:.3f}"
        return [self.name, *(f"{value:.1f}" for value in values), accuracy]


_HEADER = ["System", "known AP", "novel AP", "all AP", "novel mask AP", "novel cluster acc."]


def run_demo(out: Path, *, seed: int, size: DemoSize) -> None:
    """Draw, train, discover, measure, compare; a second call goes on where the first stopped."""
    began = time.monotonic()
    world, run = out / "world", RunFolder(out / "run")
    ceiling = RunFolder(out / "ceiling")
    settings = change(resolve_settings(PRESET, size.overrides), seed=seed)
    with join_processes(settings.device) as processes:
        announce = _announce if processes.is_main else lambda *_: None
        announce(1, f"draw a world: {size.classes} classes, {size.known} of them labelled")
        if processes.is_main:
            _draw(world, size, seed=seed)
        announce(2, f"train a detector on the {size.known} known classes")
        schedule = shorten_schedule(settings.train, size.detector_steps)
        _train(run, world / "labelled.json", None, change(settings, train=schedule))
        announce(3, "discover: extract region features once, then train heads on them")
        _discover(run, world / "unlabelled.json")
        announce(4, f"for comparison, train it further with all {size.classes} classes labelled")
        schedule = shorten_schedule(settings.train, size.ceiling_steps)
        schedule["objects_at"] = 0  # nothing is left to be found
        _train(ceiling, world / "oracle.json", run.path, change(settings, train=schedule))
        announce(5, "measure on the validation images")
        rows = _measure(run, ceiling, world / "val.json", seed=seed, processes=processes)
        if rows is None:
            return
        announce(6, "write the report")
        compared = ComparedImages(world / "val.json", supervised=ceiling)
        write_report(run, "main", out / "report.html", compared=compared)
        _show(rows, out, size, seed=seed, seconds=time.monotonic() - began)


def _draw(world: Path, size: DemoSize, *, seed: int) -> None:
    prepare_shapes(
        world,
        World(
            num_classes=size.classes,
            num_known=size.known,
            image_px=size.image_px,
            num_labelled=size.labelled,
            num_unlabelled=size.unlabelled,
            num_val=size.val,
            seed=seed,
        ),
    )


def _announce(number: int, what: str) -> None:
    console.print(f"[bold]{number}/6[/] {what}")


def _train(run: RunFolder, labelled: Path, start_from: Path | None, settings: Settings) -> None:
    if run.exists:
        resume_training(run.path, [])
        return
    inputs = TrainingInputs.of_files(labelled, start_from=start_from)
    begin_training(run.path, inputs, settings=settings)


def _discover(run: RunFolder, unlabelled: Path) -> None:
    folder = run.discovery("main")
    if folder.heads_file.is_file():
        say(f"{folder.heads_file}: already trained.")
        return
    discover(run.path, named_inputs(run, [unlabelled]), resume=folder.exists)


def _measure(
    run: RunFolder, ceiling: RunFolder, val: Path, *, seed: int, processes: Processes
) -> list[_Row] | None:
    """The lines of the table, in the order of the paper's; None but in the first process."""
    settings = run.discovery("main").settings()
    truth, split = load_dataset(val, None, shown=False), run.split()
    detector = load_detector(run, settings, split).to(processes.device).eval()
    classifiers = _classifiers(run, detector, settings, seed=seed, processes=processes)
    folder = run.evaluation(val.stem, "main")
    examination = Examination(truth, split, folder, settings)
    report = measure(detector, classifiers, examination, processes=processes)
    best = load_detector(ceiling, settings, ceiling.split()).to(processes.device).eval()
    ceiling_folder = ceiling.evaluation(val.stem, None)
    supervised = measure(
        best,
        {"trained": trained_classifier(best, ceiling.split().known)},
        Examination(
            truth,
            ceiling.split(),
            ceiling_folder,
            settings,
            known_ids=split.known_ids(truth),
        ),
        processes=processes,
    )
    if report is None or supervised is None:
        return None
    report.save(folder.report_json, folder.report_md, title="the demo")
    title = "the fully supervised detector"
    supervised.save(ceiling_folder.report_json, ceiling_folder.report_md, title=title)
    return [
        _row("k-means on region features", report, "kmeans"),
        _row("the same, weighed as RNCDL is", report, "kmeans_weighed"),
        _row("RNCDL, random novel head", report, "random"),
        _row("RNCDL", report, "head0"),
        _Row(
            "fully supervised (the ceiling)",
            supervised.find("trained", protocol=None),
            supervised.find("trained", protocol=None, iou_type="segm"),
            None,
        ),
    ]


def _classifiers(
    run: RunFolder, detector: Detector, settings: Settings, *, seed: int, processes: Processes
) -> dict[str, Classifier]:
    """k-means in two weightings, a random novel head, and the discovery."""
    known, num_clusters = run.split().known, settings.discover.heads[0]
    centroids = processes.from_main(
        lambda: fit_centroids(
            Bank(run.bank_dir),
            num_known=len(known),
            num_clusters=num_clusters,
            seed=seed,
            device=processes.device,
        )
    )
    by_kmeans = {
        name: baseline_classifier(
            detector, centroids, known, num_clusters=num_clusters, score=score
        )
        for name, score in (("kmeans", "softmax"), ("kmeans_weighed", settings.predict.score))
    }
    torch.manual_seed(seed + 1)
    random_heads = build_heads(detector, settings.discover)
    random = discovery_classifier(detector, random_heads, known, predict=settings.predict)
    heads = load_heads(run, detector, "main")
    return {
        **by_kmeans,
        "random": random,
        **classifiers_of(detector, heads, known, settings.predict),
    }


def _row(name: str, report: Report, system: str) -> _Row:
    novel = report.clusters[system].scores["novel"]
    return _Row(
        name,
        report.find(system),
        report.find(system, iou_type="segm"),
        None if novel is None else novel.accuracy,
    )


def _show(rows: list[_Row], out: Path, size: DemoSize, *, seed: int, seconds: float) -> None:
    cells = [row.cells() for row in rows]
    console.print(screen_table("AP in percent on the validation images", _HEADER, cells))
    packages = ", ".join(f"{name} {version}" for name, version in versions().items())
    text = (
        "# The demo\n\n"
        f"Drawn world, seed {seed}: {size.classes} classes, {size.known} known. AP in percent on "
        "the validation images, clusters named by the `fixed` protocol. k-means is always sure "
        "(confidence 1, as in the paper); RNCDL is weighed by how likely a region is an object and "
        "how well it seems to fit. The fully supervised "
        "detector starts from the demo's own and is trained further with all labels.\n\n"
        + markdown_table(_HEADER, cells)
        + f"\nTook {seconds:.0f} s in all. {packages}.\n\n"
        "All numbers: [run/evaluations/main/val/report.md](run/evaluations/main/val/report.md)\n"
    )
    write_atomically(out / "report.md", text.encode())
    say(f"Took {seconds:.0f} s. Open {(out / 'report.html').resolve()}")
