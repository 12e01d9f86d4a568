"""The numbers as tables: for the screen, for Markdown, and class by class as csv.

Rows and columns are those of the paper's table of detailed results; AP is in percent there.
"""

import csv
import math
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from rncdl.data.records import Category
from rncdl.evaluation.average_precision import APResult, GroupAP

AP_COLUMNS = ("mAP", "mAP50", "mAP75", "mAPs", "mAPm", "mAPl", "mAPr", "mAPc", "mAPf")


def ap_rows(result: APResult) -> list[list[str]]:
    """Cells of the rows known, novel, all: the name, then `AP_COLUMNS`, a dash where undefined."""
    groups = (("known", result.known), ("novel", result.novel), ("all", result.all))
    return [[name, *(_percent(value) for value in _values(group))] for name, group in groups]


def ap_table(result: APResult, *, title: str) -> Table:
    """The rows for the screen."""
    return screen_table(title, ("Classes", *AP_COLUMNS), ap_rows(result))


def ap_markdown(result: APResult) -> str:
    """The rows as a Markdown table."""
    return markdown_table(("Classes", *AP_COLUMNS), ap_rows(result))


def screen_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table for the screen whose first column is text and whose others are numbers."""
    table = Table(title=title, title_justify="left")
    for index, name in enumerate(header):
        table.add_column(name, justify="right" if index else "left")
    for row in rows:
        table.add_row(*row)
    return table


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose first column is text and whose others are numbers."""
    rule = ["---", *("---:" for _ in header[1:])]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (header, rule, *rows))


def write_class_csv(path: Path, result: APResult, categories: Sequence[Category]) -> None:
    """One line per class, by category id; AP is in [0, 1] and left empty where undefined."""
    category_of = {category.id: category for category in categories}
    scores = result.per_class
    columns = {
        "AP": scores.ap,
        "AP50": scores.ap50,
        "AP75": scores.ap75,
        "APs": scores.ap_small,
        "APm": scores.ap_medium,
        "APl": scores.ap_large,
        f"AR@{result.max_detections}": scores.average_recall,
    }
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["category_id", "class", "group", "annotations", *columns])
        for row, category_id in enumerate(result.category_ids.tolist()):
            values = (float(column[row]) for column in columns.values())
            writer.writerow(
                [
                    category_id,
                    category_of[category_id].name,
                    "known" if result.is_known[row] else "novel",
                    scores.num_annotations[row],
                    *("" if math.isnan(value) else f"{value:.6f}" for value in values),
                ]
            )


def _values(group: GroupAP) -> tuple[float | None, ...]:
    return (
        *(group.ap, group.ap50, group.ap75),
        *(group.ap_small, group.ap_medium, group.ap_large),
        *(group.ap_rare, group.ap_common, group.ap_frequent),
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"
