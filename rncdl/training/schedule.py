"""The learning rate of every step, as a function of the step alone."""

import math
from collections.abc import Sequence
from typing import Any, Literal

from torch.optim import Optimizer

from rncdl.config import TrainSettings


def rate_at(
    step: int,
    num_steps: int,
    *,
    peak: float,
    start: float,
    end: float,
    warmup_steps: int,
    shape: Literal["steps", "cosine"],
    drop_at: Sequence[int] = (),
) -> float:
    """The rate of step `step` (0-based): linear from `start` to `peak`, then a cosine or drops.

    cosine: falls from `peak` at the end of the warm-up to `end` at the last step.
    steps: a tenth of what it was, at each step of `drop_at`.
    """
    if step < warmup_steps:
        return start + (peak - start) * step / warmup_steps
    if shape == "steps":
        return peak * 0.1 ** sum(step >= drop for drop in drop_at)
    progress = min(1.0, (step - warmup_steps) / max(1, num_steps - 1 - warmup_steps))
    return end + (peak - end) * 0.5 * (1 + math.cos(math.pi * progress))


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
