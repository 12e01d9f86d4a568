"""What a system reached at one seed, and what several seeds say together."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from rncdl.errors import UserError
from rncdl.evaluation.results import Report
from rncdl.files import write_atomically

Numbers = dict[str, Any]
"""All that was measured of one system: its part of an evaluation's report."""


@dataclass(frozen=True)
class Outcome:
    """One training, measured."""

    key: str
    """which system, or which settings"""
    seed: int
    seconds: float
    """training and measuring; what was measured in one pass is shared out evenly"""
    problem: str | None
    """why the training counts as diverged or collapsed; None: it went well"""
    heads: tuple[Numbers, ...]
    """of each novel head, or of the one classifier; empty where there is nothing to measure"""

    def save(self, path: Path) -> None:
        """Write it as json."""
        write_atomically(path, json.dumps(asdict(self), indent=2).encode())

    @classmethod
    def load(cls, path: Path) -> "Outcome":
        """What `save` wrote."""
        try:
            values = json.loads(path.read_text("utf-8"))
            return cls(**{**values, "heads": tuple(values["heads"])})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path}: not a readable row ({error}); delete it, and it is made again."
            ) from error


def numbers_of(report: Report, system: str) -> Numbers:
    """The part of a report that is about one system."""
    content = report.to_dict()
    return {
        "score": content["score"],
        "ap": [entry for entry in content["ap"] if entry["system"] == system],
        "clusters": content["clusters"].get(system),
        "proposal_recall": content["proposal_recall"],
    }


@dataclass(frozen=True)
class Metric:
    """One column of a table."""

    title: str
    kind: Literal["ap", "accuracy", "nmi"]
    group: Literal["all", "known", "novel"]

    def read(self, numbers: Numbers) -> float | None:
        """AP of boxes in percent, by the `fixed` protocol; clustering scores in [0, 1].

        None where it is not defined.
        """
        if self.kind == "ap":
            ap = _box_ap(numbers["ap"], self.group)
            return None if ap is None else 100 * ap
        scores = numbers["clusters"] and numbers["clusters"]["scores"].get(self.group)
        return scores[self.kind] if scores else None

    def format(self, value: float) -> str:
        """AP with two decimals as in the paper, clustering scores with three."""
        return f"{value:.2f}" if self.kind == "ap" else f"{value:.3f}"


AP_METRICS = (
    Metric("all AP", "ap", "all"),
    Metric("known AP", "ap", "known"),
    Metric("novel AP", "ap", "novel"),
)
METRICS = (
    *AP_METRICS,
    Metric("novel acc.", "accuracy", "novel"),
    Metric("all acc.", "accuracy", "all"),
    Metric("novel NMI", "nmi", "novel"),
    Metric("all NMI", "nmi", "all"),
)


def _box_ap(entries: Sequence[Mapping[str, Any]], group: str) -> float | None:
    for entry in entries:
        headline = entry["protocol"] in (None, "fixed") and entry["cut"] == "before"
        if headline and entry["iou_type"] == "bbox":
            return entry[group]["ap"]
    return None


@dataclass(frozen=True)
class Summary:
    """Mean and standard deviation (n - 1) of a number over seeds."""

    mean: float
    spread: float | None
    """None: from one seed nothing can be said"""


def summarise(values: Sequence[float | None]) -> Summary | None:
    """Of those that are defined; None where none is."""
    defined = [value for value in values if value is not None and math.isfinite(value)]
    if not defined:
        return None
    return Summary(fmean(defined), stdev(defined) if len(defined) > 1 else None)
