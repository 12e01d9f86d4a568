"""What the evaluations and journals of a run say, as rows for the page."""

import csv
import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from markupsafe import Markup

from rncdl.classes import is_found_name
from rncdl.gallery.charts import Line, line_chart

_SYSTEM_NAMES = {
    "trained": "detector as trained (known classes only)",
    "knownonly": "after discovery, known classes only",
    "kmeans": "k-means on region features (confidence 1)",
    "kmeans_weighed": "the same, weighed as RNCDL is",
    "random": "RNCDL, random novel head",
}
_KNOWN_ONLY = {
    "trained": "detector as trained, with what was found before",
    "knownonly": "after discovery, without its clusters",
}
"""Systems that detect no novel class, unless some of their known ones are clusters found before."""
_CURVES = {
    "loss": "Loss",
    "class": "Classification loss",
    "box": "Box loss",
    "mask": "Mask loss",
    "rpn_objectness": "Proposal objectness loss",
    "rpn_box": "Proposal box loss",
    "known_bbox_ap": "AP of known classes (boxes)",
    "known_segm_ap": "AP of known classes (masks)",
    "swapped_loss": "Swapped loss (discovery)",
    "supervised_loss": "Supervised loss (known classes)",
    "clusters_in_use": "Clusters in use",
    "label_entropy": "Entropy of pseudo-labels (nats)",
    "share_error": "Error of the class shares (L1)",
}


@dataclass(frozen=True)
class HeadlineRow:
    """One line of the headline table; AP and accuracy in [0, 1], None where not measured."""

    name: str
    known_ap: float | None
    novel_ap: float | None
    all_ap: float | None
    novel_mask_ap: float | None = None
    novel_accuracy: float | None = None
    """clustering accuracy on the annotated boxes of novel classes"""


@dataclass(frozen=True)
class ClassRow:
    """AP of one class."""

    name: str
    is_known: bool
    num_annotations: int
    ap: float | None
    ap50: float | None


@dataclass(frozen=True)
class AssignedRow:
    """The class that an output was found to stand for."""

    output: int
    is_known: bool
    name: str | None
    count: int
    size: int
    purity: float
    taken: Sequence[tuple[str, int]] = ()
    """annotated boxes that it took, of each class, the most first; empty where not written down"""
    found_name: str = ""
    """what it is called, where it is a known class that was found before and has no name"""

    @property
    def stands_out(self) -> bool:
        """True where it has a class and took no more boxes of any other.

        The assignment is one to one and leaves nobody out, so a cluster may be given a class of
        which it took a few boxes only.
        """
        return self.name is not None and all(self.count >= count for _, count in self.taken)


@dataclass(frozen=True)
class RecallTable:
    """Share of the annotated objects that the proposals cover, whatever their class."""

    header: list[str]
    rows: list[tuple[str, list[float]]]


def headline_rows(report: Mapping[str, Any]) -> list[HeadlineRow]:
    """Every system of an evaluation's report.json; clusters named by the `fixed` protocol."""
    return _rows_of(report, (None, "fixed"))


def decided_rows(report: Mapping[str, Any]) -> list[HeadlineRow]:
    """The systems with clusters of an evaluation's report.json, named by people alone."""
    return [
        replace(row, name=f"{row.name}, clusters as people have named them")
        for row in _rows_of(report, ("named",))
    ]


def round_row(name: str, classes: Sequence[ClassRow], known: Collection[str]) -> HeadlineRow:
    """Mean AP over the known and the other classes, whatever the evaluation took for known."""
    measured = [(row.name in known, row.ap) for row in classes if row.ap is not None]
    groups = (
        [ap for is_known, ap in measured if is_known],
        [ap for is_known, ap in measured if not is_known],
        [ap for _, ap in measured],
    )
    return HeadlineRow(name, *(fmean(aps) if aps else None for aps in groups))


