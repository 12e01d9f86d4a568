"""What is a click worth? Naming clusters against labelling boxes, on drawn worlds or given data.

`python benchmarks/clicks.py FOLDER [--worlds 10,11,12] [--clicks 10,20,40,80] [--clusters 80]
[--steps 120] [--second-round 40,80] [--picture docs/images/clicks.png] [SETTING=VALUE ...]`
`python benchmarks/clicks.py FOLDER --given DATA [--base RUN] [--preset P] [--val FILE] [...]`

A simulated person who knows the truth looks at clusters as `rncdl name` orders them, the most
promising first. Each takes one click: the class that most of its 20 most certain regions show is
its name (the same name merges, a known class's name adds to that class), and where most show no
object it is ignored. Measured are the novel AP with these names at once; after one retraining with
the labels that `rncdl promote` makes of them; and after two, half of the clicks being spent on the
clusters of each round. Beside that, the same number of clicks spent on labelling: a click is the
true box, mask (if the data have any) and class of one object of a novel class, drawn at random;
known objects of its image come with it for nothing. All retrainings start from the same detector
and have the same number of steps and the same settings, those of the detector but for the given
ones; the ceiling's is with all labels of all images.

DATA holds labelled.json, unlabelled.json, oracle.json (all labels of the images of both) and
val.json. RUN is a run trained on that labelled.json; it is copied, its banks are linked, and P then
changes the settings of the discoveries alone. Without RUN, P is what the detector is trained with.

Novel AP is the mean over the novel classes, of boxes, in percent. Clusters that nobody has named
count for nothing. Everything is kept in FOLDER, and a second call, or one with another FILE to
measure on, goes on where the first stopped. Prints tables and writes them to FOLDER/clicks_VAL.md.
"""

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from simulated_person import label_boxes, spend_clicks

from rncdl.evaluation.ap_tables import markdown_table
from rncdl.evaluation.outcomes import summarise
from rncdl.files import write_atomically
from rncdl.run_folder import RunFolder

CEILING = "ceiling"
CURVES = {
    "boxes": "boxes labelled at random, one retraining",
    "named": "clusters named",
    "round 1": "clusters named, one retraining",
    "round 2": "clusters named, two retrainings",
}
COLOURS = {"boxes": "0.5", "named": "tab:blue", "round 1": "tab:red", "round 2": "tab:orange"}


@dataclass(frozen=True)
class Recipe:
    """How detectors and clusters are made."""

    preset: str | None
    base: Path | None
    """a run whose detector is taken; None: one is trained"""
    clusters: int
    steps: int
    """of a retraining"""
    retraining: tuple[str, ...]
    """its settings that differ from the first detector's"""
    processes: int


@dataclass(frozen=True)
class Laboratory:
    """Where things of one world are kept, and how they are made."""

    folder: Path
    seed: int
    data: Path
    """the folder of labelled.json, unlabelled.json and oracle.json"""
    val: Path
    recipe: Recipe

    @property
    def base(self) -> Path:
        """The run that all others start from."""
        return self.folder / "base"

    def prepare(self) -> None:
        """A detector of the known classes, and a discovery."""
        taken = self.recipe.base
        if taken is None:
            preset = self.recipe.preset or "shapes-teacher"
            words = ["--preset", preset, f"seed={self.seed}"]
            self.train(self.base, self.data / "labelled.json", *words)
        elif not self.base.is_dir():
            with unfinished(self.base) as half:
                copy_run(taken, half, "discoveries", "compare", "ablate", "report.html")
        self.discover(self.base)

    def train(self, run: Path, labelled: Path, *words: object) -> None:
        if RunFolder(run).detector_file.is_file():
            return
        first = ["--labelled", labelled, *words]
        self.rncdl("train", "--run", run, *(["--resume"] if RunFolder(run).exists else first))

    def retrain(self, run: Path, labelled: Path) -> float:
        """Novel AP after some more steps of the first detector with these labels."""
        self.train_further(run, labelled)
        folder = RunFolder(run).evaluation(self.val.stem, None)
        return self.novel_ap(folder.classes("trained_bbox"), run, "--discovery", "trained")

    def train_further(self, run: Path, labelled: Path) -> None:
        """Some more steps of the first detector with these labels."""
        settings = self.base / "settings.yaml"
        words = ["--start-from", self.base, "--preset", settings]
        steps = self.recipe.steps
        few = [f"train.steps={steps}", f"train.warmup_steps={steps // 6}"]
        self.train(run, labelled, *words, *few, *self.recipe.retraining)

    def discover(self, run: Path) -> None:
        words: list[object] = []
        if self.recipe.base is not None and self.recipe.preset is not None:
            words += ["--preset", self.recipe.preset]
        self.discover_with(run, *words, f"discover.heads=[{self.recipe.clusters}]")

    def discover_with(self, run: Path, *words: object) -> None:
        """A discovery with these settings, where there is none yet."""
        folder = RunFolder(run).discovery("main")
        if folder.heads_file.is_file():
            return
        first = ["--unlabelled", self.data / "unlabelled.json", *words]
        self.rncdl("discover", "--run", run, *(["--resume"] if folder.exists else first))

    def novel_ap(self, classes: Path, run: Path, *words: object) -> float:
        """Mean AP in percent of the classes that the first detector does not know.

        classes: where `rncdl evaluate` writes them, with these words.
        """
        if not classes.is_file():
            self.rncdl("evaluate", self.val, "--run", run, "--images", self.data, *words)
        known = RunFolder(self.base).split().known
        with classes.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["class"] not in known and row["AP"]]
        return 100 * float(np.mean([float(row["AP"]) for row in rows]))

    def rncdl(self, *words: object) -> None:
        call_rncdl("--processes", self.recipe.processes, *words)

    def named(self, run: Path, num_clicks: int, copy: Path) -> Path:
        """A copy of a run whose clusters somebody has named with so many clicks."""
        if not copy.is_dir():
            with unfinished(copy) as half:
                copy_run(run, half, "*.sqlite*")
                spend_clicks(half, self.data / "oracle.json", num_clicks)
        return copy

    def promoted(self, named: Path) -> Path | None:
        """The labels that the names make; None where they make none."""
        out, refused = named / "promoted.json", named / "nothing_to_promote"
        if not out.is_file() and not refused.is_file():
            try:
                self.rncdl("promote", "--run", named, "--out", out)
            except subprocess.CalledProcessError as error:
                if error.returncode != 2:
                    raise
                refused.touch()
        return out if out.is_file() else None


