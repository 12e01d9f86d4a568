"""Memory of past region features, which widens the batch for the balanced assignment."""

from collections.abc import Mapping

import torch
from torch import Tensor


class FeatureMemory:
    """The newest `capacity` features of one view, first in, first out.

    Serves only rows that were pushed. The order of the rows is that of the ring, not of time.
    """

    def __init__(
        self, capacity: int, num_features: int, *, device: torch.device | str = "cpu"
    ) -> None:
        self._ring = torch.zeros(capacity, num_features, device=device)
        self._count = 0
        self._next_row = 0

    def __len__(self) -> int:
        return self._count

    @property
    def capacity(self) -> int:
        """The most rows it can hold."""
        return len(self._ring)

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self._ring.device

    @property
    def width(self) -> int:
        """F."""
        return self._ring.shape[1]

    @property
    def is_full(self) -> bool:
        """Whether every row was filled; a memory without rows is full from the start."""
        return self._count == self.capacity

    def features(self) -> Tensor:
        """The rows held (count, F): a view of the memory, valid until the next `push`."""
        return self._ring[: self._count]

    def push(self, features: Tensor) -> None:
        """Adds rows (R, F), the last of them the newest, in place of the oldest."""
        if self.capacity == 0:
            return
        newest = features.detach()[-self.capacity :].to(self._ring)
        first = min(len(newest), self.capacity - self._next_row)
        self._ring[self._next_row : self._next_row + first] = newest[:first]
        self._ring[: len(newest) - first] = newest[first:]
        self._next_row = (self._next_row + len(newest)) % self.capacity
        self._count = min(self._count + len(newest), self.capacity)

    def state_dict(self) -> dict[str, Tensor]:
        """The filled rows, their count and the row written next."""
        return {
            "features": self.features().clone(),
            "count": torch.tensor(self._count),
            "next_row": torch.tensor(self._next_row),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continues where `state_dict` was taken; the capacity must be the same."""
        count, next_row = int(state["count"]), int(state["next_row"])
        features = state["features"]
        fits = count <= self.capacity and features.shape == (count, self.width)
        if not fits or (count < self.capacity and next_row != count):
            raise ValueError(
                f"features {tuple(features.shape)}, count {count} and next row {next_row} do not "
                f"fit a memory of {self.capacity} rows of {self.width} features"
            )
        self._ring[:count] = features
        self._count, self._next_row = count, next_row
