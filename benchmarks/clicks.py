"""What is a click worth? Naming clusters against labelling boxes, on drawn worlds.

`python benchmarks/clicks.py FOLDER [--worlds 10,11,12] [--clicks 10,20,40,80] [--clusters 80]
[--steps 120] [--second-round 40,80] [--picture docs/images/clicks.png]`

A simulated person who knows the truth looks at clusters as `rncdl name` orders them, the most
promising first. Each takes one click: the class that most of its 20 most certain regions show is
its name (the same name merges, a known class's name adds to that class), and where most show no
object it is ignored. Measured are the novel AP with these names at once; after one retraining with
the labels that `rncdl promote` makes of them; and after two, half of the clicks being spent on the
clusters of each round. Beside that, the same number of clicks spent on labelling: a click is the
true box, mask and class of one object of a novel class, drawn at random; known objects of its
image come with it for nothing. All retrainings start from the same detector and have the same
number of steps; the ceiling's is with all labels of all images.

Novel AP is the mean over the world's novel classes, of boxes, in percent. Clusters that nobody has
named count for nothing. Everything is kept in FOLDER, and a second call goes on where the first
stopped. Prints tables and writes them to FOLDER/clicks.md.
"""

import argparse
import csv
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torchvision.ops import box_iou

from rncdl.data.annotations import load_annotations
from rncdl.data.records import AnnotationSet
from rncdl.discovery.bank import Bank
from rncdl.evaluation.ap_tables import markdown_table
from rncdl.evaluation.outcomes import summarise
from rncdl.files import write_atomically
from rncdl.inputs import load_pool
from rncdl.naming.deciding import ignore_clusters, name_clusters
from rncdl.run_folder import RunFolder
from rncdl.stages.name import open_served

NUM_LOOKED_AT = 20
"""Regions of a cluster that the person looks at."""
SAME_OBJECT_IOU = 0.5
CEILING = "ceiling"
CURVES = {
    "boxes": "boxes labelled at random, one retraining",
    "named": "clusters named",
    "round 1": "clusters named, one retraining",
    "round 2": "clusters named, two retrainings",
}
COLOURS = {"boxes": "0.5", "named": "tab:blue", "round 1": "tab:red", "round 2": "tab:orange"}


@dataclass(frozen=True)
class Laboratory:
    """Where things of one world are kept, and how they are made."""

    folder: Path
    seed: int
    clusters: int
    steps: int
    processes: int

    @property
    def world(self) -> Path:
        return self.folder / "world"

    @property
    def base(self) -> Path:
        """The run that all others start from."""
        return self.folder / "base"

    def prepare(self) -> None:
        """The world, a detector of its known classes, and a discovery."""
        if not (self.world / "val.json").is_file():
            self.rncdl("prepare", "shapes", self.world, "--seed", self.seed)
        labelled = self.world / "labelled.json"
        self.train(self.base, labelled, "--preset", "shapes-teacher", f"seed={self.seed}")
        self.discover(self.base)

    def train(self, run: Path, labelled: Path, *words: object) -> None:
        if RunFolder(run).detector_file.is_file():
            return
        first = ["--labelled", labelled, *words]
        self.rncdl("train", "--run", run, *(["--resume"] if RunFolder(run).exists else first))

    def retrain(self, run: Path, labelled: Path) -> float:
        """Novel AP after some more steps of the first detector with these labels."""
        settings = self.base / "settings.yaml"
        words = ["--start-from", self.base, "--preset", settings]
        few = [f"train.steps={self.steps}", f"train.warmup_steps={self.steps // 6}"]
        self.train(run, labelled, *words, *few)
        classes = RunFolder(run).evaluation("val", None).classes("trained_bbox")
        if not classes.is_file():
            val = self.world / "val.json"
            self.rncdl("evaluate", val, "--run", run, "--discovery", "trained")
        return self.novel_ap(classes)

    def discover(self, run: Path) -> None:
        folder = RunFolder(run).discovery("main")
        if folder.heads_file.is_file():
            return
        words = [
            "--unlabelled",
            self.world / "unlabelled.json",
            f"discover.heads=[{self.clusters}]",
        ]
        self.rncdl("discover", "--run", run, *(["--resume"] if folder.exists else words))

    def novel_ap(self, classes: Path) -> float:
        """Mean AP in percent of the classes that the first detector does not know."""
        known = RunFolder(self.base).split().known
        with classes.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["class"] not in known and row["AP"]]
        return 100 * float(np.mean([float(row["AP"]) for row in rows]))

    def rncdl(self, *words: object) -> None:
        command = words if words[0] == "prepare" else ("--processes", self.processes, *words)
        subprocess.run([sys.executable, "-m", "rncdl", *map(str, command)], check=True)

    def named(self, run: Path, num_clicks: int, copy: Path) -> Path:
        """A copy of a run whose clusters somebody has named with so many clicks."""
        if not copy.is_dir():
            half = copy.with_name(f"{copy.name}.unfinished")
            shutil.rmtree(half, ignore_errors=True)
            left_out = shutil.ignore_patterns("bank", "checkpoints", "evaluations", "*.sqlite*")
            shutil.copytree(run, half, ignore=left_out)
            (half / "bank").symlink_to(run / "bank")
            spend_clicks(half, self.world / "oracle.json", num_clicks)
            half.rename(copy)
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


