"""Which output took how many annotated boxes of which class, as a picture."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from rncdl.gallery.findings import AssignedRow, ClassRow

MAX_CLASSES = 60
MAX_OUTPUTS = 80
"""More could not be told apart; those with the most boxes are shown."""

_CELL_PX = 14
_NAMES_PX = 170
_HEADER_PX = 64


@dataclass(frozen=True)
class Confusion:
    """Boxes of R classes by C outputs, both in the order in which they are to be shown."""

    classes: Sequence[ClassRow]
    outputs: Sequence[AssignedRow]
    output_names: Sequence[str]
    counts: np.ndarray
    """(R, C) int64"""


def order_confusion(
    assigned: Sequence[AssignedRow], classes: Sequence[ClassRow], output_names: Sequence[str]
) -> Confusion | None:
    """Known classes before novel ones, outputs below each other by the class they took most of.

    `output_names` (C,) of all outputs. None where it was not written down what they took.
    """
    frequent = sorted(classes, key=lambda row: -row.num_annotations)[:MAX_CLASSES]
    shown = sorted(frequent, key=lambda row: not row.is_known)
    row_of = {row.name: index for index, row in enumerate(shown)}
    taking = [row for row in assigned if any(name in row_of for name, _ in row.taken)]
    if not taking:
        return None
    busiest = sorted(taking, key=lambda row: (not row.is_known, -row.size))[:MAX_OUTPUTS]
    counts = np.zeros((len(shown), len(busiest)), dtype=np.int64)
    for column, output in enumerate(busiest):
        for name, count in output.taken:
            if name in row_of:
                counts[row_of[name], column] = count
    own_row = [row_of.get(output.name or "", len(shown)) for output in busiest]
    is_cluster = np.array([not output.is_known for output in busiest])
    leading = np.where(is_cluster, counts.argmax(0), own_row)
    order = np.lexsort((-counts.max(0), leading, is_cluster))
    outputs = [busiest[column] for column in order]
    names = [output_names[output.output] for output in outputs]
    return Confusion(shown, outputs, names, counts[:, order])


def draw_confusion(confusion: Confusion) -> Markup:
    """A figure: a row for each class, a column for each output, darker the more of the class."""
    num_rows, num_columns = confusion.counts.shape
    width = _NAMES_PX + _CELL_PX * num_columns + 2
    height = _HEADER_PX + _CELL_PX * num_rows + 2
    return Markup(
        '<svg class="confusion" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" '
        'aria-label="{2}">{3}{4}{5}</svg>'
    ).format(
        width, height, _describe(confusion), _row_names(confusion), _column_names(confusion),
        _cells(confusion),
    )  # fmt: skip


def _row_names(confusion: Confusion) -> Markup:
    return Markup("").join(
        Markup('<text class="tick {}" x="{}" y="{}" text-anchor="end">{}</text>').format(
            _kind(row.is_known), _NAMES_PX - 6, _HEADER_PX + _CELL_PX * (index + 0.75), row.name
        )
        for index, row in enumerate(confusion.classes)
    )


def _column_names(confusion: Confusion) -> Markup:
    parts = []
    for index, (output, name) in enumerate(
        zip(confusion.outputs, confusion.output_names, strict=True)
    ):
        x = _NAMES_PX + _CELL_PX * (index + 0.75)
        parts.append(
            Markup(
                '<text class="tick {}" transform="translate({} {}) rotate(-90)">{}</text>'
            ).format(
                _kind(output.is_known), x, _HEADER_PX - 5, "known" if output.is_known else name
            )
        )
    return Markup("").join(parts)


def _cells(confusion: Confusion) -> Markup:
    parts = []
    for row, column in np.argwhere(confusion.counts).tolist():
        of_class, output = confusion.classes[row], confusion.outputs[column]
        count = int(confusion.counts[row, column])
        share = min(1.0, count / max(1, of_class.num_annotations))
        parts.append(
            Markup(
                '<rect class="{}" x="{}" y="{}" width="{}" height="{}" fill-opacity="{:.2f}">'
                "<title>{}: {} of {} boxes in {}</title></rect>"
            ).format(
                f"{_kind(of_class.is_known)}{' own' if output.name == of_class.name else ''}",
                _NAMES_PX + _CELL_PX * column,
                _HEADER_PX + _CELL_PX * row,
                _CELL_PX - 1,
                _CELL_PX - 1,
                # The root makes small shares visible.
                share**0.5,
                of_class.name,
                count,
                of_class.num_annotations,
                confusion.output_names[column],
            )
        )
    return Markup("").join(parts)


def _describe(confusion: Confusion) -> str:
    """The picture in words: where most of each class went."""
    largest = confusion.counts.argmax(1).tolist()
    parts = [
        f"{row.name}: {confusion.counts[index, largest[index]]} of {row.num_annotations} "
        f"in {confusion.output_names[largest[index]]}"
        for index, row in enumerate(confusion.classes)
    ]
    return f"Where most boxes of each class went. {'; '.join(parts)}"


def _kind(is_known: bool) -> str:
    return "known" if is_known else "novel"
