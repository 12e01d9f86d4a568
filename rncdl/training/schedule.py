"""The learning rate of every step, as a function of the step alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch.optim import Optimizer

from rncdl.config import TrainSettings


@dataclass(frozen=True)
class Schedule:
    """How the learning rate goes over a training: up in a line, then down by a cosine or drops."""

    steps: int
    peak: float
    start: float
    """at the first step of the warm-up"""
    warmup_steps: int
    shape: Literal["steps", "cosine"]
    end: float = 0.0
    """at the last step, where the shape is a cosine"""
    drop_at: Sequence[int] = ()
    """steps from which on the rate is a tenth of what it was, where the shape is steps"""

    def rate(self, step: int) -> float:
        """The rate of step `step`, counted from 0."""
        if step < self.warmup_steps:
            return self.start + (self.peak - self.start) * step / self.warmup_steps
        if self.shape == "steps":
            return self.peak * 0.1 ** sum(step >= drop for drop in self.drop_at)
        falling = max(1, self.steps - 1 - self.warmup_steps)
        progress = min(1.0, (step - self.warmup_steps) / falling)
        return self.end + (self.peak - self.end) * 0.5 * (1 + math.cos(math.pi * progress))


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Give every parameter group of the optimiser that will be stepped this rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def shorten_schedule(train: TrainSettings, steps: int) -> dict[str, Any]:
    """What changes in the supervised phase's settings when it is to take this many steps."""
    factor = steps / train.steps
    drops = [max(1, round(factor * step)) for step in train.drop_at]
    return {
        "steps": steps,
        "warmup_steps": round(factor * train.warmup_steps),
        "drop_at": drops,
    }