def call_rncdl(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "rncdl", *map(str, words)], check=True)


@contextmanager
def unfinished(folder: Path) -> Iterator[Path]:
    """A folder to fill, which then becomes the wanted one."""
    half = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(half, ignore_errors=True)
    yield half
    half.rename(folder)


def copy_run(run: Path, copy: Path, *left_out: str) -> None:
    """A run once more; its banks, which are only read, are links."""
    banks = ("bank", "object_bank")
    left_out = (*banks, "checkpoints", "evaluations", *left_out)
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns(*left_out))
    for bank in banks:
        if (run / bank).is_dir():
            (copy / bank).symlink_to((run / bank).resolve())


class Points:
    """Novel AP of one world, by curve and clicks, kept in a file as they come."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.values: dict[str, dict[str, float]] = {}
        if path.is_file():
            self.values = json.loads(path.read_text())

    def add(self, curve: str, clicks: int, measure: Callable[[], float]) -> None:
        """Measure a point that is not there yet."""
        found = self.values.setdefault(curve, {})
        if str(clicks) not in found:
            found[str(clicks)] = measure()
            write_atomically(self._path, json.dumps(self.values, indent=2).encode())
            print(f"{curve}, {clicks} clicks: novel AP {found[str(clicks)]:.1f}", flush=True)


def measure_world(
    laboratory: Laboratory, clicks: Sequence[int], second_round: Sequence[int], points: "Points"
) -> None:
    """Every point of every curve, those that say the most first."""
    laboratory.prepare()
    folder, oracle = laboratory.folder, laboratory.data / "oracle.json"
    points.add(CEILING, 0, lambda: laboratory.retrain(folder / "ceiling", oracle))

    def named(count: int) -> Path:
        return laboratory.named(laboratory.base, count, folder / f"named_{count}")

    def named_ap(count: int) -> float:
        run = named(count)
        names = set(RunFolder(run).discovery("main").decisions(0).names.values())
        if names <= set(RunFolder(run).split().known):
            return 0.0
        measured = RunFolder(run).evaluation(laboratory.val.stem, "main", decided=True)
        return laboratory.novel_ap(measured.classes("head0_named_bbox"), run)

    def retrained_ap(run: Path, again: Path) -> float:
        labels = laboratory.promoted(run)
        return 0.0 if labels is None else laboratory.retrain(again, labels)

    def boxes_ap(count: int) -> float:
        out = folder / f"boxes_{count}.json"
        labels = label_boxes(laboratory.data, count, out, seed=laboratory.seed)
        return laboratory.retrain(folder / f"boxes_{count}", labels)

    def second_ap(count: int) -> float:
        first = folder / f"round_1_{count // 2}"
        if laboratory.promoted(named(count // 2)) is None:
            return first_ap(count)  # so few clicks made no labels: nothing to discover with
        first_ap(count // 2)
        laboratory.discover(first)
        run = laboratory.named(first, count - count // 2, folder / f"named_again_{count}")
        return retrained_ap(run, folder / f"round_2_{count}")

    def first_ap(count: int) -> float:
        return retrained_ap(named(count), folder / f"round_1_{count}")

    for count in clicks:
        points.add("round 1", count, partial(first_ap, count))
        points.add("boxes", count, partial(boxes_ap, count))
        points.add("named", count, partial(named_ap, count))
    for count in second_round:
        points.add("round 2", count, partial(second_ap, count))


def values_at(worlds: Sequence[Points], curve: str, clicks: int) -> list[float]:
    """Of the worlds where it was measured."""
    return [
        world.values[curve][str(clicks)]
        for world in worlds
        if str(clicks) in world.values.get(curve, {})
    ]


def table(worlds: Sequence[Points], clicks: Sequence[int]) -> str:
    """A line for each curve: mean ± standard deviation over the worlds."""
    ceiling = _cell(values_at(worlds, CEILING, 0))
    rows = [
        [title, *(_cell(values_at(worlds, curve, count)) for count in clicks)]
        for curve, title in CURVES.items()
    ]
    counts = f"{len(worlds)} seed{'s' if len(worlds) > 1 else ''}"
    header = [f"novel AP after so many clicks, {counts}", *map(str, clicks)]
    return f"{markdown_table(header, rows)}\nCeiling, all labels: {ceiling}.\n"


def _cell(values: Sequence[float]) -> str:
    summary = summarise(values)
    if summary is None:
        return "-"
    spread = "" if summary.spread is None else f" ± {summary.spread:.1f}"
    return f"{summary.mean:.1f}{spread}"


def draw(worlds: Sequence[Points], clicks: Sequence[int], out: Path) -> None:
    """The curves, from no click on where the fewest clicks were measured, and the ceiling."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for curve, title in CURVES.items():
        means = {c: float(np.mean(found)) for c in clicks if (found := values_at(worlds, curve, c))}
        if means:
            start = [0] if clicks[0] in means else []
            clicks_of, values = [*start, *means], [*start, *means.values()]
            axes.plot(clicks_of, values, "o-", color=COLOURS[curve], label=title)
    if ceiling := values_at(worlds, CEILING, 0):
        axes.axhline(float(np.mean(ceiling)), color="0.3", ls=":", label="all labels (ceiling)")
    axes.set(xlabel="clicks", ylabel="AP of the novel classes", ylim=(0, None), xlim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110)


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--worlds", type=_numbers, help="seeds; 10,11,12, or 0 with --given")
    parser.add_argument("--given", type=Path, help="data in place of drawn worlds")
    parser.add_argument("--base", type=Path, help="with --given: a run with a trained detector")
    parser.add_argument("--preset", help="default without --base: shapes-teacher")
    parser.add_argument("--val", type=Path, help="with --given: in place of its val.json")
    parser.add_argument("--clicks", type=_numbers, default=[10, 20, 40, 80])
    parser.add_argument("--second-round", type=_numbers, default=[20, 40, 80], help="clicks")
    parser.add_argument("--clusters", type=int, default=80)
    parser.add_argument("--steps", type=int, default=120, help="of a retraining")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("settings", nargs="*", metavar="SETTING=VALUE", help="of retrainings")
    options = parser.parse_intermixed_args()
    if options.given is None and (options.base or options.val):
        parser.error("--base and --val need --given")
    if options.worlds is None:
        options.worlds = [10, 11, 12] if options.given is None else [0]
    return options


