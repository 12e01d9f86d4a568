"""Does a detector lose sight of novel objects as it learns the known ones? Recall over training.

`torchrun --nproc-per-node 2 benchmarks/recall_over_training.py WORLD OUT [--every 75]
[--preset shapes] --try NAME [SETTING=VALUE ...] [--try ...]`

Trains a detector for each configuration on WORLD/labelled.json and, every so many steps, measures
on WORLD/val.json, for judging alone, how many known and novel objects are among its best 100
proposals. What is measured stands in the runs' journals; OUT/recall.svg shows it. A second call
goes on where the first stopped.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch

from rncdl.classes import ClassSplit
from rncdl.config import Settings, resolve_settings
from rncdl.data.records import AnnotationSet
from rncdl.detector.model import Detector
from rncdl.detector.pretrained import find_start, settle_start
from rncdl.detector.training import train_detector
from rncdl.evaluation.recall import measure_recall
from rncdl.inputs import load_dataset
from rncdl.models import new_detector
from rncdl.prediction.annotated import look_at_annotations
from rncdl.run_folder import RunFolder, TrainingInputs
from rncdl.training.journal import read_journal
from rncdl.training.processes import Processes, join_processes


def recall_of(
    truth: AnnotationSet, split: ClassSplit, settings: Settings, processes: Processes
) -> Callable[[Detector], dict[str, float]]:
    """A function that measures a detector in training."""

    def measure(detector: Detector) -> dict[str, float]:
        look = look_at_annotations(detector, truth, [], settings=settings, processes=processes)
        recall = measure_recall(look.proposals, truth, known_category_ids=split.known_ids(truth))
        return {
            f"{group} {name}": float(value)
            for group, of_group in (("known", recall.known), ("novel", recall.novel))
            for name, value in (
                ("AR@100", of_group.average[100]),
                ("recall", of_group.at_iou_50[100]),
            )
        }

    return measure


def train(run: RunFolder, world: Path, settings: Settings, processes: Processes) -> None:
    """Train a detector, measured on the way, unless that is done."""
    if processes.from_main(run.detector_file.is_file):
        return
    annotations = load_dataset(world / "labelled.json", None, shown=False)
    truth = load_dataset(world / "val.json", None, shown=False)
    split = ClassSplit.from_labelled(annotations)
    start = settle_start(settings.detector, find_start(settings.detector))
    settings = settings.model_copy(update={"detector": start})
    begun = processes.from_main(lambda: run.exists)
    if not begun:
        inputs = TrainingInputs.of_files(world / "labelled.json")
        processes.from_main(lambda: run.begin(settings, inputs, split))
    labels = split.keep_known(annotations)
    torch.manual_seed(settings.seed)
    detector = new_detector(settings, labels)
    detector.load_backbone_weights()
    train_detector(
        detector,
        labels,
        settings=settings,
        run=run,
        processes=processes,
        validate=recall_of(truth, split, settings, processes),
    )


def draw(runs: dict[str, RunFolder], path: Path) -> None:
    """AR@100 and recall of novel objects over the steps, a line for each run."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for name, run in runs.items():
        measured = [one for one in read_journal(run.train_journal) if one["kind"] == "val"]
        for place, what in zip(axes, ("novel AR@100", "novel recall"), strict=True):
            steps, values = [one["step"] for one in measured], [one[what] for one in measured]
            place.plot(steps, values, marker="o", markersize=3, label=name)
            place.set(xlabel="step", title=what)
            place.grid(alpha=0.3)
    axes[0].legend()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("world", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--every", type=int, default=75)
    parser.add_argument("--preset", default="shapes")
    parser.add_argument("--try", nargs="+", action="append", required=True, dest="configurations")
    options = parser.parse_args()
    wishes = [f"train.evaluate_every={options.every}"]
    tried = {
        name: resolve_settings(options.preset, [*wishes, *overrides])
        for name, *overrides in options.configurations
    }
    runs: dict[str, RunFolder] = {}
    # Once for all: torchrun's processes meet only once.
    with join_processes("auto") as processes:
        for name, settings in tried.items():
            runs[name] = RunFolder(options.out / name)
            train(runs[name], options.world, settings, processes)
            if processes.is_main:
                draw(runs, options.out / "recall.svg")


if __name__ == "__main__":
    main()
