"""The discovery phase: one plain loop over batches of features."""

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from rncdl.config import DiscoverSettings, Settings
from rncdl.discovery.distillation import sharpness_at
from rncdl.discovery.divergence import has_collapsed
from rncdl.discovery.feeding import DiscoveryBatch
from rncdl.discovery.heads import DiscoveryHeads, RowNorm
from rncdl.discovery.state import DiscoveryState, fill_memories, first_state, restore
from rncdl.discovery.step import (
    SHARE_TOLERANCE,
    Labelling,
    StepStatistics,
    discovery_step,
    taught_step,
)
from rncdl.errors import UserError
from rncdl.training.interruption import StopRequest, stop_request
from rncdl.training.journal import Journal
from rncdl.training.meter import BadStep, Meter
from rncdl.training.prefetching import prefetch
from rncdl.training.processes import Processes, autocast, choose_precision, seed_step
from rncdl.training.progress import ProgressLine, warn
from rncdl.training.saving import Saving, save_or_stop
from rncdl.training.schedule import Schedule, set_rate


class Feed(Protocol):
    """Where batches come from: the bank, or the detector on fresh views."""

    can_prefetch: bool
    """whether another thread may make the batches"""

    def batches(self, start: int = 0) -> Generator[DiscoveryBatch, None, None]:
        """The batches from number `start` on, endlessly."""
        ...


class Diverged(UserError):
    """The loss stopped being a finite number."""


def train_heads(
    heads: DiscoveryHeads,
    feed: Feed,
    *,
    settings: Settings,
    folder: Path,
    processes: Processes,
    also_trained: Sequence[nn.Module] = (),
    extra_losses: Callable[[int], Iterator[Tensor]] | None = None,
) -> None:
    """Train `heads` in place, from the folder's newest checkpoint where it has one.

    Memory and pseudo-labels are each process's own; gradients are averaged over the processes.
    `also_trained`: parts of the detector that an ablation leaves free; `extra_losses`: from
    a step on, a term to be added to each step's loss. Raises `Interrupted`, with a checkpoint
    saved, when asked to stop, and `Diverged` when the loss is not finite.
    """
    discover = settings.discover
    state = first_state(heads, also_trained, discover, processes)
    restore(state, folder / "checkpoints", processes)
    journal = _open_journal(folder, discover, processes, state.step)
    precision = choose_precision(discover.precision, processes.device)
    schedule = _schedule(discover)
    meter, warned = Meter(processes), False
    extra = extra_losses(state.step) if extra_losses else None
    batches = feed.batches(state.num_fed)
    if feed.can_prefetch:
        batches = prefetch(_pinned(batches, processes.device))
    line = ProgressLine(
        "discover", discover.steps, unit="steps", start=state.step, shown=processes.is_main
    )
    with closing(batches), stop_request() as stop:
        fill_memories(state, batches, processes)
        with line as progress:
            while state.step < discover.steps:
                set_rate(state.optimizer, schedule.rate(state.step))
                seed_step(settings.seed, step=state.step, rank=processes.rank)
                batch = next(batches).to(processes.device)
                with autocast(processes.device, precision):
                    loss, statistics = _loss(heads, batch, state, discover, seed=settings.seed)
                    if extra is not None:
                        loss = loss + next(extra)
                _learn(loss, state, processes)
                heads.normalise_prototypes()
                state.remember(batch)
                state.step += 1

                meter.add({"loss": loss, **vars(statistics)})
                figures = None
                if state.step % discover.log_every == 0:
                    figures = _figures(meter, state)
                    if journal:
                        journal.write(kind="discover", step=state.step, **figures)
                    state.max_rounds = _rounds_to_come(figures, state, discover, processes.device)
                    warned = warned or _warn_of_collapse(
                        figures, heads, discover, state.step, processes
                    )
                progress.advance(figures=_short_names(figures))
                _save_or_stop(state, discover, folder, stop, processes, meter)
    if journal:
        journal.close()
    _join_statistics(heads, processes)
    heads.eval()
    processes.wait_for_all()


def _loss(
    heads: DiscoveryHeads,
    batch: DiscoveryBatch,
    state: DiscoveryState,
    settings: DiscoverSettings,
    *,
    seed: int,
) -> tuple[Tensor, StepStatistics]:
    """The step's loss and figures; the state remembers where the next assignment starts."""
    if batch.targets is not None:
        return taught_step(heads, batch, alpha=settings.alpha)
    loss, statistics, state.starts = discovery_step(
        heads,
        batch,
        memories=(state.memories[0].features(), state.memories[1].features()),
        labelling=_labelling(settings, state),
        alpha=settings.alpha,
        starts=state.starts,
        seed=seed * 1_000_003 + state.step,
    )
    return loss, statistics


def _save_or_stop(
    state: DiscoveryState,
    settings: DiscoverSettings,
    folder: Path,
    stop: StopRequest,
    processes: Processes,
    meter: Meter,
) -> None:
    saving = Saving(
        settings.steps,
        every=settings.checkpoint_every,
        folder=folder / "checkpoints" / f"rank_{processes.rank}",
        how_to_continue="Continue with the same command and --resume.",
    )
    save_or_stop(
        state.step,
        saving,
        state=state.to_dict,
        stop=stop,
        processes=processes,
        check=lambda: _require_finite(meter.find_bad_step(), state.step),
    )


