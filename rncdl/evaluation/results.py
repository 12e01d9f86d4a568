"""Everything an evaluation found, for programs and for people."""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.table import Table

from rncdl.data.records import AnnotationSet
from rncdl.evaluation.ap_tables import ap_markdown, ap_table, markdown_table, screen_table
from rncdl.evaluation.assignment import Assignment, Protocol
from rncdl.evaluation.average_precision import APResult
from rncdl.evaluation.clustering_scores import ClusteringScores
from rncdl.evaluation.recall import ProposalRecall, RecallResult
from rncdl.files import write_atomically

GROUPS = ("known", "novel", "all")
_KIND_NAMES = {"bbox": "boxes", "segm": "masks"}
_SYSTEM_NAMES = {
    "trained": "the detector as trained",
    "knownonly": "known classes only (renormalised over K)",
}


@dataclass(frozen=True)
class Clusters:
    """What a system makes of the annotated boxes."""

    num_clusters: int
    scores: dict[str, ClusteringScores | None]
    """over known, novel and all annotations"""
    assignments: dict[Protocol, Assignment]
    counts: np.ndarray
    """(C, classes) int64: how many annotated boxes of each class each output took"""
    novel_called_known: float | None
    """share of the annotated novel boxes that a known output took; None: there are none"""


@dataclass(frozen=True)
class Score:
    """AP of one system."""

    system: str
    protocol: Protocol | None
    """how its clusters were named; None: it has none"""
    cut: Literal["before", "after"]
    """unmapped clusters are dropped before or after the best detections are chosen"""
    result: APResult

    @property
    def name(self) -> str:
        """A name for files."""
        return "_".join(filter(None, (self.system, self.protocol, self.result.iou_type)))

    @property
    def title(self) -> str:
        """What was measured, in words."""
        parts = [_KIND_NAMES[self.result.iou_type], _SYSTEM_NAMES.get(self.system, self.system)]
        if self.protocol is not None:
            parts.append(f"protocol {self.protocol}, unmapped dropped {self.cut} the cut")
        return ", ".join(parts)


