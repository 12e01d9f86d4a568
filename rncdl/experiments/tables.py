"""What `rncdl compare` and `rncdl ablate` are asked for in words, and the tables they write."""

import json
from collections.abc import Sequence
from typing import Any

from rncdl.errors import UserError, did_you_mean
from rncdl.evaluation.comparison import DIVERGED, Comparison, Line
from rncdl.evaluation.outcomes import AP_METRICS
from rncdl.experiments.table_folder import TableFolder
from rncdl.files import write_atomically
from rncdl.gallery.bars import Bar, Panel, bar_chart
from rncdl.training.progress import console, say
from rncdl.version import versions


def parse_numbers(text: str, *, option: str, least: int) -> list[int]:
    """Whole numbers that were given with commas, each once."""
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < least or len(set(numbers)) < len(numbers):
        raise UserError(
            f"{option}={text!r}: give different whole numbers from {least} on, with commas "
            f"between them, e.g. {option} {least},{least + 1},{least + 2}."
        )
    return numbers


def parse_names(text: str, choices: Sequence[str], *, option: str) -> list[str]:
    """Names that were given with commas, each of them one of `choices`; `all` is all of them."""
    if text == "all":
        return list(choices)
    names = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    for name in names or [text]:
        if name not in choices:
            raise UserError(
                f"{option}: unknown {name!r}.{did_you_mean(name, choices)} "
                f"Choose from: {', '.join(choices)}, or all."
            )
    return names


def write_tables(folder: TableFolder, tables: Sequence[Comparison], *, heading: str) -> None:
    """The tables on the screen, as Markdown, as json with every number, and as bar charts."""
    facts = (
        "Box AP in percent, clusters named by the `fixed` protocol; accuracy and NMI of the "
        "annotated boxes in clusters. Mean ± standard deviation over seeds. Published figures: "
        f"{tables[0].source}; another dataset at another scale, so only orders can be compared."
    )
    parts = [f"# {heading}\n", f"{facts}\n", *(table.to_markdown() for table in tables)]
    write_atomically(folder.markdown_file, "\n".join(parts).encode())
    settings = folder.settings()
    content: dict[str, Any] = {
        "title": heading,
        "tables": [table.to_dict() for table in tables],
        "settings": settings.model_dump(mode="json") if settings else None,
        "versions": versions(),
    }
    write_atomically(folder.json_file, json.dumps(content, indent=2).encode())
    for table in tables:
        write_atomically(folder.chart_file(table.name), draw_chart(table).encode())
        for part in table.to_screen():
            console.print(part)
        for note in table.notes():
            say(note)
    say(f"Table: {folder.markdown_file}, every number: {folder.json_file}, charts beside them")


def draw_chart(table: Comparison) -> str:
    """The table's AP as bars, beside the published ones."""
    ours = Panel(
        "here (box AP, %)",
        [_bars(table, line) for line in table.lines],
        [_word(table, line) for line in table.lines],
    )
    published = Panel(
        "in the paper (box mAP, %)",
        [
            [None if value is None else Bar(value) for value in line.published.values()]
            if line.published
            else []
            for line in table.lines
        ],
        [DIVERGED if line.published and line.published.diverged else "" for line in table.lines],
    )
    return bar_chart(
        table.title,
        [line.title for line in table.lines],
        series=[metric.group for metric in AP_METRICS],
        panels=[ours, published],
    )


def _bars(table: Comparison, line: Line) -> list[Bar | None]:
    found = [table.summary(line, metric) for metric in AP_METRICS]
    return [None if one is None else Bar(one.mean, one.spread or 0.0) for one in found]


def _word(table: Comparison, line: Line) -> str:
    if line.left_out:
        return "left out"
    return DIVERGED if table.has_diverged(line) else ""
