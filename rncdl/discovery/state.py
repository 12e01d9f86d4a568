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
from rncdl.training.checkpoints import list_checkpoints, load_checkpoint
from rncdl.training.optimizer import make_sgd
from rncdl.training.processes import Processes
from rncdl.training.progress import ProgressLine


@dataclass
class DiscoveryState:
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
        """What `load` takes."""
        return {
            "trained": self.trained.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "memories": [memory.state_dict() for memory in self.memories],
            "starts": self.starts,
            "num_fed": self.num_fed,
            "step": self.step,
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Continue where `to_dict` was taken."""
        self.trained.load_state_dict(saved["trained"])
        self.optimizer.load_state_dict(saved["optimizer"])
        for memory, state in zip(self.memories, saved["memories"], strict=True):
            memory.load_state_dict(state)
        self.starts, self.num_fed, self.step = saved["starts"], saved["num_fed"], saved["step"]


def first_state(
    heads: DiscoveryHeads,
    also_trained: Sequence[nn.Module],
    settings: DiscoverSettings,
    processes: Processes,
) -> DiscoveryState:
    """The heads on their device, ready to be trained, their optimiser and empty memories."""
    heads.to(processes.device).train()
    trained = nn.ModuleList([heads, *also_trained])
    return DiscoveryState(
        trained=trained,
        optimizer=make_sgd(trained, momentum=settings.momentum, weight_decay=settings.weight_decay),
        memories=_empty_memories(heads, settings, processes),
    )


def restore(state: DiscoveryState, checkpoints: Path, processes: Processes) -> None:
    """Load the newest checkpoint that every process has."""
    saved = {path.name: path for path in list_checkpoints(checkpoints)}
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
        while not memory.is_full:
            state.remember(next(batches))
            progress.advance_to(len(memory))


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
