"""The discovery phase: one plain loop over batches of features."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rncdl.config import DiscoverSettings
from rncdl.discovery.divergence import has_collapsed
from rncdl.discovery.feeding import DiscoveryBatch
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.discovery.memory import FeatureMemory
from rncdl.discovery.step import Labelling, Scratch, Starts, discovery_step
from rncdl.errors import UserError
from rncdl.training.checkpoints import list_checkpoints, load_checkpoint, save_checkpoint
from rncdl.training.interruption import Interrupted, stop_request
from rncdl.training.journal import Journal
from rncdl.training.meter import Meter
from rncdl.training.optimizer import make_sgd
from rncdl.training.processes import Processes, autocast, choose_precision, seed_step
from rncdl.training.progress import ProgressLine, warn
from rncdl.training.schedule import rate_at, set_rate


class Feed(Protocol):
    """Where batches come from: the bank, or the detector on fresh views."""

    def batches(self, start: int = 0) -> Iterator[DiscoveryBatch]:
        """The batches from number `start` on, endlessly."""
        ...


class Diverged(UserError):
    """The loss stopped being a finite number."""


@dataclass
class _State:
    """All that a resumed run needs besides its settings."""

    trained: nn.Module
    optimizer: torch.optim.Optimizer
    memories: tuple[FeatureMemory, FeatureMemory]
    starts: Starts | None = None
    num_fed: int = 0
    step: int = 0

    def remember(self, batch: DiscoveryBatch) -> None:
        """Push each view's features into its memory."""
        for memory, features in zip(self.memories, batch.views, strict=True):
            memory.push(features)
        self.num_fed += 1

    def to_dict(self) -> dict[str, Any]:
        return {
            "trained": self.trained.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "memories": [memory.state_dict() for memory in self.memories],
            "starts": self.starts,
            "num_fed": self.num_fed,
            "step": self.step,
        }

    def load(self, saved: dict[str, Any]) -> None:
        self.trained.load_state_dict(saved["trained"])
        self.optimizer.load_state_dict(saved["optimizer"])
        for memory, state in zip(self.memories, saved["memories"], strict=True):
            memory.load_state_dict(state)
        self.starts, self.num_fed, self.step = saved["starts"], saved["num_fed"], saved["step"]


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
    device = processes.device
    heads.to(device).train()
    state = _State(
        trained=nn.ModuleList([heads, *also_trained]),
        optimizer=make_sgd(
            nn.ModuleList([heads, *also_trained]),
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
        ),
        memories=_empty_memories(heads, settings, processes),
    )
    checkpoints = folder / "checkpoints" / f"rank_{processes.rank}"
    _restore(state, checkpoints, processes)
    journal = _open_journal(folder, settings, processes, state.step)
    precision = choose_precision(settings.precision, device)
    labelling = _labelling(settings)
    batches = feed.batches(state.num_fed)
    _fill_memories(state, batches, processes)
    meter = Meter(processes)
    scratch = Scratch()
    warned = False

    with (
        stop_request() as stop,
        ProgressLine(
            "discover", settings.steps, unit="steps", start=state.step, shown=processes.is_main
        ) as progress,
    ):
        while state.step < settings.steps:
            set_rate(state.optimizer, _rate_of(state.step, settings))
            seed_step(seed, step=state.step, rank=processes.rank)
            batch = _to_device(next(batches), device)
            with autocast(device, precision):
                loss, statistics, state.starts = discovery_step(
                    heads,
                    batch.views,
                    memories=(state.memories[0].features(), state.memories[1].features()),
                    labelled=batch.labelled,
                    labels=batch.labels,
                    labelling=labelling,
                    alpha=settings.alpha,
                    swap=settings.swap,
                    starts=state.starts,
                    seed=seed * 1_000_003 + state.step,
                    scratch=scratch,
                )
                if extra_loss is not None:
                    loss = loss + extra_loss(state.step)
            _learn(loss, state, processes)
            heads.normalise_prototypes()
            state.remember(batch)
            state.step += 1

            meter.add({"loss": loss, **_tensors(asdict(statistics), device)})
            figures = None
            if state.step % settings.log_every == 0:
                means, steps_per_second = meter.read()
                stepped_rate = state.optimizer.param_groups[0]["lr"]
                figures = {**means, "rate": stepped_rate, "steps/s": steps_per_second}
                if journal:
                    journal.write(kind="discover", step=state.step, **figures)
                warned = warned or _warn_of_collapse(means, heads, settings, state.step, processes)
            progress.advance(figures=_short_names(figures))
            if processes.any_true(bool(stop)):
                save_checkpoint(
                    checkpoints, state.step, state.to_dict(), keep=settings.keep_checkpoints
                )
                raise Interrupted(
                    f"Stopped after step {state.step} of {settings.steps}; everything is saved. "
                    "Continue with the same command and --resume.",
                    stop.exit_code,
                )
            if state.step % settings.checkpoint_every == 0 or state.step == settings.steps:
                save_checkpoint(
                    checkpoints, state.step, state.to_dict(), keep=settings.keep_checkpoints
                )
    if journal:
        journal.close()
    heads.eval()
    processes.wait_for_all()


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


def _empty_memories(
    heads: DiscoveryHeads, settings: DiscoverSettings, processes: Processes
) -> tuple[FeatureMemory, FeatureMemory]:
    images = processes.share_of(settings.batch_images, what="discover.batch_images")
    capacity = settings.memory_batches * images * settings.regions_per_image
    num_features = heads.known.linear.in_features
    return (
        FeatureMemory(capacity, num_features, device=processes.device),
        FeatureMemory(capacity, num_features, device=processes.device),
    )


def _restore(state: _State, checkpoints: Path, processes: Processes) -> None:
    """Load the newest checkpoint that every process has."""
    saved = {path.name: path for path in list_checkpoints(checkpoints)}
    common = set.intersection(*(set(names) for names in processes.gather(list(saved))))
    if common:
        state.load(load_checkpoint(saved[max(common)]))


def _fill_memories(state: _State, batches: Iterator[DiscoveryBatch], processes: Processes) -> None:
    """Push batches until the memory is full: training never sees an unfilled row."""
    memory = state.memories[0]
    if memory.is_full:
        return
    with (
        torch.no_grad(),
        ProgressLine(
            "fill memory", memory.capacity, unit="regions", shown=processes.is_main
        ) as progress,
    ):
        while not memory.is_full:
            state.remember(next(batches))
            progress.advance_to(len(memory))


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


def _learn(loss: Tensor, state: _State, processes: Processes) -> None:
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