def spend_clicks(run: Path, oracle: Path, num_clicks: int) -> None:
    """Name, merge or ignore as many clusters, the most promising first."""
    opened = RunFolder(run)
    discovery = opened.discovery("main")
    board, bank = open_served(opened, "main", 0).board, Bank(opened.bank_dir)
    truth = Truth(load_annotations(oracle).annotations)
    inputs = discovery.inputs()
    assert inputs is not None
    pool = load_pool(opened, inputs, settings=discovery.settings(), shown=False)
    facts = board.membership.facts
    order = sorted(range(len(facts)), key=lambda cluster: -facts[cluster].promise)
    for cluster in order[:num_clicks]:
        members = board.members(cluster, start=0, count=NUM_LOOKED_AT)["members"]
        seen = Counter(
            truth.class_of(
                pool.images[image].path, bank.read_boxes(image, count=region + 1)[region]
            )
            for image, region in (one["key"] for one in members)
        )
        name = seen.most_common(1)[0][0] if seen else None
        if name is None:
            ignore_clusters(board, [cluster], ignored=True, seen=board.version)
        else:
            name_clusters(board, [cluster], name, merge=True, seen=board.version)
        board.refresh()
    board.store.close()


class Truth:
    """What every region of every training image really shows."""

    def __init__(self, annotations: AnnotationSet) -> None:
        self._annotations = annotations
        self._index = {image.path: index for index, image in enumerate(annotations.images)}
        self._names = {category.id: category.name for category in annotations.categories}

    def class_of(self, path: Path, box_xyxy: torch.Tensor) -> str | None:
        """The class of the object that a box lies on; None: on none."""
        rows = self._annotations.rows_of_image(self._index[path])
        boxes = torch.from_numpy(self._annotations.boxes_xyxy[rows]).float()
        if not len(boxes):
            return None
        ious = box_iou(box_xyxy[None].float(), boxes)[0]
        if ious.max() < SAME_OBJECT_IOU:
            return None
        return self._names[int(self._annotations.category_ids[rows][int(ious.argmax())])]