def _data(options: argparse.Namespace, folder: Path, seed: int) -> Path:
    """The given data, or a drawn world."""
    if options.given is not None:
        return options.given.resolve()
    if not (folder / "world" / "val.json").is_file():
        call_rncdl("prepare", "shapes", folder / "world", "--seed", seed)
    return folder / "world"


def main() -> None:
    options = _options()
    base = None if options.base is None else options.base.resolve()
    recipe = Recipe(
        options.preset,
        base,
        options.clusters,
        options.steps,
        tuple(options.settings),
        options.processes,
    )
    worlds = []
    for seed in options.worlds:
        folder = options.folder.resolve() / str(seed)
        data = _data(options, folder, seed)
        val = (options.val or data / "val.json").resolve()
        worlds.append(Points(folder / f"points_{val.stem}.json"))
        laboratory = Laboratory(folder, seed, data, val, recipe)
        measure_world(laboratory, options.clicks, options.second_round, worlds[-1])
        text = f"{' '.join(sys.argv)}\n\n{table(worlds, sorted(options.clicks))}"
        print(text, flush=True)
        write_atomically(options.folder / f"clicks_{val.stem}.md", text.encode())
    if options.picture is not None:
        draw(worlds, sorted(options.clicks), options.picture)


if __name__ == "__main__":
    main()
