"""Known and novel classes, and the only door through which labels reach training."""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rncdl.data.records import AnnotationSet, ImageRecord
from rncdl.errors import UserError, did_you_mean


def cluster_name(cluster: int) -> str:
    """What a cluster is called until somebody names it."""
    return f"novel_{cluster:04d}"


def is_cluster_name(name: str) -> bool:
    """Whether a name is, but for upper and lower case, what clusters are called without one."""
    return re.fullmatch(r"novel_\d+", name, re.IGNORECASE) is not None


def found_name(cluster: str, known: Iterable[str]) -> str:
    """What a cluster without a name is called as a class to train on: novel_0012 is found_0012.

    Where known classes come from such rounds already it is found2_0012, found3_0012 and so on, so
    that neither they nor the clusters of a later discovery have the name.
    """
    rounds = [int(one[1] or 1) for one in map(_match_found, known) if one]
    number = max(rounds, default=0) + 1
    return f"found{number if number > 1 else ''}_{cluster.rpartition('_')[2]}"


def is_found_name(name: str) -> bool:
    """Whether a class is called as clusters are that became classes without a name."""
    return _match_found(name) is not None


def _match_found(name: str) -> re.Match[str] | None:
    return re.fullmatch(r"found(\d*)_\d+", name, re.IGNORECASE)


@dataclass(frozen=True)
class ClassSplit:
    """The K known classes by name, in output order: class `k` is `known[k]`.

    Every other name of a dataset is novel.
    """

    known: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.known:
            raise UserError("No known classes: name at least one.")
        repeated = sorted({name for name in self.known if self.known.count(name) > 1})
        if repeated:
            raise UserError(f"Known classes named more than once: {', '.join(repeated)}.")

    @classmethod
    def from_labelled(cls, labelled: AnnotationSet) -> "ClassSplit":
        """Known are the classes that have annotations in the labelled file."""
        annotated = set(np.unique(labelled.category_ids).tolist())
        return cls(tuple(c.name for c in labelled.categories if c.id in annotated))

    @classmethod
    def from_names(cls, choice: str | Sequence[str]) -> "ClassSplit":
        """Known are the names of `choice`: a list, names with commas, or a file, one a line."""
        if not isinstance(choice, str):
            return cls(tuple(choice))
        if not os.path.isfile(choice):  # unlike Path.is_file, no error for long lists of names
            return cls(tuple(name.strip() for name in choice.split(",") if name.strip()))
        try:
            lines = Path(choice).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{choice}: not a text file with one class per line.") from error
        return cls(tuple(line.strip() for line in lines if line.strip()))

    def require_present(self, labelled: AnnotationSet) -> None:
        """Refuse known classes that the labelled file does not have."""
        present = [c.name for c in labelled.categories]
        for name in self.known:
            if name not in present:
                raise UserError(
                    f"Known class {name!r} is not among the categories of the labelled file."
                    + did_you_mean(name, present)
                )

    @property
    def num_known(self) -> int:
        """K."""
        return len(self.known)

    @property
    def found(self) -> tuple[int, ...]:
        """The known classes, as indices, that are clusters of an earlier round without a name."""
        return tuple(k for k, name in enumerate(self.known) if is_found_name(name))

    def known_ids(self, annotations: AnnotationSet) -> dict[int, int]:
        """Category id of this file -> known class index, for the known classes the file has."""
        index = {name: k for k, name in enumerate(self.known)}
        return {c.id: index[c.name] for c in annotations.categories if c.name in index}

    def keep_known(self, annotations: AnnotationSet) -> "KnownLabels":
        """Everything training may see of a labelled file: other classes' annotations are gone."""
        class_of = self.known_ids(annotations)
        known_ids = np.array(sorted(class_of), dtype=np.int64)
        rows = np.flatnonzero(np.isin(annotations.category_ids, known_ids))
        classes = np.array([class_of[i] for i in known_ids.tolist()], dtype=np.int64)
        kept = annotations.take(
            rows,
            images=_without_novel_ids(annotations, set(class_of)),
            categories=tuple(c for c in annotations.categories if c.id in class_of),
        )
        labels = classes[np.searchsorted(known_ids, kept.category_ids)]
        return KnownLabels(split=self, annotations=kept, labels=labels)


def _without_novel_ids(annotations: AnnotationSet, known_ids: set[int]) -> tuple[ImageRecord, ...]:
    """The images with federated lists of known classes only: the lists are labels too."""
    if not annotations.is_federated:
        return annotations.images
    return tuple(
        replace(
            image,
            neg_category_ids=tuple(i for i in image.neg_category_ids if i in known_ids),
            not_exhaustive_category_ids=tuple(
                i for i in image.not_exhaustive_category_ids if i in known_ids
            ),
        )
        for image in annotations.images
    )


@dataclass(frozen=True)
class KnownLabels:
    """A labelled dataset that holds nothing but known classes. Made by `ClassSplit.keep_known`."""

    split: ClassSplit
    annotations: AnnotationSet
    labels: np.ndarray
    """(A,) int64 in 0..K-1, one per annotation"""

    def __post_init__(self) -> None:
        names = {c.id: c.name for c in self.annotations.categories}
        novel = set(names.values()) - set(self.split.known)
        strays = set(np.unique(self.annotations.category_ids).tolist()) - set(names)
        if novel or strays:
            raise AssertionError(
                f"novel classes reached training: {sorted(novel)} {sorted(strays)}"
            )
        if len(self.labels) != len(self.annotations.category_ids):
            raise AssertionError("every annotation needs one label")
