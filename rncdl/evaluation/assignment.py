"""From clusters to class names, for evaluation only.

C outputs of a model: K known classes, then the clusters. Classes are those of the evaluated
dataset, by column.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from scipy.optimize import linear_sum_assignment

from rncdl.data.records import Category

Protocol = Literal["fixed", "paper", "named"]

UNMAPPED = -1


@dataclass(frozen=True)
class Assignment:
    """Which class each of the C outputs stands for, at most one output per class but by name."""

    class_columns: np.ndarray
    """(C,) int64: column of the class, `UNMAPPED` where there is none"""
    counts: np.ndarray
    """(C,) int64: samples of that class which the output took"""
    sizes: np.ndarray
    """(C,) int64: all samples which the output took"""
    is_cluster: np.ndarray
    """(C,) bool: all but the known outputs; of these those that an earlier round has found"""

    @property
    def is_mapped(self) -> np.ndarray:
        """(C,) bool."""
        return self.class_columns != UNMAPPED

    @property
    def purity(self) -> np.ndarray:
        """(C,) share of an output's samples that are of its class; 0 where it took none."""
        return self.counts / np.maximum(self.sizes, 1)


def count_matrix(
    outputs: np.ndarray, class_columns: np.ndarray, *, num_outputs: int, num_classes: int
) -> np.ndarray:
    """(C, classes) int64: how many samples of each class (n,) each output (n,) took."""
    cells = outputs.astype(np.int64) * num_classes + class_columns
    counts = np.bincount(cells, minlength=num_outputs * num_classes)
    return counts.reshape(num_outputs, num_classes)


def assign_clusters(
    counts: np.ndarray,
    known_class_columns: np.ndarray,
    *,
    protocol: Protocol,
    named: Mapping[int, int] | None = None,
    found: Sequence[int] = (),
) -> Assignment:
    """The one-to-one assignment with the largest total count.

    counts: (C, classes); known_class_columns: (K,) column of each known output, `UNMAPPED` where
    the dataset lacks the class; named: the same of outputs that people have named; found: known
    outputs that an earlier round has found and nobody has named, which are clusters. `fixed`: known
    and named outputs keep their class, and the others get novel classes that are left. `named`:
    the others get none. `paper`: all outputs enter with all classes.

    The assignment also pairs what is left over; a pair that shares no sample is such an accident
    of the solver's order and is dropped.
    """
    num_known = len(known_class_columns)
    is_cluster = np.arange(len(counts)) >= num_known
    is_cluster[list(found)] = True
    class_columns = np.full(len(counts), UNMAPPED, dtype=np.int64)
    rows, columns = np.arange(len(counts)), np.arange(counts.shape[1])
    if protocol != "paper":
        class_columns[:num_known] = known_class_columns
        for output, column in (named or {}).items():
            class_columns[output] = column
        given = [*np.flatnonzero(~is_cluster), *(named or {})]
        rows = np.setdiff1d(rows, given) if protocol == "fixed" else rows[:0]
        columns = np.setdiff1d(columns, class_columns)
    chosen, paired = linear_sum_assignment(counts[np.ix_(rows, columns)], maximize=True)
    chosen, paired = rows[chosen], columns[paired]
    shares = counts[chosen, paired] > 0
    class_columns[chosen[shares]] = paired[shares]
    mapped = np.flatnonzero(class_columns != UNMAPPED)
    taken = np.zeros(len(counts), dtype=np.int64)
    taken[mapped] = counts[mapped, class_columns[mapped]]
    return Assignment(
        class_columns=class_columns,
        counts=taken,
        sizes=counts.sum(axis=1),
        is_cluster=is_cluster,
    )


_HEADER = ["output", "kind", "name", "category_id", "class", "count", "size", "purity"]
_COUNTS_HEADER = ["output", "category_id", "class", "count"]


def write_counts(path: Path, counts: np.ndarray, categories: Sequence[Category]) -> None:
    """A csv of `count_matrix`, (C, classes): one line for each pair that shares any sample."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(_COUNTS_HEADER)
        for output, column in np.argwhere(counts).tolist():
            category = categories[column]
            writer.writerow([output, category.id, category.name, counts[output, column]])


def write_assignment(
    path: Path, assignment: Assignment, categories: Sequence[Category], *, names: Sequence[str]
) -> None:
    """A csv with one line per output.

    categories: those of the columns; names: (C,) of the outputs. An unmapped output has no
    category_id and no class.
    """
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(_HEADER)
        for output, column in enumerate(assignment.class_columns.tolist()):
            named = column != UNMAPPED
            writer.writerow(
                [
                    output,
                    "cluster" if assignment.is_cluster[output] else "known",
                    names[output],
                    categories[column].id if named else "",
                    categories[column].name if named else "",
                    assignment.counts[output],
                    assignment.sizes[output],
                    f"{assignment.purity[output]:.4f}",
                ]
            )
