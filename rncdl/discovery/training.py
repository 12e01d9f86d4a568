"""The discovery phase: one plain loop over batches of features."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from rncdl.config import DiscoverSettings
from rncdl.discovery.divergence import has_collapsed
from rncdl.discovery.feeding import DiscoveryBatch
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.discovery.scratch import Scratch
from rncdl.discovery.state import DiscoveryState, fill_memories, first_state, restore
from rncdl.discovery.step import Carried, Labelling, StepStatistics, discovery_step
from rncdl.errors import UserError
from rncdl.training.interruption import StopRequest, stop_request
from rncdl.training.journal import Journal
from rncdl.training.meter import Meter
from rncdl.training.processes import Processes, autocast, choose_precision, seed_step
from rncdl.training.progress import ProgressLine, warn
from rncdl.training.saving import save_or_stop
from rncdl.training.schedule import rate_at, set_rate


class Feed(Protocol):
    """Where batches come from: the bank, or the detector on fresh views."""

    def batches(self, start: int = 0) -> Iterator[DiscoveryBatch]:
        """The batches from number `start` on, endlessly."""
        ...


class Diverged(UserError):
    """The loss stopped being a finite number."""


def train_heads(
    heads: DiscoveryHeads,
    feed: Feed,
    *,
    settings: DiscoverSettings,
    seed: int,
    folder: Path,
    processes: Processes,
    also_trained: Sequence[nn.Module] = (),
    extra_loss: Callable[[int], Tensor] | None = None,
) -> None:
    """Train `heads` in place, from the folder's newest checkpoint where it has one.

    Memory and pseudo-labels are each process's own; gradients are averaged over the processes.
    `also_trained`: parts of the detector that an ablation leaves free; `extra_loss`: a term to
    be added to each step's loss. Raises `Interrupted`, with a checkpoint saved, when asked to
    stop, and `Diverged` when the loss is not finite.
    """
    state = first_state(heads, also_trained, settings, processes)
    checkpoints = folder / "checkpoints" / f"rank_{processes.rank}"
    restore(state, checkpoints, processes)
    journal = _open_journal(folder, settings, processes, state.step)
    precision = choose_precision(settings.precision, processes.device)
    batches = feed.batches(state.num_fed)
    fill_memories(state, batches, processes)
    meter, scratch, warned = Meter(processes), Scratch(), False
    with (
        stop_request() as stop,
        ProgressLine(
            "discover", settings.steps, unit="steps", start=state.step, shown=processes.is_main
        ) as progress,
    ):
        while state.step < settings.steps:
            set_rate(state.optimizer, _rate_of(state.step, settings))
            seed_step(seed, step=state.step, rank=processes.rank)
            batch = _to_device(next(batches), processes.device)
            with autocast(processes.device, precision):
                loss, statistics, carried = _loss(
                    heads, batch, state, settings, seed=seed, scratch=scratch
                )
                if extra_loss is not None:
                    loss = loss + extra_loss(state.step)
            _learn(loss, state, processes)
            heads.normalise_prototypes()
            state.remember(batch, carried)
            state.step += 1

            meter.add({"loss": loss, **_tensors(asdict(statistics), processes.device)})
            figures = None
            if state.step % settings.log_every == 0:
                figures = _figures(meter, state.optimizer)
                if journal:
                    journal.write(kind="discover", step=state.step, **figures)
                warned = warned or _warn_of_collapse(
                    figures, heads, settings, state.step, processes
                )
            progress.advance(figures=_short_names(figures))
            _save_or_stop(state, settings, checkpoints, stop, processes)
    if journal:
        journal.close()
    heads.eval()
    processes.wait_for_all()


def _loss(
    heads: DiscoveryHeads,
    batch: DiscoveryBatch,
    state: DiscoveryState,
    settings: DiscoverSettings,
    *,
    seed: int,
    scratch: Scratch,
) -> tuple[Tensor, StepStatistics, Carried]:
    """The step's loss and figures; the state remembers where the next assignment starts."""
    # k-means looks at embeddings, not at logits: it needs all rows in every step.
    renew = state.step % settings.renew_memory == 0 or settings.pseudo_labels == "kmeans"
    loss, statistics, carried = discovery_step(
        heads,
        batch.views,
        memories=(state.memories[0].features(), state.memories[1].features()),
        labelled=batch.labelled,
        labels=batch.labels,
        labelling=_labelling(settings),
        alpha=settings.alpha,
        swap=settings.swap,
        starts=state.starts,
        remembered=state.remembered(renew=renew),
        seed=seed * 1_000_003 + state.step,
        scratch=scratch,
    )
    state.starts, state.moments = carried.starts, carried.moments
    return loss, statistics, carried


def _save_or_stop(
    state: DiscoveryState,
    settings: DiscoverSettings,
    checkpoints: Path,
    stop: StopRequest,
    processes: Processes,
) -> None:
    save_or_stop(
        state.step,
        settings.steps,
        folder=checkpoints,
        state=state.to_dict,
        every=settings.checkpoint_every,
        keep=settings.keep_checkpoints,
        stop=stop,
        processes=processes,
        how_to_continue="Continue with the same command and --resume.",
    )


def _figures(meter: Meter, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """What is written of the steps since the last time."""
    means, steps_per_second = meter.read()
    return {**means, "rate": optimizer.param_groups[0]["lr"], "steps/s": steps_per_second}


def _rate_of(step: int, settings: DiscoverSettings) -> float:
    return rate_at(
        step,
        settings.steps,
        peak=settings.rate,
        start=settings.rate_at_start,
        end=settings.rate_at_end,
        warmup_steps=settings.warmup_steps,
        shape="cosine",
    )


def _labelling(settings: DiscoverSettings) -> Labelling:
    return Labelling(
        kind=settings.pseudo_labels,
        sharpness=settings.sharpness,
        share_tolerance=settings.share_tolerance,
        max_rounds=settings.max_rounds,
        prior=settings.prior,
        prior_mean=settings.prior_mean,
        prior_sigma=settings.prior_sigma,
        order=settings.order,
    )


def _open_journal(
    folder: Path, settings: DiscoverSettings, processes: Processes, step: int
) -> Journal | None:
    if not processes.is_main:
        return None
    board = folder / "tensorboard" if settings.tensorboard else None
    return Journal(folder / "journal.jsonl", resume_step=step, tensorboard_dir=board)


def _to_device(batch: DiscoveryBatch, device: torch.device) -> DiscoveryBatch:
    first, second = batch.views
    return DiscoveryBatch(
        views=(first.to(device, non_blocking=True), second.to(device, non_blocking=True)),
        labelled=batch.labelled.to(device, non_blocking=True),
        labels=batch.labels.to(device, non_blocking=True),
    )


def _learn(loss: Tensor, state: DiscoveryState, processes: Processes) -> None:
    _require_finite(loss, state.step)
    loss.backward()
    processes.average_gradients(state.trained.parameters())
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)


def _require_finite(loss: Tensor, step: int) -> None:
    if not torch.isfinite(loss):
        raise Diverged(
            f"Step {step + 1}: the loss is not finite. Try a lower discover.rate, the cosine "
            "classifier, or frozen=all_but_heads."
        )


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


def _tensors(figures: dict[str, float], device: torch.device) -> dict[str, Tensor]:
    return {name: torch.tensor(value, device=device) for name, value in figures.items()}


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
