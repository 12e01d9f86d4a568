"""The page: one HTML file that holds its pictures, style and script, and asks nobody for more."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import jinja2
import numpy as np
import torch
from markupsafe import Markup
from PIL import Image

from rncdl.discovery.bank import Bank
from rncdl.discovery.estimation import Estimate
from rncdl.gallery.charts import Line, line_chart
from rncdl.gallery.examples import Example
from rncdl.gallery.exemplars import Exemplar
from rncdl.gallery.findings import AssignedRow, ClassRow, HeadlineRow, RecallTable
from rncdl.gallery.summaries import ClusterSummaries
from rncdl.gallery.thumbnails import encode_within, join_strip
from rncdl.naming.decisions import Decisions

MAX_STRIP_BYTES = 3_600_000
MAX_EXAMPLE_BYTES = 1_200_000
MAX_TAKEN = 3
"""Classes that are named of those whose boxes a cluster took."""


@dataclass(frozen=True)
class Picture:
    """A panel of an example on the page."""

    title: str
    uri: str
    alt: str
    size: tuple[int, int]


@dataclass(frozen=True)
class ShownExample:
    """One image, read in one or several ways."""

    panels: Sequence[Picture]
    caption: str


@dataclass(frozen=True)
class Evaluated:
    """What one evaluation found."""

    title: str
    headline: Sequence[HeadlineRow]
    recall: RecallTable
    classes: Sequence[ClassRow] = ()
    assigned: Sequence[AssignedRow] = ()
    confusion: Markup | None = None


@dataclass(frozen=True)
class Page:
    """All that the page shows; what is empty is left out."""

    title: str
    facts: Mapping[str, str]
    lead: str = ""
    """one or two sentences for somebody who comes across the page"""
    evaluations: Sequence[Evaluated] = ()
    rounds: Mapping[str, Sequence[HeadlineRow]] = field(default_factory=dict)
    """by validation set: this run and those it was started from, the first one first"""
    examples: Sequence[ShownExample] = ()
    examples_legend: str = ""
    clusters: Sequence[Mapping[str, Any]] = ()
    """see `cluster_cards`"""
    notes: Sequence[str] = ()
    """why something is missing"""
    curves: Mapping[str, Sequence[Markup]] = field(default_factory=dict)
    shares: Markup | None = None
    estimate: Estimate | None = None
    settings: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


def render_page(page: Page) -> str:
    """The HTML."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["percent"] = _percent
    environment.filters["decimal"] = _decimal
    environment.filters["largest"] = _largest
    environment.filters["chart"] = _estimate_chart
    files = resources.files("rncdl.gallery")
    template = environment.from_string(files.joinpath("report.html").read_text("utf-8"))
    return template.render(
        page=page,
        style=Markup(files.joinpath("report.css").read_text("utf-8")),
        script=Markup(files.joinpath("report.js").read_text("utf-8")),
    )


def encode_examples(examples: Sequence[Example]) -> list[ShownExample]:
    """The examples, small enough for the page; those for which no room is left are dropped."""
    drawings = [panel.drawing for example in examples for panel in example.panels]
    uris = iter(encode_within(drawings, max_bytes=MAX_EXAMPLE_BYTES))
    shown = []
    for example in examples:
        panels = [
            Picture(panel.title, next(uris), panel.alt, panel.drawing.size)
            for panel in example.panels
        ]
        if all(picture.uri for picture in panels):
            shown.append(ShownExample(panels, example.caption))
    return shown


def exemplar_regions(summaries: ClusterSummaries, bank: Bank) -> tuple[np.ndarray, np.ndarray]:
    """Image index (n,) and box (n, 4) of all exemplars, cluster by cluster."""
    chosen = [one for of_cluster in summaries.exemplars for one in of_cluster]
    if not chosen:
        return np.zeros(0, dtype=np.int64), np.zeros((0, 4), dtype=np.float32)
    boxes = [bank.read_boxes(one.image_index, count=one.region + 1)[one.region] for one in chosen]
    return np.array([one.image_index for one in chosen]), torch.stack(boxes).numpy()


