"""Tables of many systems over several seeds, beside what a paper reports of the same."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from rncdl.evaluation.ap_tables import markdown_table, screen_table
from rncdl.evaluation.outcomes import AP_METRICS, METRICS, Metric, Outcome, Summary, summarise

DIVERGED = "diverged"


@dataclass(frozen=True)
class Published:
    """A paper's box mAP in percent; None where it gives none."""

    all: float | None
    known: float | None = None
    novel: float | None = None
    diverged: bool = False

    def text(self) -> str:
        """All, known and novel in one cell."""
        if self.diverged:
            return DIVERGED
        cells = ["-" if value is None else f"{value:.2f}" for value in self.values()]
        return " / ".join(cells)

    def values(self) -> tuple[float | None, float | None, float | None]:
        """In the order of the columns: all, known, novel."""
        return self.all, self.known, self.novel


@dataclass(frozen=True)
class Line:
    """One line of a table: which training it shows, and by which of its heads."""

    title: str
    key: str
    head: int = 0
    published: Published | None = None
    left_out: str | None = None
    """why there is nothing to show"""


@dataclass(frozen=True)
class Comparison:
    """A table, with all that is known so far of its lines."""

    name: str
    """for files"""
    title: str
    lines: Sequence[Line]
    outcomes: Mapping[str, Sequence[Outcome]]
    """by key, seed after seed"""
    source: str
    """of the published figures"""

    @property
    def header(self) -> list[str]:
        """Names of the columns."""
        return ["System", *(metric.title for metric in METRICS), "paper: all / known / novel"]

    def summary(self, line: Line, metric: Metric) -> Summary | None:
        """Mean and spread of one cell; None where nothing was measured."""
        measured = [one.heads[line.head] for one in self._of(line) if line.head < len(one.heads)]
        return summarise([metric.read(numbers) for numbers in measured])

    def has_diverged(self, line: Line) -> bool:
        """Whether every seed diverged."""
        return bool(self._of(line)) and not any(one.heads for one in self._of(line))

    def cells(self, line: Line) -> list[str]:
        """The line as text."""
        cells = [_cell(self.summary(line, metric), metric) for metric in METRICS]
        if self.has_diverged(line):
            cells[0] = DIVERGED
        return [line.title, *cells, line.published.text() if line.published else "-"]

    def notes(self) -> list[str]:
        """What the cells do not say: lines left out, seeds that went wrong."""
        notes = [f"{line.title}: left out; {line.left_out}" for line in self.lines if line.left_out]
        for line in self.lines:
            of_line = self._of(line)
            bad = [one for one in of_line if one.problem]
            if bad:
                seeds = ", ".join(str(one.seed) for one in bad)
                count = f"{len(bad)} of {len(of_line)} seeds ({seeds})"
                notes.append(f"{line.title}: {count}: {bad[0].problem}")
        return notes

    def to_screen(self) -> list[Table]:
        """The table for the screen, in two that fit: AP beside the paper's, then the clusters."""
        num_ap = 1 + len(AP_METRICS)
        names, cells = self.header, [self.cells(line) for line in self.lines]
        return [
            screen_table(
                self.title,
                [*names[:num_ap], names[-1]],
                [[*row[:num_ap], row[-1]] for row in cells],
            ),
            screen_table(
                f"{self.title}: annotated boxes in clusters",
                [names[0], *names[num_ap:-1]],
                [[row[0], *row[num_ap:-1]] for row in cells],
            ),
        ]

    def to_markdown(self) -> str:
        """The table for people, with its notes."""
        table = markdown_table(self.header, [self.cells(line) for line in self.lines])
        notes = "".join(f"- {note}\n" for note in self.notes())
        return f"## {self.title}\n\n{table}" + (f"\n{notes}" if notes else "")

    def to_dict(self) -> dict[str, Any]:
        """The table for programs, with every number of every seed."""
        return {
            "name": self.name,
            "title": self.title,
            "source": self.source,
            "lines": [
                {
                    **asdict(line),
                    "diverged": self.has_diverged(line),
                    "summary": {
                        metric.title: asdict(found) if found else None
                        for metric in METRICS
                        for found in [self.summary(line, metric)]
                    },
                    "seeds": [asdict(one) for one in self._of(line)],
                }
                for line in self.lines
            ],
        }

    def _of(self, line: Line) -> Sequence[Outcome]:
        return () if line.left_out else self.outcomes.get(line.key, ())


def _cell(found: Summary | None, metric: Metric) -> str:
    if found is None:
        return "-"
    mean = metric.format(found.mean)
    return mean if found.spread is None else f"{mean} ± {metric.format(found.spread)}"
