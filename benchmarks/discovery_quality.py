"""How well are novel objects found, outlined, told from known ones and clustered? One protocol.

`python benchmarks/discovery_quality.py FOLDER [--classes 20] [--worlds 0,1,2] [--detectors 0,1]
[--discoveries 0,1,2] [--preset shapes] --try NAME [SETTING=VALUE ...] [--try ...]`
`... --given DATA --half choose|report ...` for photographs in place of drawn worlds

Every configuration (a name and its settings) meets every world, with several detectors and several
discoveries on each. Choose on the worlds of seeds 0 to 2, report on those of 10 to 12; of a given
dataset (labelled.json, unlabelled.json, val.json) every second validation image is for choosing,
the others are for reporting. Worlds, detectors, banks and finished cells are kept in FOLDER, and
shared by configurations that do not differ in them; a second call goes on where the first stopped.
Prints a table, the mean and the standard deviation over all cells, and writes it to FOLDER/tables/.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rncdl.config import Settings, change, resolve_settings
from rncdl.discovery.recipe import BankRecipe
from rncdl.evaluation.ap_tables import markdown_table
from rncdl.evaluation.outcomes import summarise
from rncdl.files import write_atomically
from rncdl.origins import digest
from rncdl.run_folder import RunFolder

COLUMNS: dict[str, tuple[str, float]] = {
    "known AP": ("ap.known", 100),
    "novel AP": ("ap.novel", 100),
    "all AP": ("ap.all", 100),
    "novel AR@100": ("recall.novel.average", 1),
    "novel recall": ("recall.novel.at_iou_50", 1),
    "mask IoU, novel": ("mask_iou.novel", 1),
    "mask IoU, known": ("mask_iou.known", 1),
    "called known": ("called_known", 1),
    "novel acc.": ("accuracy", 1),
    "novel NMI": ("nmi", 1),
    "bound": ("bound", 100),
    "train s": ("seconds.train", 1),
    "discover s": ("seconds.discover", 1),
}
"""Title -> where it stands in a cell, and what it is multiplied by. Recall is that of the best 100
proposals; "called known" and "mask IoU" are of annotated boxes; the bound is the novel AP of a
perfect clustering with the given scores."""


@dataclass(frozen=True)
class GivenData:
    """A dataset that is there: `labelled.json`, `unlabelled.json`, `val.json` and images."""

    folder: Path
    half: Literal["choose", "report"]
    """the validation images that are measured"""

    @property
    def name(self) -> str:
        return self.folder.name

    def prepare(self, keep: Path) -> "Files":
        """Its files; every second validation image alone, in a file of its own."""
        out = keep / f"{self.name}_{self.half}.json"
        if not out.is_file():
            content = json.loads((self.folder / "val.json").read_text())
            images = sorted(content["images"], key=lambda image: image["id"])
            images = images[0 if self.half == "choose" else 1 :: 2]
            kept = {image["id"] for image in images}
            content["images"] = [
                {**image, "file_name": str(self.folder / image["file_name"])} for image in images
            ]
            content["annotations"] = [
                one for one in content["annotations"] if one["image_id"] in kept
            ]
            write_atomically(out, json.dumps(content).encode())
        return Files(self.folder / "labelled.json", self.folder / "unlabelled.json", out)


@dataclass(frozen=True)
class DrawnWorld:
    """A drawn world, the same for every configuration."""

    classes: int
    known: int
    seed: int
    styles: int
    photographs: Path | None

    def prepare(self, keep: Path) -> "Files":
        """Its files, drawn where they are not there yet."""
        out = keep / self.name
        if not (out / "val.json").is_file():
            _run_rncdl("prepare", "shapes", out, *self.words())
        return Files(out / "labelled.json", out / "unlabelled.json", out / "val.json")

    @property
    def name(self) -> str:
        styles = f"_{self.styles}-styles" if self.styles > 1 else ""
        photographs = "_photographs" if self.photographs else ""
        usual = self.known == _usual_known(self.classes)
        known = "" if usual else f"_{self.known}-known"
        return f"{self.classes}-classes{known}{styles}{photographs}_{self.seed}"

    def words(self) -> list[object]:
        """Arguments of `rncdl prepare shapes`."""
        photographs = ["--photographs", self.photographs] if self.photographs else []
        return [
            *("--classes", self.classes, "--known", self.known),
            *("--seed", self.seed, "--styles", self.styles, *photographs),
        ]


@dataclass(frozen=True)
class Files:
    """The three files of a world."""

    labelled: Path
    unlabelled: Path
    val: Path


@dataclass(frozen=True)
class Configuration:
    """A recipe that is measured: a name, and the settings of detector and discovery."""

    name: str
    settings: Settings


@dataclass(frozen=True)
class Cell:
    """One discovery on one detector in one world."""

    configuration: Configuration
    world: DrawnWorld | GivenData
    detector_seed: int
    discovery_seed: int

    @property
    def training(self) -> Settings:
        return change(self.configuration.settings, seed=self.detector_seed)

    @property
    def discovery(self) -> Settings:
        return change(self.configuration.settings, seed=self.discovery_seed)

    @property
    def detector_name(self) -> str:
        """Equal where the detector is the same one."""
        groups = {"data", "detector", "train", "segmentation", "seed"}
        key = _digest_of(_changed(self.training, include=groups))
        return f"{self.world.name}_{self.detector_seed}_{key}"

    @property
    def run_name(self) -> str:
        """Equal where the bank is the same one."""
        return (
            f"{self.detector_name}_{_digest_of(BankRecipe.from_settings(self.discovery).noted())}"
        )

    @property
    def discovery_name(self) -> str:
        """Equal where the heads are the same ones."""
        both = [_changed(self.training), _changed(self.discovery)]
        title = self.configuration.name.replace(" ", "-")
        return f"{title}_{self.run_name}_{self.discovery_seed}_{_digest_of(both)}"

    @property
    def name(self) -> str:
        half = f"_{self.world.half}" if isinstance(self.world, GivenData) else ""
        return f"{self.discovery_name}{half}"


@dataclass(frozen=True)
class Laboratory:
    """Where things are kept and how many processes make them."""

    folder: Path
    processes: int

    def measure(self, cell: Cell) -> dict[str, Any]:
        """The numbers of a cell, from its file where it is finished."""
        path = self.folder / "cells" / f"{cell.name}.json"
        if not path.is_file():
            files, run = self._files(cell), self._trained(cell)
            began = time.monotonic()
            name = self._discovered(cell, run)
            discover_s = time.monotonic() - began
            self._rncdl("evaluate", files.val, "--run", run, "--discovery", name)
            report = RunFolder(run).evaluation(files.val.stem, name).report_json
            numbers = {
                "configuration": cell.configuration.name,
                **read_report(json.loads(report.read_text())),
                "seconds": {"train": _noted_seconds(run), "discover": discover_s},
            }
            write_atomically(path, json.dumps(numbers, indent=2).encode())
        return json.loads(path.read_text())

    def _files(self, cell: Cell) -> Files:
        return cell.world.prepare(self.folder / "worlds")

    def _trained(self, cell: Cell) -> Path:
        """A run of its own bank, with a detector that other runs may share."""
        detector = self.folder / "detectors" / cell.detector_name
        if not RunFolder(detector).detector_file.is_file():
            begun = RunFolder(detector).exists
            words = ["--resume"] if begun else self._first_words(cell, detector)
            began = time.monotonic()
            self._rncdl("train", "--run", detector, *words)
            seconds = None if begun else time.monotonic() - began
            _seconds_file(detector).write_text(json.dumps(seconds))
        run = self.folder / "runs" / cell.run_name
        if not run.is_dir():
            shutil.copytree(detector, run, ignore=shutil.ignore_patterns("checkpoints"))
        return run

    def _first_words(self, cell: Cell, detector: Path) -> list[object]:
        settings = self._settings_file(cell.training, detector.name)
        return ["--labelled", self._files(cell).labelled, "--preset", settings]

    def _discovered(self, cell: Cell, run: Path) -> str:
        name = digest(cell.discovery_name.encode())
        folder = RunFolder(run).discovery(name)
        if folder.heads_file.is_file():
            return name
        words: list[object] = ["--resume"]
        if not folder.exists:
            settings = self._settings_file(cell.discovery, cell.discovery_name)
            words = ["--unlabelled", self._files(cell).unlabelled, "--preset", settings]
        self._rncdl("discover", "--run", run, "--discovery", name, *words)
        return name

    def _settings_file(self, settings: Settings, name: str) -> Path:
        path = self.folder / "settings" / f"{name}.yaml"
        write_atomically(path, json.dumps(settings.model_dump(mode="json")).encode())
        return path

    def _rncdl(self, *words: object) -> None:
        _run_rncdl("--processes", self.processes, *words)


def _run_rncdl(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "rncdl", *map(str, words)], check=True)


def read_report(report: Mapping[str, Any], system: str = "head0") -> dict[str, Any]:
    """A cell's numbers, from an evaluation's report."""
    ap = next(
        entry
        for entry in report["ap"]
        if (entry["system"], entry["protocol"]) == (system, "fixed")
        and (entry["cut"], entry["iou_type"]) == ("before", "bbox")
    )
    clusters = report["clusters"][system]
    recall = report["proposal_recall"]["novel"]
    return {
        "ap": {group: ap[group]["ap"] for group in ("known", "novel", "all")},
        "recall": {"novel": {kind: recall[kind]["100"] for kind in ("average", "at_iou_50")}},
        "mask_iou": report["mask_iou"],
        "called_known": clusters["novel_called_known"],
        "accuracy": clusters["scores"]["novel"]["accuracy"],
        "nmi": clusters["scores"]["novel"]["nmi"],
        "bound": clusters["bound"]["novel"],
    }


def table(cells: Sequence[Mapping[str, Any]]) -> str:
    """A line for each configuration: mean ± standard deviation over its cells."""
    names = list(dict.fromkeys(cell["configuration"] for cell in cells))
    rows = []
    for name in names:
        of_name = [cell for cell in cells if cell["configuration"] == name]
        columns = [column(of_name, *place) for place in COLUMNS.values()]
        rows.append([name, str(len(of_name)), *columns])
    return markdown_table(["configuration", "cells", *COLUMNS], rows)


def column(cells: Sequence[Mapping[str, Any]], place: str, factor: float) -> str:
    """What cells have in one place: mean ± standard deviation."""
    values = []
    for cell in cells:
        value: Any = cell
        for key in place.split("."):
            value = value[key]
        values.append(None if value is None else factor * value)
    summary = summarise(values)
    if summary is None:
        return "-"
    digits = 3 if factor == 1 and summary.mean < 2 else 1
    spread = "" if summary.spread is None else f" ± {summary.spread:.{digits}f}"
    return f"{summary.mean:.{digits}f}{spread}"


def _seconds_file(run: Path) -> Path:
    return run / "train" / "seconds.json"


def _noted_seconds(run: Path) -> float | None:
    """None where the training was interrupted."""
    path = _seconds_file(run)
    return json.loads(path.read_text()) if path.is_file() else None


def _changed(settings: Settings, include: set[str] | None = None) -> dict[str, Any]:
    """What differs from the defaults: a setting that is added later changes no name."""
    return settings.model_dump(mode="json", include=include, exclude_defaults=True)


def _digest_of(value: Any) -> str:
    return digest(json.dumps(value, sort_keys=True).encode())


def _usual_known(classes: int) -> int:
    return round(classes * 0.4)


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--classes", type=int, default=20)
    parser.add_argument("--known", type=int, help="of the classes; two fifths unless said")
    parser.add_argument("--styles", type=int, default=1, help="drawing styles per class")
    parser.add_argument(
        "--photographs", type=Path, help="folder of backgrounds, e.g. $RNCDL_SHARED/data/coco256"
    )
    parser.add_argument("--worlds", type=_numbers, default=[0, 1, 2], help="seeds")
    parser.add_argument("--given", type=Path, help="a dataset instead, e.g. data/coco256")
    parser.add_argument("--half", choices=("choose", "report"), default="choose")
    parser.add_argument("--detectors", type=_numbers, default=[0, 1], help="seeds")
    parser.add_argument("--discoveries", type=_numbers, default=[0, 1, 2], help="seeds")
    parser.add_argument("--preset", default="shapes")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--try", nargs="+", action="append", required=True, dest="configurations")
    return parser.parse_args()


def _cells(options: argparse.Namespace) -> Iterator[Cell]:
    """One of each configuration first, so that a first look takes little time."""
    configurations = [
        Configuration(name, resolve_settings(options.preset, overrides))
        for name, *overrides in options.configurations
    ]
    worlds: list[DrawnWorld | GivenData] = [
        DrawnWorld(
            options.classes,
            options.known or _usual_known(options.classes),
            seed,
            options.styles,
            options.photographs,
        )
        for seed in options.worlds
    ]
    if options.given is not None:
        worlds = [GivenData(options.given.resolve(), options.half)]
    for detector_seed in options.detectors:
        for world in worlds:
            for configuration in configurations:
                for discovery_seed in options.discoveries:
                    yield Cell(configuration, world, detector_seed, discovery_seed)


def main() -> None:
    options = _options()
    laboratory = Laboratory(options.folder.resolve(), options.processes)
    finished = []
    for cell in _cells(options):
        finished.append(laboratory.measure(cell))
        print(table(finished), flush=True)
    text = f"{' '.join(sys.argv)}\n\n{table(finished)}"
    name = digest(" ".join(sys.argv[1:]).encode())
    write_atomically(laboratory.folder / "tables" / f"{name}.md", text.encode())


if __name__ == "__main__":
    main()
