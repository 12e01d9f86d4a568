"""Mean figures and speed of a training loop between two readings."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from rncdl.training.processes import Processes


@dataclass(frozen=True)
class BadStep:
    """The first step that had a figure which is not a finite number."""

    steps_ago: int
    """0: the last one"""
    names: list[str]
    """of its figures that are not finite"""
    about: Sequence[str]
    """what the step had to say of itself in this process"""


@dataclass(frozen=True)
class Figures:
    """What the steps since the last reading come to."""

    means: dict[str, float]
    steps_per_second: float
    bad_step: BadStep | None


class Meter:
    """Collects each step's figures where they are; only a reading waits for the device."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._names: list[str] = []
        self._rows: list[Tensor] = []
        self._about: list[Sequence[str]] = []
        self._since = time.monotonic()

    def add(self, figures: dict[str, Tensor], about: Sequence[str] = ()) -> None:
        """Add one step's scalars; every step must bring the same names."""
        self._names = list(figures)
        self._rows.append(torch.stack([value.detach().float() for value in figures.values()]))
        self._about.append(about)

    def read(self) -> Figures:
        """Mean of each figure over steps and processes, and steps per second, since the last."""
        rows = self._read_rows()
        now = time.monotonic()
        columns = zip(*rows, strict=True)
        found = Figures(
            means={name: fmean(values) for name, values in zip(self._names, columns, strict=True)},
            steps_per_second=len(rows) / (now - self._since),
            bad_step=self._first_bad(rows),
        )
        self._rows, self._about, self._since = [], [], now
        return found

    def find_bad_step(self) -> BadStep | None:
        """The first bad step since the last reading. Every process must ask."""
        return self._first_bad(self._read_rows())

    def _read_rows(self) -> list[list[float]]:
        """Every step's figures, means over the processes: the one place that waits."""
        if not self._rows:
            return []
        return self._processes.mean(torch.stack(self._rows)).tolist()

    def _first_bad(self, rows: Sequence[Sequence[float]]) -> BadStep | None:
        for index, row in enumerate(rows):
            names = [n for n, v in zip(self._names, row, strict=True) if not math.isfinite(v)]
            if names:
                return BadStep(len(rows) - 1 - index, names, self._about[index])
        return None
