"""Mean figures and speed of a training loop between two readings."""

import time

import torch
from torch import Tensor

from rncdl.training.processes import Processes


class Meter:
    """Adds up each step's figures; a reading gives their means over steps and processes."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._sums: dict[str, Tensor] = {}
        self._num_steps = 0
        self._since = time.monotonic()

    def add(self, figures: dict[str, Tensor]) -> None:
        """Add one step's scalars; every step must bring the same names."""
        for name, value in figures.items():
            self._sums[name] = self._sums.get(name, 0) + value.detach()
        self._num_steps += 1

    def read(self) -> tuple[dict[str, float], float]:
        """Mean of each figure, and steps per second, since the last reading."""
        stacked = torch.stack(list(self._sums.values())) / self._num_steps
        means = self._processes.mean(stacked).tolist()
        now = time.monotonic()
        steps_per_second = self._num_steps / (now - self._since)
        names = list(self._sums)
        self._sums, self._num_steps, self._since = {}, 0, now
        return dict(zip(names, means, strict=True)), steps_per_second
