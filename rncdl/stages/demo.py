"""`rncdl demo`: the whole job on the drawn world, and what to compare it with."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from rncdl.baselines.centroids import fit_centroids
from rncdl.config import resolve_settings
from rncdl.discovery.bank import Bank
from rncdl.evaluation.average_precision import APResult
from rncdl.evaluation.report import Report
from rncdl.evaluation.tables import markdown_table, screen_table
from rncdl.files import write_atomically
from rncdl.prediction import classify_as_trained
from rncdl.run_folder import RunFolder
from rncdl.stages.discover import discover
from rncdl.stages.evaluate import systems_of
from rncdl.stages.examples import Showcase
from rncdl.stages.info import versions
from rncdl.stages.loading import build_heads, load_dataset, load_detector, load_heads
from rncdl.stages.measure import System, measure
from rncdl.stages.prepare import prepare_shapes
from rncdl.stages.report import write_report
from rncdl.stages.train import begin_training, resume_training
from rncdl.training.processes import join_processes
from rncdl.training.progress import console, say

PRESET = "shapes"
DETECTOR_STEPS = 340
CEILING_STEPS = 180
"""Steps of the fully supervised detector, which starts from the demo's own."""


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


def run_demo(out: Path, *, seed: int) -> None:
    """Draw, train, discover, measure, compare; a second call goes on where the first stopped."""
    began = time.monotonic()
    world, run = out / "world", RunFolder(out / "run")
    ceiling = RunFolder(out / "ceiling")
    _announce(1, "draw a world: 20 classes, 8 of them labelled")
    prepare_shapes(
        world,
        num_classes=20,
        num_known=8,
        image_px=128,
        num_labelled=1200,
        num_unlabelled=1200,
        num_val=300,
        imbalance=10.0,
        seed=seed,
    )
    _announce(2, "train a detector on the 8 known classes")
    _train(
        run,
        world / "labelled.json",
        start_from=None,
        overrides=[f"seed={seed}", f"train.steps={DETECTOR_STEPS}"],
    )
    _announce(3, "discover: extract region features once, then train heads on them")
    _discover(run, world / "unlabelled.json")
    _announce(4, "for comparison, train the same detector further with all 20 classes labelled")
    _train(
        ceiling,
        world / "oracle.json",
        start_from=run.path,
        overrides=[f"seed={seed}", f"train.steps={CEILING_STEPS}", "train.warmup_steps=20"],
    )
    _announce(5, "measure on the validation images")
    rows = _measure(run, ceiling, world / "val.json", seed=seed)
    _announce(6, "write the report")
    write_report(
        run,
        "main",
        out / "report.html",
        showcase=Showcase(world / "val.json", supervised=ceiling),
    )
    _show(rows, out, seed=seed, seconds=time.monotonic() - began)


def _announce(number: int, what: str) -> None:
    console.print(f"[bold]{number}/6[/] {what}")


def _train(
    run: RunFolder, labelled: Path, *, start_from: Path | None, overrides: list[str]
) -> None:
    if run.exists:
        resume_training(run.path, [])
        return
    begin_training(
        run.path,
        labelled,
        images=None,
        known=None,
        val=None,
        val_images=None,
        start_from=start_from,
        preset=PRESET,
        overrides=overrides,
    )


def _discover(run: RunFolder, unlabelled: Path) -> None:
    folder = run.discovery("main")
    if folder.heads_file.is_file():
        say(f"{folder.heads_file}: already trained.")
        return
    discover(
        run.path,
        [unlabelled],
        unlabelled_images=None,
        labelled=None,
        images=None,
        name="main",
        preset=None,
        online=False,
        resume=folder.exists,
        overrides=[],
    )


@torch.inference_mode()
def _measure(run: RunFolder, ceiling: RunFolder, val: Path, *, seed: int) -> list[_Row]:
    """The lines of the table, in the order of the paper's."""
    settings = resolve_settings(base=run.discovery("main").settings())
    num_clusters = settings.discover.heads[0]
    truth = load_dataset(val, None, shown=False)
    split = run.split()
    with join_processes(settings.device) as processes:
        detector = load_detector(run, settings, split)
        heads = load_heads(run, detector, "main").eval()
        torch.manual_seed(seed + 1)
        random_heads = build_heads(detector, settings.discover).eval()
        centroids = fit_centroids(
            Bank(run.bank_dir), num_known=split.num_known, num_clusters=num_clusters, seed=seed
        )
        systems = [
            System(
                "kmeans",
                centroids,
                num_clusters,
                by_objectness=settings.predict.score == "objectness",
            ),
            replace(systems_of(random_heads, settings)[0], name="random"),
            *systems_of(heads, settings),
        ]
        folder = run.evaluation(val.stem, "main")
        report = measure(
            detector,
            systems,
            truth,
            split,
            frequencies=None,
            folder=folder,
            settings=settings,
            processes=processes,
        )
        assert report is not None
        report.save(folder.report_json, folder.report_md, title="the demo")
        best = load_detector(ceiling, settings, ceiling.split())
        folder = ceiling.evaluation(val.stem, None)
        supervised = measure(
            best,
            [System("trained", classify_as_trained(best), None)],
            truth,
            ceiling.split(),
            known_ids=split.known_ids(truth),
            frequencies=None,
            folder=folder,
            settings=settings,
            processes=processes,
        )
        assert supervised is not None
        supervised.save(folder.report_json, folder.report_md, title="the fully supervised detector")
    return [
        _row("k-means on region features", report, "kmeans"),
        _row("RNCDL, random novel head", report, "random"),
        _row("RNCDL", report, "head0"),
        _Row(
            "fully supervised (the ceiling)",
            supervised.find("trained", protocol=None),
            supervised.find("trained", protocol=None, iou_type="segm"),
            None,
        ),
    ]


def _row(name: str, report: Report, system: str) -> _Row:
    novel = report.clusters[system].scores["novel"]
    return _Row(
        name,
        report.find(system),
        report.find(system, iou_type="segm"),
        None if novel is None else novel.accuracy,
    )


def _show(rows: list[_Row], out: Path, *, seed: int, seconds: float) -> None:
    cells = [row.cells() for row in rows]
    console.print(screen_table("AP in percent on the validation images", _HEADER, cells))
    packages = ", ".join(f"{name} {version}" for name, version in versions().items())
    text = (
        "# The demo\n\n"
        f"Drawn world, seed {seed}: 20 classes, 8 known. AP in percent on the validation images, "
        "clusters named by the `fixed` protocol. The fully supervised detector starts from the "
        "demo's own and is trained further with all labels.\n\n"
        + markdown_table(_HEADER, cells)
        + f"\nTook {seconds:.0f} s in all. {packages}.\n\n"
        "All numbers: [run/evaluations/val_main/report.md](run/evaluations/val_main/report.md)\n"
    )
    write_atomically(out / "report.md", text.encode())
    say(f"Took {seconds:.0f} s. Open {(out / 'report.html').resolve()}")
