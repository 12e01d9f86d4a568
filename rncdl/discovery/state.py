"""What a discovery run carries from step to step, and from checkpoint to checkpoint."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rncdl.config import DiscoverSettings
from rncdl.discovery.feeding import DiscoveryBatch
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.discovery.memory import FeatureMemory
from rncdl.discovery.step import Starts
from rncdl.errors import UserError
from rncdl.training.checkpoints import list_checkpoints, load_checkpoint
from rncdl.training.optimizer import make_sgd
from rncdl.training.processes import Processes, choose_precision
from rncdl.training.progress import ProgressLine

WEIGHT_DECAY = 1e-4
_MOST_EMPTY = 100
"""Batches without a region, one after the other, after which no more are waited for."""
_FIRST_ROUNDS = 100
"""Of each constrained clustering on a GPU, until the first figures tell how many it takes."""


@dataclass
class DiscoveryState:
    """All that a resumed run needs besides its settings."""

    trained: nn.Module
    optimizer: torch.optim.Optimizer
    memories: tuple[FeatureMemory, FeatureMemory]
    scaler: torch.amp.GradScaler
    max_rounds: int
    """of each constrained clustering, as far as it is known how many it takes"""
    starts: Starts | None = None
    num_fed: int = 0
    step: int = 0

    def remember(self, batch: DiscoveryBatch) -> None:
        """Push each view's features into its memory."""
        for memory, features in zip(self.memories, batch.views, strict=True):
            memory.push(features)
        self.num_fed += 1

    def to_dict(self) -> dict[str, Any]:
        """What `load` takes."""
        return {
            "trained": self.trained.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "memories": [memory.state_dict() for memory in self.memories],
            "starts": self.starts,
            "scaler": self.scaler.state_dict(),
            "max_rounds": self.max_rounds,
            "num_fed": self.num_fed,
            "step": self.step,
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Continue where `to_dict` was taken."""
        self.trained.load_state_dict(saved["trained"])
        self.optimizer.load_state_dict(saved["optimizer"])
        for memory, state in zip(self.memories, saved["memories"], strict=True):
            memory.load_state_dict(state)
        device = self.memories[0].device
        self.starts = saved["starts"] and [
            [None if start is None else start.to(device) for start in view]
            for view in saved["starts"]
        ]
        self.scaler.load_state_dict(saved.get("scaler", {}))
        self.max_rounds = saved.get("max_rounds", self.max_rounds)
        self.num_fed, self.step = saved["num_fed"], saved["step"]


def first_state(
    heads: DiscoveryHeads,
    also_trained: Sequence[nn.Module],
    settings: DiscoverSettings,
    processes: Processes,
) -> DiscoveryState:
    """The heads on their device, ready to be trained, their optimiser and empty memories."""
    heads.to(processes.device).train()
    trained = nn.ModuleList([heads, *also_trained])
    device = processes.device
    # The heads compute in float32: only gradients of the detector can underflow.
    in_half = choose_precision(settings.precision, device) == torch.float16
    return DiscoveryState(
        trained=trained,
        optimizer=make_sgd(trained, weight_decay=WEIGHT_DECAY),
        memories=_empty_memories(heads, settings, processes),
        scaler=torch.amp.GradScaler(device.type, enabled=in_half and len(also_trained) > 0),
        max_rounds=settings.max_rounds
        if device.type == "cpu"
        else min(_FIRST_ROUNDS, settings.max_rounds),
    )


def restore(state: DiscoveryState, checkpoints: Path, processes: Processes) -> None:
    """Load the newest checkpoint that every process has, each its own from `rank_N`.

    Memories belong to processes: another number of them cannot go on.
    """
    folders = [path for path in checkpoints.glob("rank_*") if list_checkpoints(path)]
    if folders and len(folders) != processes.count:
        raise UserError(
            f"{checkpoints}: this discovery was begun by {len(folders)} processes, each of which "
            f"has a memory of its own, and cannot be continued by {processes.count}; give "
            f"--processes {len(folders)}, or begin another one with --discovery."
        )
    saved = {path.name: path for path in list_checkpoints(checkpoints / f"rank_{processes.rank}")}
    common = set.intersection(*(set(names) for names in processes.gather(list(saved))))
    if common:
        state.load(load_checkpoint(saved[max(common)]))


def fill_memories(
    state: DiscoveryState, batches: Iterator[DiscoveryBatch], processes: Processes
) -> None:
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
        num_empty = 0
        while not memory.is_full:
            batch = next(batches)
            num_empty = 0 if len(batch.views[0]) else num_empty + 1
            if num_empty == _MOST_EMPTY:
                raise UserError(
                    f"The detector finds no region in {_MOST_EMPTY} batches in a row, so there is "
                    "nothing to discover: has it been trained, and did its loss stay finite?"
                )
            state.remember(batch)
            progress.advance_to(len(memory))


def _empty_memories(
    heads: DiscoveryHeads, settings: DiscoverSettings, processes: Processes
) -> tuple[FeatureMemory, FeatureMemory]:
    images = processes.share_of(settings.batch_images, what="discover.batch_images")
    # A teacher's labels are made once, for all regions: nothing needs to be remembered.
    num_batches = 0 if settings.is_taught else settings.memory_batches
    capacity = num_batches * images * settings.regions_per_image
    num_features = heads.known.linear.in_features
    return (
        FeatureMemory(capacity, num_features, device=processes.device),
        FeatureMemory(capacity, num_features, device=processes.device),
    )