def label_boxes(world: Path, num_clicks: int, out: Path, *, seed: int) -> Path:
    """The labelled file, with as many novel objects of the unlabelled images, drawn at random."""
    labelled, unlabelled, oracle = (
        json.loads((world / f"{name}.json").read_text())
        for name in ("labelled", "unlabelled", "oracle")
    )
    known_ids = {category["id"] for category in labelled["categories"]}
    of_image: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for one in oracle["annotations"]:
        of_image[one["image_id"]].append(one)
    ids = {image["id"] for image in unlabelled["images"]}
    novel = [
        one
        for one in oracle["annotations"]
        if one["image_id"] in ids and one["category_id"] not in known_ids
    ]
    drawn = random.Random(seed).sample(novel, num_clicks)
    images = {one["image_id"] for one in drawn}
    free = [one for i in images for one in of_image[i] if one["category_id"] in known_ids]
    added = [*drawn, *free]
    first = 1 + max(one["id"] for one in labelled["annotations"])
    content = {
        "images": [
            {**image, "file_name": str(world / image["file_name"])}
            for image in (
                *labelled["images"],
                *(image for image in unlabelled["images"] if image["id"] in images),
            )
        ],
        "annotations": [
            *labelled["annotations"],
            *({**one, "id": first + i} for i, one in enumerate(added)),
        ],
        "categories": oracle["categories"],
    }
    write_atomically(out, json.dumps(content).encode())
    return out


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
    folder, oracle = laboratory.folder, laboratory.world / "oracle.json"
    points.add(CEILING, 0, lambda: laboratory.retrain(folder / "ceiling", oracle))

    def named(count: int) -> Path:
        return laboratory.named(laboratory.base, count, folder / f"named_{count}")

    def named_ap(count: int) -> float:
        run = named(count)
        classes = RunFolder(run).evaluation("val", "main", decided=True)
        if not classes.classes("head0_named_bbox").is_file():
            laboratory.rncdl("evaluate", laboratory.world / "val.json", "--run", run)
        return laboratory.novel_ap(classes.classes("head0_named_bbox"))

    def retrained_ap(run: Path, again: Path) -> float:
        labels = laboratory.promoted(run)
        return 0.0 if labels is None else laboratory.retrain(again, labels)

    def boxes_ap(count: int) -> float:
        out = folder / f"boxes_{count}.json"
        labels = label_boxes(laboratory.world, count, out, seed=laboratory.seed)
        return laboratory.retrain(folder / f"boxes_{count}", labels)

    def second_ap(count: int) -> float:
        first = folder / f"round_1_{count // 2}"
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
    counts = f"{len(worlds)} world{'s' if len(worlds) > 1 else ''}"
    header = [f"novel AP after so many clicks, {counts}", *map(str, clicks)]
    return f"{markdown_table(header, rows)}\nCeiling, all labels: {ceiling}.\n"


def _cell(values: Sequence[float]) -> str:
    summary = summarise(values)
    if summary is None:
        return "-"
    spread = "" if summary.spread is None else f" ± {summary.spread:.1f}"
    return f"{summary.mean:.1f}{spread}"


def draw(worlds: Sequence[Points], clicks: Sequence[int], out: Path) -> None:
    """The curves, from nothing at no click, and the ceiling."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for curve, title in CURVES.items():
        means = {c: float(np.mean(found)) for c in clicks if (found := values_at(worlds, curve, c))}
        if means:
            axes.plot([0, *means], [0, *means.values()], "o-", color=COLOURS[curve], label=title)
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
    parser.add_argument("--worlds", type=_numbers, default=[10, 11, 12], help="seeds")
    parser.add_argument("--clicks", type=_numbers, default=[10, 20, 40, 80])
    parser.add_argument("--second-round", type=_numbers, default=[20, 40, 80], help="clicks")
    parser.add_argument("--clusters", type=int, default=80)
    parser.add_argument("--steps", type=int, default=120, help="of a retraining")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--picture", type=Path)
    return parser.parse_args()


def main() -> None:
    options = _options()
    worlds = []
    for seed in options.worlds:
        folder = options.folder.resolve() / str(seed)
        laboratory = Laboratory(folder, seed, options.clusters, options.steps, options.processes)
        worlds.append(Points(folder / "points.json"))
        measure_world(laboratory, options.clicks, options.second_round, worlds[-1])
        text = f"{' '.join(sys.argv)}\n\n{table(worlds, sorted(options.clicks))}"
        print(text, flush=True)
        write_atomically(options.folder / "clicks.md", text.encode())
    if options.picture is not None:
        draw(worlds, sorted(options.clicks), options.picture)


if __name__ == "__main__":
    main()
