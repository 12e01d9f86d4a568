"""The masks of a dataset file, undecoded, in one block of memory."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

_LONGEST_NOTHING = 8
"""bytes of `null` or `[]` with white space around or inside"""


@dataclass(frozen=True, eq=False)
class Segmentations(Sequence[bytes | None]):
    """A masks as raw JSON (polygons or RLE), None where there is only a box.

    One block of bytes instead of A objects: loading processes share it untouched after a fork
    (objects would be copied page by page as their reference counts change), and it is pickled
    at the speed of memory.
    """

    block: bytes = field(repr=False)
    starts: np.ndarray = field(repr=False)
    """(A,) int64, where each mask begins in `block`"""
    lengths: np.ndarray = field(repr=False)
    """(A,) int64, 0 where there is no mask"""

    @classmethod
    def pack(cls, parts: Iterable[bytes | msgspec.Raw | None]) -> "Segmentations":
        """The parts in one block; None, `null` and `[]` are no mask."""
        if isinstance(parts, Segmentations):
            return parts
        kept: list[bytes | msgspec.Raw] = [b"" if part is None else part for part in parts]
        lengths = np.fromiter((len(memoryview(part)) for part in kept), np.int64, len(kept))
        for row in np.flatnonzero((lengths > 0) & (lengths <= _LONGEST_NOTHING)).tolist():
            if bytes(kept[row]).translate(None, b" \t\r\n") in (b"null", b"[]"):
                kept[row], lengths[row] = b"", 0
        return cls(b"".join(kept), np.cumsum(lengths) - lengths, lengths)

    def take(self, rows: np.ndarray) -> "Segmentations":
        """The chosen rows in the given order, still in the same block."""
        return Segmentations(self.block, self.starts[rows], self.lengths[rows])

    def compact(self) -> "Segmentations":
        """The same masks in a block that holds nothing else."""
        if self.lengths.sum() == len(self.block):
            return self
        return Segmentations.pack(list(self))

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> bytes | None:  # type: ignore[override]  # rows only
        length = int(self.lengths[row])
        start = int(self.starts[row])
        return self.block[start : start + length] if length else None

    def __iter__(self) -> Iterator[bytes | None]:
        for start, length in zip(self.starts.tolist(), self.lengths.tolist(), strict=True):
            yield self.block[start : start + length] if length else None

    def __contains__(self, value: object) -> bool:
        if value is None:
            return not self.lengths.all()
        return super().__contains__(value)