@dataclass(frozen=True)
class Report:
    """All numbers of one evaluation."""

    score: str
    num_images: int
    num_skipped: int
    recall: RecallResult
    clusters: dict[str, Clusters]
    """of the systems that have clusters"""
    scores: list[Score]
    bounds: dict[str, APResult]
    """box AP of those systems, had their clusters held one class each (`name_perfectly`)"""
    mask_iou: dict[str, float | None]
    """of the mask head with known, novel and all annotated objects, each given its true box"""
    settings: dict[str, Any]
    versions: dict[str, str]

    def find(
        self,
        system: str,
        *,
        iou_type: str = "bbox",
        protocol: Protocol | None = "fixed",
        cut: Literal["before", "after"] = "before",
    ) -> APResult:
        """The AP of one system."""
        for one in self.scores:
            found = (one.system, one.result.iou_type, one.protocol, one.cut)
            if found == (system, iou_type, protocol, cut):
                return one.result
        raise KeyError((system, iou_type, protocol, cut))

    def screen_tables(self) -> list[Table]:
        """The tables for the screen: AP as in the paper's appendix, clustering, recall."""
        tables = [ap_table(one.result, title=one.title) for one in self.scores]
        return [*tables, *(screen_table(*table) for table in self._small_tables())]

    def to_markdown(self, title: str) -> str:
        """The report for people."""
        skipped = f", {self.num_skipped} unreadable ones skipped" if self.num_skipped else ""
        parts = [
            f"# Evaluation: {title}\n",
            f"{self.num_images} images{skipped}. Scores by {self.score}. AP in percent.\n",
            *(f"## AP: {one.title}\n\n{ap_markdown(one.result)}" for one in self.scores),
            *(
                f"## {title}\n\n{markdown_table(header, rows)}"
                for title, header, rows in self._small_tables()
            ),
            "Versions: "
            + ", ".join(f"{name} {version}" for name, version in self.versions.items())
            + ".\n",
        ]
        return "\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """The report for programs; numbers that are not defined are null."""
        return {
            "score": self.score,
            "num_images": self.num_images,
            "num_skipped": self.num_skipped,
            "ap": [
                {
                    "system": one.system,
                    "protocol": one.protocol,
                    "cut": one.cut,
                    "iou_type": one.result.iou_type,
                    "max_detections": one.result.max_detections,
                    **{group: asdict(getattr(one.result, group)) for group in GROUPS},
                }
                for one in self.scores
            ],
            "clusters": {
                system: {
                    "num_clusters": found.num_clusters,
                    "scores": {
                        group: None if scores is None else asdict(scores)
                        for group, scores in found.scores.items()
                    },
                    "novel_called_known": found.novel_called_known,
                    "bound": _bound_values(self.bounds.get(system)),
                    "mapped_clusters": {
                        protocol: int(np.sum(assignment.is_mapped[assignment.is_cluster]))
                        for protocol, assignment in found.assignments.items()
                    },
                }
                for system, found in self.clusters.items()
            },
            "proposal_recall": asdict(self.recall),
            "mask_iou": self.mask_iou,
            "settings": self.settings,
            "versions": self.versions,
        }

    def save(self, json_path: Path, markdown_path: Path, *, title: str) -> None:
        """Write both forms."""
        content = {"title": title, **self.to_dict()}
        write_atomically(json_path, json.dumps(content, indent=2).encode())
        write_atomically(markdown_path, self.to_markdown(title).encode())

    def _small_tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        tables = []
        for system, found in self.clusters.items():
            rows = [
                [group, *(f"{value:.3f}" for value in _clustering_values(scores))]
                for group, scores in found.scores.items()
                if scores is not None
            ]
            title = f"Annotated boxes in clusters: {system} ({found.num_clusters} clusters)"
            tables.append((title, ["Classes", "accuracy", "NMI", "ARI", "purity"], rows))
        if self.clusters:
            tables.append(self._clustering_limits())
        if any(value is not None for value in self.mask_iou.values()):
            cells = [[group, _cell(self.mask_iou[group])] for group in GROUPS]
            tables.append(("Masks inside the annotated boxes", ["Classes", "mean IoU"], cells))
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

    def _clustering_limits(self) -> tuple[str, list[str], list[list[str]]]:
        """What a better clustering of the same regions could reach."""
        rows = []
        for system, found in self.clusters.items():
            bound = _bound_values(self.bounds.get(system))
            limit = None if bound is None else bound["novel"]
            rows.append([system, _cell(found.novel_called_known), _cell(limit)])
        header = ["System", "novel boxes called known", "novel AP of a perfect clustering"]
        return "What clusters cannot mend", header, rows


def mean_by_group(
    values: np.ndarray, truth: AnnotationSet, known_category_ids: Collection[int]
) -> dict[str, float | None]:
    """Mean over the known, novel and all annotations; NaN counts for nothing, None: all are."""
    is_known = np.isin(truth.category_ids, list(known_category_ids))
    rows = {"known": is_known, "novel": ~is_known, "all": np.ones_like(is_known)}
    means: dict[str, float | None] = {}
    for group, of_group in rows.items():
        defined = values[of_group & ~np.isnan(values)]
        means[group] = float(defined.mean()) if len(defined) else None
    return means


def _bound_values(bound: APResult | None) -> dict[str, float | None] | None:
    return None if bound is None else {group: getattr(bound, group).ap for group in GROUPS}


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _clustering_values(scores: ClusteringScores) -> tuple[float, ...]:
    return scores.accuracy, scores.nmi, scores.ari, scores.purity


def _recall_cells(recall: ProposalRecall) -> list[str]:
    return [f"{value:.3f}" for value in (*recall.average.values(), *recall.at_iou_50.values())]
