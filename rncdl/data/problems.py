"""What can be wrong with a dataset, and what is done about it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

MAX_EXAMPLES = 3


class ProblemKind(StrEnum):
    """Kinds of problems; the text says what is wrong in a few words."""

    CLIPPED_BOX = "box partly outside its image"
    BOX_OUTSIDE = "box entirely outside its image"
    BOX_WITHOUT_AREA = "box without area"
    BOX_NOT_FINITE = "box with a number that is not finite"
    UNKNOWN_CATEGORY = "unknown category id"
    UNKNOWN_IMAGE = "unknown image id"
    DUPLICATE_ANNOTATION_ID = "annotation id used more than once"
    DUPLICATE_IMAGE_ID = "image id used more than once"
    DUPLICATE_CATEGORY_ID = "category id used more than once"
    DUPLICATE_CATEGORY_NAME = "category name used more than once"
    SIMILAR_CATEGORY_NAME = "category name that another one has but for case, spaces or hyphens"
    BROKEN_MASK = "mask that cannot be read"
    MISSING_IMAGE = "missing image file"
    BROKEN_IMAGE = "image file that cannot be read"
    WRONG_SIZE = "image of another size than the file says"
    REPEATED_IMAGE = "the same image file once more"
    ALIKE_IMAGES = "images that are all alike"
    SHARED_IMAGE = "image that is also among those trained on"

    @property
    def consequence(self) -> str:
        """What the package does about it, or what the user must do."""
        return _CONSEQUENCES[self]


_BAD_IMAGE = "stops the run, or is passed over with data.on_bad_image=skip"
_CONSEQUENCES = {
    ProblemKind.CLIPPED_BOX: "clipped to the image",
    ProblemKind.BOX_OUTSIDE: "dropped",
    ProblemKind.BOX_WITHOUT_AREA: "dropped",
    ProblemKind.BOX_NOT_FINITE: "dropped",
    ProblemKind.UNKNOWN_CATEGORY: "dropped",
    ProblemKind.UNKNOWN_IMAGE: "dropped",
    ProblemKind.DUPLICATE_ANNOTATION_ID: "kept",
    ProblemKind.DUPLICATE_IMAGE_ID: "refused: give every image its own id",
    ProblemKind.DUPLICATE_CATEGORY_ID: "refused: give every category its own id",
    ProblemKind.DUPLICATE_CATEGORY_NAME: "taken for one class",
    ProblemKind.SIMILAR_CATEGORY_NAME: "kept as two classes: give both the same name",
    ProblemKind.BROKEN_MASK: _BAD_IMAGE,
    ProblemKind.MISSING_IMAGE: _BAD_IMAGE,
    ProblemKind.BROKEN_IMAGE: _BAD_IMAGE,
    ProblemKind.WRONG_SIZE: _BAD_IMAGE,
    ProblemKind.REPEATED_IMAGE: "kept",
    ProblemKind.ALIKE_IMAGES: "kept: there is little to learn from them",
    ProblemKind.SHARED_IMAGE: "kept: what is measured on it says little",
}
BAD_IMAGES = frozenset(kind for kind, text in _CONSEQUENCES.items() if text == _BAD_IMAGE)
"""Problems that stop a run, unless the image is passed over."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong in a dataset."""

    kind: ProblemKind
    where: str
    """the place in the file (`annotations[3] (id 17)`) or the path of an image"""
    value: str
    """what stands there"""

    @property
    def consequence(self) -> str:
        """What the package does about it, or what the user must do."""
        return self.kind.consequence


@dataclass
class ProblemCounts:
    """How often each kind of problem was met, with the first few of each."""

    counts: dict[ProblemKind, int] = field(default_factory=dict)
    examples: dict[ProblemKind, list[Problem]] = field(default_factory=dict)

    def add(self, kind: ProblemKind, count: int, *, first: Iterable[Problem]) -> None:
        """Count `count` more problems of a kind; `first` are examples."""
        if count:
            self.counts[kind] = self.counts.get(kind, 0) + count
            kept = self.examples.setdefault(kind, [])
            kept.extend(list(first)[: MAX_EXAMPLES - len(kept)])

    def __getitem__(self, kind: ProblemKind) -> int:
        return self.counts.get(kind, 0)

    def __bool__(self) -> bool:
        return bool(self.counts)

    def lines(self) -> list[str]:
        """One line for a reader per kind met: count, consequence, the first example."""
        return [
            f"{count} × {kind} ({kind.consequence}), e.g. {example.where}: {example.value}"
            for kind, count in self.counts.items()
            for example in self.examples[kind][:1]
        ]