def cluster_cards(
    summaries: ClusterSummaries,
    thumbnails: Sequence[Image.Image | None],
    *,
    known: Sequence[str],
    assigned: Sequence[AssignedRow] = (),
    decisions: Decisions | None = None,
) -> list[dict[str, Any]]:
    """What the page's script needs of each cluster that took any region, as plain values.

    thumbnails: of all exemplars, cluster by cluster. assigned: of all outputs, known ones first;
    empty where nothing was evaluated. decisions: of people; clusters that they ignore are left out.
    """
    remaining = iter(thumbnails)
    shown: list[list[tuple[Exemplar, Image.Image]]] = []
    for of_cluster in summaries.exemplars:
        pairs = [(one, next(remaining)) for one in of_cluster]
        shown.append([(one, picture) for one, picture in pairs if picture is not None])
    strips = [join_strip([picture for _, picture in pairs]) for pairs in shown if pairs]
    uris = iter(encode_within(strips, max_bytes=MAX_STRIP_BYTES))
    promise = summaries.promise
    decided = decisions or Decisions()
    cards = []
    for cluster in np.flatnonzero(summaries.sizes).tolist():
        strip = next(uris) if shown[cluster] else ""
        if cluster in decided.ignored:
            continue
        stands_for = assigned[len(known) + cluster] if assigned else None
        cards.append(
            {
                "id": cluster,
                "name": decided.names.get(cluster),
                "size": int(summaries.sizes[cluster]),
                "images": int(summaries.num_images[cluster]),
                "confidence": round(float(summaries.confidence[cluster]), 3),
                "coherence": round(float(summaries.coherence[cluster]), 3),
                "background": round(float(summaries.background_share[cluster]), 3),
                "known": known[summaries.nearest_known[cluster]],
                "likeness": round(float(summaries.known_likeness[cluster]), 3),
                "promise": round(float(promise[cluster]), 3),
                "near": summaries.nearest_clusters[cluster].tolist(),
                "kinds": "".join(one.kind[0] for one, _ in shown[cluster] if strip),
                "strip": strip,
                **_stands_for(stands_for),
            }
        )
    return cards


def _stands_for(assigned: AssignedRow | None) -> dict[str, Any]:
    if assigned is None:
        return {}
    return {
        "class": assigned.name,
        "clear": assigned.stands_out,
        "count": assigned.count,
        "seen": assigned.size,
        "taken": assigned.taken[:MAX_TAKEN],
    }


def shares_chart(summaries: ClusterSummaries, prior: np.ndarray) -> Markup:
    """The outputs' shares of the pool's regions, in descending order, beside the prior's."""
    sizes = np.sort(np.concatenate((summaries.known_sizes, summaries.sizes)))[::-1]
    ranks = np.arange(1, len(sizes) + 1)
    return line_chart(
        [
            Line("found", ranks.tolist(), (sizes / max(1, sizes.sum())).tolist()),
            Line("prior", ranks.tolist(), prior.tolist(), "second"),
        ],
        title="Share of the regions, outputs in descending order",
        x_name="rank of the output",
        log=True,
    )


def _estimate_chart(estimate: Estimate) -> Markup:
    """How well known classes are told apart, with what the starts differ by."""
    numbers = [point.num_clusters for point in estimate.curve]
    return line_chart(
        [
            Line("mean of the starts", numbers, [point.agreement for point in estimate.curve]),
            *(
                Line(
                    f"{name} one deviation",
                    numbers,
                    [point.agreement + sign * point.spread for point in estimate.curve],
                    "second",
                )
                for name, sign in (("plus", 1), ("minus", -1))
            ),
        ],
        title="How well known classes are told apart (F1), by what is left of the others",
        x_name="new classes",
    )


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _largest(column: str, rows: Sequence[HeadlineRow | ClassRow]) -> float:
    """The largest value that any row has in the column, 0 where none has."""
    return max((getattr(row, column) or 0.0 for row in rows), default=0.0)


def _decimal(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
