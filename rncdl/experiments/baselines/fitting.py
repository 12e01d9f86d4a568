"""The training loop of the baselines."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rncdl.discovery.training import Diverged
from rncdl.training.checkpoints import list_checkpoints, load_checkpoint
from rncdl.training.interruption import stop_request
from rncdl.training.optimizer import make_sgd
from rncdl.training.processes import Processes, autocast, seed_step
from rncdl.training.progress import ProgressLine
from rncdl.training.saving import save_or_stop
from rncdl.training.schedule import rate_at, set_rate

BatchType = TypeVar("BatchType")

_MOMENTUM = 0.9
_WEIGHT_DECAY = 1e-4
_WARMUP_SHARE = 0.1
_LAST_RATE_SHARE = 0.01


@dataclass(frozen=True)
class Fitting:
    """How one network is trained."""

    name: str
    """what is trained, for the screen and for errors"""
    device: torch.device
    steps: int
    rate: float
    """the peak: climbed to in the first tenth of the steps, left on a cosine, as in UNO"""
    seed: int = 0
    precision: torch.dtype = torch.float32
    """of the encoder's products; heads and losses are always float32"""
    folder: Path | None = None
    """where checkpoints are kept and looked for; None: nowhere"""
    checkpoint_every: int = 1000
    keep_checkpoints: int = 2
    log_every: int = 50


@dataclass
class _State:
    """All that a training needs to go on."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    step: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "module": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "step": self.step,
        }

    def restore(self, folder: Path) -> None:
        """Load the folder's newest checkpoint, if it has one."""
        checkpoints = list_checkpoints(folder)
        if checkpoints:
            saved = load_checkpoint(checkpoints[-1])
            self.module.load_state_dict(saved["module"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.scaler.load_state_dict(saved["scaler"])
            self.step = saved["step"]


def encode_jointly(
    encoder: Callable[[Tensor], Tensor], *parts: Tensor, precision: torch.dtype
) -> tuple[Tensor, ...]:
    """float32 features of each part, from one pass through the encoder in `precision`.

    Apart, BatchNorm would normalise each by its own mean, and labelled regions, whose classes are
    few, by another one than those to be classified later.
    """
    with autocast(parts[0].device, precision):
        features = encoder(torch.cat(parts))
    return features.float().split([len(part) for part in parts])


def fit(
    module: nn.Module,
    loss_of: Callable[[BatchType], Tensor],
    feed: Callable[[int], Iterator[BatchType | None]],
    fitting: Fitting,
) -> None:
    """Train `module` by SGD on `loss_of` each batch, from its newest checkpoint if it has one.

    `feed(step)` gives the batches from that step on, each the same whenever it is asked for; a
    step whose batch is None, having nothing to learn from, is passed over. What `loss_of` carries
    from step to step belongs in buffers of `module`, which is left in evaluation mode. Raises
    `Interrupted`, with a checkpoint saved, when asked to stop, and `Diverged` when a loss was not
    finite; losses are looked at only now and then, for each look waits for the device.
    """
    state = _first_state(module, fitting)
    batches = feed(state.step)
    losses: dict[int, Tensor] = {}
    with (
        stop_request() as stop,
        ProgressLine(fitting.name, fitting.steps, unit="steps", start=state.step) as progress,
    ):
        while state.step < fitting.steps:
            seed_step(fitting.seed, step=state.step, rank=0)
            batch = next(batches)
            if batch is not None:
                set_rate(state.optimizer, _rate_of(state.step, fitting))
                losses[state.step] = _learn(loss_of(batch), state)
            state.step += 1
            figures = None
            if state.step % fitting.log_every == 0 or state.step == fitting.steps:
                figures = _read(losses, fitting.name)
                losses.clear()
            progress.advance(figures=figures)
            save_or_stop(
                state.step,
                fitting.steps,
                folder=fitting.folder,
                state=state.to_dict,
                check=lambda: _read(losses, fitting.name),
                every=fitting.checkpoint_every,
                keep=fitting.keep_checkpoints,
                stop=stop,
                processes=Processes(rank=0, count=1, device=fitting.device),
                how_to_continue="The same command goes on from there.",
            )
    module.eval()


def _first_state(module: nn.Module, fitting: Fitting) -> _State:
    """The module on its device, ready to be trained, as far as its folder's checkpoints go."""
    module.to(fitting.device).train()
    state = _State(
        module,
        make_sgd(module, momentum=_MOMENTUM, weight_decay=_WEIGHT_DECAY),
        torch.amp.GradScaler(fitting.device.type, enabled=fitting.precision == torch.float16),
    )
    if fitting.folder is not None:
        state.restore(fitting.folder)
    return state


def _rate_of(step: int, fitting: Fitting) -> float:
    return rate_at(
        step,
        fitting.steps,
        peak=fitting.rate,
        start=_LAST_RATE_SHARE * fitting.rate,
        end=_LAST_RATE_SHARE * fitting.rate,
        warmup_steps=round(_WARMUP_SHARE * fitting.steps),
        shape="cosine",
    )


def _learn(loss: Tensor, state: _State) -> Tensor:
    """Take one step down the loss; returns it without its graph."""
    state.optimizer.zero_grad(set_to_none=True)
    state.scaler.scale(loss).backward()
    state.scaler.step(state.optimizer)
    state.scaler.update()
    return loss.detach()


def _read(losses: Mapping[int, Tensor], name: str) -> dict[str, float] | None:
    """The mean of the losses by step, all brought over from the device at once."""
    if not losses:
        return None
    values = torch.stack(list(losses.values())).tolist()
    for step, value in zip(losses, values, strict=True):
        if not math.isfinite(value):
            raise Diverged(
                f"{name}, step {step + 1}: the loss is not finite. Try a lower baselines.rate, "
                "or train.precision=float32."
            )
    return {"loss": fmean(values)}
