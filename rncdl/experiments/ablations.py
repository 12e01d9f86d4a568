"""The paper's ablation tables: what each row changes, and what the paper found. One row is ours.

Counts (clusters, proposals, batches of memory) are multiples of the run's own, as the paper's are
of its own: 3000 clusters, 50 proposals, 100 batches.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rncdl.evaluation.comparison import Published
from rncdl.experiments.published import RNCDL

_PAPER_CLUSTERS, _PAPER_PROPOSALS, _PAPER_MEMORY = 3000, 50, 100
_DIVERGED = Published(None, diverged=True)


@dataclass(frozen=True)
class AblationRow:
    """One row: what it changes, and which of the novel heads it shows."""

    title: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    """of the settings of discovery"""
    published: Published | None = None
    head: int = 0
    left_out: str | None = None
    """why this command cannot make it"""


@dataclass(frozen=True)
class AblationTable:
    """One table of the paper."""

    title: str
    rows: tuple[AblationRow, ...]


def ablation_tables(
    *,
    num_clusters: int,
    regions_per_image: int,
    memory_batches: int,
    clusters: Sequence[int] | None = None,
) -> dict[str, AblationTable]:
    """Every table by name, for a run with these counts.

    `clusters`: explicit N for the tables `classes` and `heads`, in place of the paper's multiples
    of `num_clusters`; the paper has no figures beside them.
    """
    return {
        "alpha": _ALPHA,
        "classes": _classes(num_clusters, clusters),
        "components": _COMPONENTS,
        "nms": _NMS,
        "proposals": _proposals(regions_per_image),
        "memory": _memory(memory_batches),
        "heads": _heads(num_clusters, clusters),
    }


_ALPHA = AblationTable(
    "Strength α of the supervised loss",
    (
        AblationRow("α = 0", {"alpha": 0}, Published(6.59, 16.58, 5.77)),
        AblationRow("α = 0.1", {"alpha": 0.1}, Published(6.90, 22.26, 5.64)),
        AblationRow("α = 0.5", {"alpha": 0.5}, RNCDL),
        AblationRow("α = 1", {"alpha": 1}, Published(6.35, 25.81, 4.75)),
    ),
)

_COMPONENTS = AblationTable(
    "Components",
    (
        AblationRow("RNCDL", published=RNCDL),
        AblationRow("single phase", {"single_phase": True}, _DIVERGED),
        AblationRow("nothing frozen", {"frozen": "nothing"}, _DIVERGED),
        AblationRow("RoI heads free", {"frozen": "roi_heads_free"}, Published(5.60, 20.55, 4.37)),
        AblationRow("uniform prior", {"prior": "uniform"}, Published(5.75, 24.11, 4.23)),
        AblationRow(
            "k-means pseudo-labels",
            {"pseudo_labels": "kmeans"},
            Published(2.06, 21.13, 0.48),
        ),
        AblationRow("distilled pseudo-labels (ours)", {"pseudo_labels": "distilled"}),
        AblationRow("without projection MLP", {"projection": False}, Published(5.30, 26.13, 3.58)),
        AblationRow("without swapped assignments", {"swap": False}, Published(6.74, 26.02, 5.14)),
        AblationRow("without memory", {"memory_batches": 0}, Published(2.83, 24.19, 1.06)),
        AblationRow("FC instead of cosine classifier", {"classifier": "linear"}, _DIVERGED),
        AblationRow(
            "without MoCo pretraining",
            published=Published(4.77, 16.92, 3.77),
            left_out="it needs a detector trained from another start; train one "
            "(detector.weights) and run this table on it",
        ),
    ),
)

_NMS = AblationTable(
    "NMS among the proposals of discovery",
    (
        AblationRow("NMS 0.8", {"region_nms": 0.8}, Published(5.76)),
        AblationRow("NMS 0.9", {"region_nms": 0.9}, Published(6.77)),
        AblationRow("NMS 0.99", {"region_nms": 0.99}, Published(6.84)),
        AblationRow("no NMS", {"region_nms": None}, RNCDL),
    ),
)


def _classes(num_clusters: int, clusters: Sequence[int] | None) -> AblationTable:
    if clusters is None:
        alone = {
            1000: Published(5.42, 23.24, 3.95),
            3000: RNCDL,
            5000: Published(6.24, 24.91, 4.70),
        }
        rows = [
            AblationRow(f"N = {number} (paper: {paper})", {"heads": [number]}, published)
            for paper, published in alone.items()
            for number in [_scale(paper, num_clusters / _PAPER_CLUSTERS)]
        ]
    else:
        rows = [AblationRow(f"N = {number}", {"heads": [number]}) for number in clusters]
    return AblationTable("Number of novel classes N", tuple(rows))


def _proposals(regions_per_image: int) -> AblationTable:
    found = {20: Published(6.49), 50: RNCDL, 100: Published(6.86), 150: Published(6.75)}
    rows = [
        AblationRow(
            f"{number} proposals (paper: {paper})",
            {"regions_per_image": number},
            published,
        )
        for paper, published in found.items()
        for number in [_scale(paper, regions_per_image / _PAPER_PROPOSALS)]
    ]
    return AblationTable("Proposals per image", tuple(rows))


def _memory(memory_batches: int) -> AblationTable:
    found = {
        0: Published(2.83, 24.19, 1.06),
        20: Published(4.66),
        50: Published(5.83),
        100: RNCDL,
    }
    rows = [
        AblationRow(f"{number} batches (paper: {paper})", {"memory_batches": number}, published)
        for paper, published in found.items()
        for number in [_scale(paper, memory_batches / _PAPER_MEMORY, least=min(paper, 1))]
    ]
    return AblationTable("Batches in memory", tuple(rows))


def _heads(num_clusters: int, clusters: Sequence[int] | None) -> AblationTable:
    """Heads trained at once, each shown alone; then each trained alone."""
    together: list[Published | None] = [
        Published(5.37, 25.87, 3.68),
        Published(6.34, 25.56, 4.76),
        Published(5.14, 25.25, 3.48),
    ]
    if clusters is None:
        numbers = [_scale(paper, num_clusters / _PAPER_CLUSTERS) for paper in (1000, 3000, 5000)]
    else:
        numbers, together = list(clusters), [None] * len(clusters)
    alone = _classes(num_clusters, clusters).rows
    rows = [
        AblationRow(f"{row.title}, trained at once", {"heads": numbers}, published, head=head)
        for head, (row, published) in enumerate(zip(alone, together, strict=True))
    ]
    rows += [AblationRow(f"{row.title}, alone", row.changes, row.published) for row in alone]
    return AblationTable("Several novel heads at once", tuple(rows))


def _scale(paper: int, factor: float, *, least: int = 1) -> int:
    return max(least, round(paper * factor))
