"""Everything an evaluation found, for programs and for people."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.table import Table

from rncdl.evaluation.assignment import Assignment, Protocol
from rncdl.evaluation.average_precision import APResult
from rncdl.evaluation.clustering_scores import ClusteringScores
from rncdl.evaluation.recall import ProposalRecall, RecallResult
from rncdl.evaluation.tables import ap_markdown, ap_table, markdown_table
from rncdl.files import write_atomically

GROUPS = ("known", "novel", "all")
_KIND_NAMES = {"bbox": "boxes", "segm": "masks"}


@dataclass(frozen=True)
class HeadReport:
    """One novel head on the annotated boxes."""

    num_clusters: int
    clustering: dict[str, ClusteringScores | None]
    """over all, known and novel annotations"""
    assignments: dict[Protocol, Assignment]


@dataclass(frozen=True)
class Score:
    """AP of one reading of the images."""

    reading: str
    """known: as trained; known_only: renormalised over K; head0_fixed: a head by a protocol"""
    cut: Literal["before", "after"]
    """unmapped clusters are dropped before or after the best detections are chosen"""
    result: APResult

    @property
    def title(self) -> str:
        """What was measured, in words."""
        kind = _KIND_NAMES[self.result.iou_type]
        if self.reading == "known":
            return f"{kind}, the detector as trained"
        if self.reading == "known_only":
            return f"{kind}, known classes only (renormalised over K)"
        head, protocol = self.reading.split("_")
        return f"{kind}, {head}, protocol {protocol}, unmapped dropped {self.cut} the cut"


@dataclass(frozen=True)
class Report:
    """All numbers of one evaluation."""

    val: str
    discovery: str | None
    protocol: Protocol
    score: str
    num_images: int
    num_skipped: int
    recall: RecallResult
    heads: list[HeadReport]
    scores: list[Score]
    settings: dict[str, Any]
    versions: dict[str, str]

    def find(
        self, reading: str, iou_type: str = "bbox", cut: Literal["before", "after"] = "before"
    ) -> APResult:
        """The AP of one reading."""
        for one in self.scores:
            if (one.reading, one.result.iou_type, one.cut) == (reading, iou_type, cut):
                return one.result
        raise KeyError((reading, iou_type, cut))

    def screen_tables(self) -> list[Table]:
        """The tables for the screen: AP as in the paper's appendix, clustering, recall."""
        tables = [ap_table(one.result, title=one.title) for one in self.scores]
        return [*tables, *(_to_screen(*table) for table in self._small_tables())]

    def to_markdown(self) -> str:
        """The report for people."""
        parts = [f"# Evaluation of {Path(self.val).name}\n"]
        skipped = f", {self.num_skipped} unreadable ones skipped" if self.num_skipped else ""
        parts.append(
            f"{self.num_images} images{skipped}. "
            + (f"Discovery `{self.discovery}`, scores by {self.score}. " if self.discovery else "")
            + "AP in percent.\n"
        )
        parts += [f"## AP: {one.title}\n\n{ap_markdown(one.result)}" for one in self.scores]
        parts += [
            f"## {title}\n\n{markdown_table(header, rows)}"
            for title, header, rows in self._small_tables()
        ]
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        parts.append(f"Versions: {versions}.\n")
        return "\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """The report for programs; numbers that are not defined are null."""
        return {
            "val": self.val,
            "discovery": self.discovery,
            "protocol": self.protocol,
            "score": self.score,
            "num_images": self.num_images,
            "num_skipped": self.num_skipped,
            "ap": [
                {
                    "reading": one.reading,
                    "cut": one.cut,
                    "iou_type": one.result.iou_type,
                    "max_detections": one.result.max_detections,
                    **{group: asdict(getattr(one.result, group)) for group in GROUPS},
                }
                for one in self.scores
            ],
            "heads": [
                {
                    "num_clusters": head.num_clusters,
                    "clustering": {
                        group: None if scores is None else asdict(scores)
                        for group, scores in head.clustering.items()
                    },
                    "mapped_clusters": {
                        protocol: int(np.sum(found.is_mapped[found.num_known :]))
                        for protocol, found in head.assignments.items()
                    },
                }
                for head in self.heads
            ],
            "proposal_recall": asdict(self.recall),
            "settings": self.settings,
            "versions": self.versions,
        }

    def save(self, json_path: Path, markdown_path: Path) -> None:
        """Write both forms."""
        write_atomically(json_path, json.dumps(self.to_dict(), indent=2).encode())
        write_atomically(markdown_path, self.to_markdown().encode())

    def _small_tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        tables = []
        for index, head in enumerate(self.heads):
            rows = [
                [group, *(f"{value:.3f}" for value in _clustering_values(scores))]
                for group, scores in head.clustering.items()
                if scores is not None
            ]
            title = f"Clusters of the annotated boxes, head {index} ({head.num_clusters} clusters)"
            tables.append((title, ["Classes", "accuracy", "NMI", "ARI", "purity"], rows))
        limits = list(self.recall.all.average)
        header = ["Classes", *(f"AR@{k}" for k in limits), *(f"R50@{k}" for k in limits)]
        tables.append(
            (
                "Recall of the proposals, whatever their class",
                header,
                [[group, *_recall_cells(getattr(self.recall, group))] for group in GROUPS],
            )
        )
        return tables


def _clustering_values(scores: ClusteringScores) -> tuple[float, ...]:
    return scores.accuracy, scores.nmi, scores.ari, scores.purity


def _recall_cells(recall: ProposalRecall) -> list[str]:
    return [f"{value:.3f}" for value in (*recall.average.values(), *recall.at_iou_50.values())]


def _to_screen(title: str, header: list[str], rows: list[list[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for index, name in enumerate(header):
        table.add_column(name, justify="right" if index else "left")
    for row in rows:
        table.add_row(*row)
    return table
