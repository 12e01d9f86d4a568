"""What a system's outputs stand for, by the annotated boxes they took."""

from collections.abc import Sequence

import numpy as np

from rncdl.classes import ClassSplit, is_cluster_name
from rncdl.data.records import AnnotationSet
from rncdl.errors import UserError
from rncdl.evaluation.assignment import (
    UNMAPPED,
    Assignment,
    Protocol,
    assign_clusters,
    count_matrix,
)
from rncdl.evaluation.clustering_scores import score_clustering
from rncdl.evaluation.results import Clusters

PROTOCOLS: tuple[Protocol, ...] = ("fixed", "paper")
PROTOCOLS_OF_NAMED: tuple[Protocol, ...] = ("fixed", "named")


def score_clusters(
    outputs: np.ndarray, truth: AnnotationSet, split: ClassSplit, *, names: Sequence[str]
) -> Clusters:
    """Clustering scores on the annotated boxes, and the assignment by each protocol.

    names: (C,) of all outputs, the known ones first. An output that people have named stands for
    the class of that name, or for none where the file lacks it. Known outputs of classes that an
    earlier round has found are clusters (`found_before`).
    """
    column_of = {category.id: column for column, category in enumerate(truth.categories)}
    seen = (outputs >= 0) & ~truth.is_crowd
    columns = np.array([column_of[i] for i in truth.category_ids.tolist()], dtype=np.int64)
    known_ids = split.known_ids(truth)
    is_known = np.isin(truth.category_ids, list(known_ids))
    known_columns = np.full(split.num_known, UNMAPPED, dtype=np.int64)
    for category_id, k in known_ids.items():
        known_columns[k] = column_of[category_id]
    found = found_before(split, truth)
    is_cluster = np.arange(len(names)) >= split.num_known
    is_cluster[found] = True
    named = _named_columns(names, truth, num_known=split.num_known)
    counts = count_matrix(
        outputs[seen],
        columns[seen],
        num_outputs=len(names),
        num_classes=len(truth.categories),
    )
    groups = {"known": seen & is_known, "novel": seen & ~is_known, "all": seen}
    return Clusters(
        num_clusters=int(is_cluster.sum()),
        scores={
            name: score_clustering(outputs[rows], columns[rows]) for name, rows in groups.items()
        },
        assignments={
            protocol: assign_clusters(
                counts, known_columns, protocol=protocol, named=named, found=found
            )
            for protocol in (PROTOCOLS_OF_NAMED if named else PROTOCOLS)
        },
        counts=counts,
        novel_called_known=_share_called_known(outputs[groups["novel"]], is_cluster),
    )


def found_before(split: ClassSplit, truth: AnnotationSet) -> list[int]:
    """Known outputs that are clusters of an earlier round, which became classes without a name.

    They stand for no class of their name, so they are clusters to evaluation; but not where the
    file has such a class, being made of the same labels.
    """
    present = {category.name for category in truth.categories}
    return [k for k in split.found if split.known[k] not in present]


def _named_columns(names: Sequence[str], truth: AnnotationSet, *, num_known: int) -> dict[int, int]:
    """Output -> column of the class that it is named after, upper and lower case being one."""
    categories = [category.name for category in truth.categories]
    column_of = {name.casefold(): column for column, name in enumerate(categories)}
    return {
        output: column_of.get(name.casefold(), UNMAPPED)
        for output, name in enumerate(names)
        if output >= num_known and not is_cluster_name(name)
    }


def _share_called_known(outputs: np.ndarray, is_cluster: np.ndarray) -> float | None:
    return float((~is_cluster[outputs]).mean()) if len(outputs) else None


def known_category_ids(split: ClassSplit, truth: AnnotationSet) -> np.ndarray:
    """(K,) the evaluated file's id of each known class, -1 where it lacks one."""
    ids = np.full(split.num_known, -1, dtype=np.int64)
    for category_id, k in split.known_ids(truth).items():
        ids[k] = category_id
    if (ids < 0).all():
        raise UserError(
            "The validation file has none of the known classes: "
            f"{', '.join(split.known[:10])}. Classes are matched by name."
        )
    return ids


def assigned_category_ids(assignment: Assignment, truth: AnnotationSet) -> np.ndarray:
    """(C,) the evaluated file's category id of each output, -1 where it has none."""
    category_ids = np.array([category.id for category in truth.categories], dtype=np.int64)
    return np.where(assignment.is_mapped, category_ids[assignment.class_columns], -1)
