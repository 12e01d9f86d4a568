"""Summaries, evaluations and pages that nobody found."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rncdl.classes import cluster_name
from rncdl.gallery.confusion import draw_confusion, order_confusion
from rncdl.gallery.exemplars import Exemplar
from rncdl.gallery.findings import AssignedRow, ClassRow, HeadlineRow, RecallTable
from rncdl.gallery.page import Evaluated, Page, shares_chart
from rncdl.gallery.summaries import ClusterSummaries

KNOWN = ("cat", "dog", "<b>hen</b>")


def made_up_summaries(num_clusters: int, exemplars: list[list[Exemplar]]) -> ClusterSummaries:
    rng = np.random.default_rng(0)
    return ClusterSummaries(
        known_sizes=np.array([5, 6, 7]),
        sizes=rng.integers(1, 500_000, num_clusters),
        num_images=rng.integers(1, 100_000, num_clusters),
        confidence=rng.random(num_clusters),
        coherence=rng.random(num_clusters),
        background_share=rng.random(num_clusters),
        nearest_known=rng.integers(0, 3, num_clusters),
        known_likeness=rng.random(num_clusters),
        nearest_clusters=rng.integers(0, num_clusters, (num_clusters, 3)),
        exemplars=exemplars,
    )


def made_up_assigned(num_clusters: int) -> list[AssignedRow]:
    """Every fourth cluster stands for a class; of every eighth, another class took more boxes."""
    rows = [
        AssignedRow(k, True, name, 1, 2, 0.5, [(name, 1), ("yak 0", 1)])
        for k, name in enumerate(KNOWN)
    ]
    for cluster in range(num_clusters):
        output = len(KNOWN) + cluster
        if cluster % 4 == 0:
            of_others = 5 if cluster % 8 == 0 else 1
            taken = [("cat", of_others), (f"yak {cluster}", 4)]
            rows.append(AssignedRow(output, False, taken[1][0], 4, 4 + of_others, 0.5, taken))
        else:
            rows.append(AssignedRow(output, False, None, 0, 1, 0.0, [("dog", 1)]))
    return rows


def full_page(
    clusters: list[dict[str, Any]], examples: list[Any], assigned: Sequence[AssignedRow] = ()
) -> Page:
    row = HeadlineRow("RNCDL", 0.4, 0.1, 0.2, 0.1, None)
    assigned = assigned or made_up_assigned(1)
    classes = [ClassRow(name, True, 3, 0.5, None) for name in KNOWN]
    classes += [ClassRow(f"yak {index}", False, 9, 0.1, 0.2) for index in range(0, 1200, 4)]
    names = [*KNOWN, *(cluster_name(row.output - len(KNOWN)) for row in assigned[len(KNOWN) :])]
    confusion = order_confusion(assigned, classes, names)
    evaluated = Evaluated(
        title="val",
        headline=[row],
        recall=RecallTable(["AR@50"], [("known", [0.5]), ("novel", [0.4]), ("all", [0.45])]),
        classes=classes * 4,
        assigned=assigned,
        confusion=None if confusion is None else draw_confusion(confusion),
    )
    return Page(
        title="run: main",
        facts={"Known classes": "3"},
        lead="What was found.",
        evaluations=[evaluated],
        examples=examples,
        clusters=clusters,
        shares=shares_chart(made_up_summaries(4, [[]] * 4), np.full(7, 1 / 7)),
        settings="seed: 0",
        versions={"rncdl": "1"},
    )


def one_exemplar(cluster: int) -> list[Exemplar]:
    return [Exemplar("confident", cluster, 0, 0.9)]