def _figures(meter: Meter, state: DiscoveryState) -> dict[str, float]:
    """What is written of the steps since the last time."""
    read = meter.read()
    _require_finite(read.bad_step, state.step)
    rate = state.optimizer.param_groups[0]["lr"]
    return {**read.means, "rate": rate, "steps/s": read.steps_per_second}


def _rounds_to_come(
    figures: dict[str, float],
    state: DiscoveryState,
    settings: DiscoverSettings,
    device: torch.device,
) -> int:
    """How many rounds each constrained clustering may take until the next figures.

    A GPU takes all of them, for nobody waits to hear whether fewer were enough: twice as many as
    the last ones needed, or, where the shares were missed, as it took.
    """
    if device.type == "cpu":
        return settings.max_rounds
    was_enough = figures["share_error"] <= SHARE_TOLERANCE
    wanted = 10 + 2 * math.ceil(figures["num_rounds"]) if was_enough else 2 * state.max_rounds
    return min(wanted, settings.max_rounds)


def _schedule(settings: DiscoverSettings) -> Schedule:
    return Schedule(
        settings.steps,
        peak=settings.rate,
        start=settings.rate_at_start,
        end=settings.rate_at_end,
        warmup_steps=settings.warmup_steps,
        shape="cosine",
    )


def _labelling(settings: DiscoverSettings, state: DiscoveryState) -> Labelling:
    return Labelling(
        kind=settings.pseudo_labels,
        sharpness=settings.sharpness,
        max_rounds=state.max_rounds,
        prior=settings.prior,
        prior_sigma=settings.prior_sigma,
        order=settings.order,
        distilled_sharpness=sharpness_at(state.step, num_steps=settings.steps),
        swap=settings.swap,
    )


def _open_journal(
    folder: Path, settings: DiscoverSettings, processes: Processes, step: int
) -> Journal | None:
    if not processes.is_main:
        return None
    board = folder / "tensorboard" if settings.tensorboard else None
    return Journal(folder / "journal.jsonl", resume_step=step, tensorboard_dir=board)


def _pinned(batches: Iterator[DiscoveryBatch], device: torch.device) -> Iterator[DiscoveryBatch]:
    """The batches in memory from which a GPU can fetch them while it computes."""
    return (batch.pinned() for batch in batches) if device.type == "cuda" else batches


def _learn(loss: Tensor, state: DiscoveryState, processes: Processes) -> None:
    state.scaler.scale(loss).backward()
    processes.average_gradients(state.trained.parameters())
    state.scaler.step(state.optimizer)
    state.scaler.update()
    state.optimizer.zero_grad(set_to_none=True)


def _require_finite(bad: BadStep | None, step: int) -> None:
    if bad is not None:
        raise Diverged(
            f"Step {step - bad.steps_ago}: the loss is not finite ({', '.join(bad.names)}). Try a "
            "lower discover.rate, the cosine classifier, or frozen=all_but_heads."
        )


@torch.no_grad()
def _join_statistics(heads: DiscoveryHeads, processes: Processes) -> None:
    """Give all processes the same running statistics, those of all their rows together."""
    for norm in (layer for layer in heads.modules() if isinstance(layer, RowNorm)):
        assert norm.running_mean is not None
        assert norm.running_var is not None
        squares = processes.mean(norm.running_var + norm.running_mean.square())
        norm.running_mean.copy_(processes.mean(norm.running_mean))
        if processes.count > 1:
            norm.running_var.copy_(squares - norm.running_mean.square())


def _warn_of_collapse(
    means: dict[str, float],
    heads: DiscoveryHeads,
    settings: DiscoverSettings,
    step: int,
    processes: Processes,
) -> bool:
    """Say so, once, when hardly any cluster is in use after the warm-up."""
    num_clusters = sum(heads.num_clusters) / len(heads.num_clusters)
    in_use = means["clusters_in_use"]
    if step <= settings.warmup_steps or not has_collapsed(in_use, num_clusters):
        return False
    if processes.is_main:
        warn(
            f"only {in_use:.0f} of {num_clusters:.0f} clusters are in use "
            f"at step {step}: they have collapsed. Try a lower discover.rate, a higher "
            "discover.sharpness, a larger discover.memory_batches or prior=uniform."
        )
    return True


def _short_names(figures: dict[str, float] | None) -> dict[str, float | str] | None:
    """The figures as they fit beside a progress bar."""
    if figures is None:
        return None
    return {
        "loss": figures["loss"],
        "swapped": figures["swapped_loss"],
        "supervised": figures["supervised_loss"],
        "share error": figures["share_error"],
        "clusters": f"{figures['clusters_in_use']:.0f}",
        "entropy": figures["label_entropy"],
        "rate": figures["rate"],
        "steps/s": figures["steps/s"],
    }