def _rows_of(report: Mapping[str, Any], protocols: Collection[str | None]) -> list[HeadlineRow]:
    rows = []
    for entry in report["ap"]:
        if entry["iou_type"] != "bbox" or entry["protocol"] not in protocols:
            continue
        if entry["cut"] != "before":
            continue
        masks = [
            other
            for other in report["ap"]
            if other["iou_type"] == "segm"
            and all(other[key] == entry[key] for key in ("system", "protocol", "cut"))
        ]
        clusters = report["clusters"].get(entry["system"])
        finds_novel = entry["system"] not in _KNOWN_ONLY or clusters is not None
        novel = clusters["scores"].get("novel") if clusters else None
        rows.append(
            HeadlineRow(
                name=_system_name(entry["system"], report["clusters"]),
                known_ap=entry["known"]["ap"],
                novel_ap=entry["novel"]["ap"] if finds_novel else None,
                all_ap=entry["all"]["ap"] if finds_novel else None,
                novel_mask_ap=masks[0]["novel"]["ap"] if masks and finds_novel else None,
                novel_accuracy=novel["accuracy"] if novel else None,
            )
        )
    return rows


def ceiling_row(report: Mapping[str, Any]) -> HeadlineRow:
    """A detector trained with all labels, from the report.json of its evaluation.

    Known and novel are told apart only where that evaluation did so.
    """
    aps = {
        entry["iou_type"]: {group: entry[group]["ap"] for group in ("known", "novel", "all")}
        for entry in report["ap"]
        if entry["system"] == "trained"
    }
    boxes = aps["bbox"]
    return HeadlineRow(
        name="fully supervised (the ceiling)",
        known_ap=boxes["known"] if boxes["novel"] is not None else None,
        novel_ap=boxes["novel"],
        all_ap=boxes["all"],
        novel_mask_ap=aps["segm"]["novel"] if "segm" in aps else None,
    )


def _system_name(system: str, clusters: Mapping[str, Any]) -> str:
    if system in _KNOWN_ONLY and system in clusters:
        return _KNOWN_ONLY[system]
    if not system.startswith("head"):
        return _SYSTEM_NAMES.get(system, system)
    num_heads = sum(name.startswith("head") for name in clusters)
    return "RNCDL" if num_heads < 2 else f"RNCDL, {clusters[system]['num_clusters']:,} clusters"


def recall_table(report: Mapping[str, Any]) -> RecallTable:
    """Proposal recall of an evaluation's report.json."""
    recall = report["proposal_recall"]
    limits = list(recall["all"]["average"])
    return RecallTable(
        header=[*(f"AR@{k}" for k in limits), *(f"R50@{k}" for k in limits)],
        rows=[
            (group, [*recall[group]["average"].values(), *recall[group]["at_iou_50"].values()])
            for group in ("known", "novel", "all")
        ],
    )


def read_report(path: Path) -> dict[str, Any]:
    """An evaluation's report.json."""
    return json.loads(path.read_text("utf-8"))


def read_classes(path: Path) -> list[ClassRow]:
    """AP class by class, the best first; nothing where there is no such file."""
    rows = [
        ClassRow(
            name=line["class"],
            is_known=line["group"] == "known",
            num_annotations=int(line["annotations"]),
            ap=float(line["AP"]) if line["AP"] else None,
            ap50=float(line["AP50"]) if line["AP50"] else None,
        )
        for line in _read_csv(path)
    ]
    return sorted(rows, key=lambda row: -1.0 if row.ap is None else row.ap, reverse=True)


def read_assigned(path: Path, confusion: Path) -> list[AssignedRow]:
    """What each output stands for, in output order; nothing where there is no such file.

    confusion: the csv of boxes that each output took of each class, which may be missing.
    """
    taken: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for line in _read_csv(confusion):
        taken[line["output"]].append((line["class"], int(line["count"])))
    return [
        AssignedRow(
            output=int(line["output"]),
            is_known=line["kind"] == "known",
            name=line["class"] or None,
            count=int(line["count"]),
            size=int(line["size"]),
            purity=float(line["purity"]),
            taken=sorted(taken[line["output"]], key=lambda pair: -pair[1]),
            found_name=name if is_found_name(name := line.get("name", "")) else "",
        )
        for line in _read_csv(path)
    ]


def _read_csv(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def curves(records: Sequence[Mapping[str, Any]]) -> list[Markup]:
    """One chart for each figure of a journal that is worth looking at."""
    return [line_chart([line], title=line.name, x_name="steps") for line in journal_lines(records)]


def journal_lines(records: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Each figure of a journal that is worth looking at, over the steps."""
    lines = []
    for key, title in _CURVES.items():
        points = [(r["step"], r[key]) for r in records if "step" in r and key in r]
        if len(points) > 1:
            steps, values = zip(*points, strict=True)
            lines.append(Line(title, steps, values))
    return lines
