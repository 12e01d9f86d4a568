"""The training loop of the baselines."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor, nn

from rncdl.training.optimizer import make_sgd
from rncdl.training.progress import ProgressLine
from rncdl.training.schedule import rate_at, set_rate

BatchType = TypeVar("BatchType")

_MOMENTUM = 0.9
_WEIGHT_DECAY = 1e-4
_WARMUP_SHARE = 0.1
_LAST_RATE_SHARE = 0.01


def encode_jointly(module: Callable[[Tensor], Tensor], *parts: Tensor) -> tuple[Tensor, ...]:
    """What `module` makes of each part, in one pass.

    Apart, BatchNorm would normalise each by its own mean, and labelled regions, whose classes are
    few, by another one than those to be classified later.
    """
    return module(torch.cat(parts)).split([len(part) for part in parts])


def fit(
    module: nn.Module,
    loss_of: Callable[[BatchType], Tensor],
    batches: Iterator[BatchType],
    *,
    steps: int,
    rate: float,
    title: str,
) -> None:
    """Train `module` by SGD on `loss_of` each batch; it is left in evaluation mode.

    The rate climbs to `rate` in the first tenth of the steps and falls on a cosine to a
    hundredth of it, as in UNO.
    """
    module.train()
    optimizer = make_sgd(module, momentum=_MOMENTUM, weight_decay=_WEIGHT_DECAY)
    with ProgressLine(title, steps, unit="steps") as progress:
        for step, batch in zip(range(steps), batches, strict=False):
            now = rate_at(
                step,
                steps,
                peak=rate,
                start=_LAST_RATE_SHARE * rate,
                end=_LAST_RATE_SHARE * rate,
                warmup_steps=round(_WARMUP_SHARE * steps),
                shape="cosine",
            )
            set_rate(optimizer, now)
            loss = loss_of(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            progress.advance(1, {"loss": loss.item()} if step % 10 == 0 else None)
    module.eval()
