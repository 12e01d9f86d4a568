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
from rncdl.discovery.step import Carried, Moments, Remembered, Starts
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
    logit_memories: list[list[FeatureMemory]]
    """per view, per head: the logits of the memories' rows, where they are kept"""
    starts: Starts | None = None
    moments: Moments | None = None
    """what BatchNorm normalised by when the memories' logits were last computed"""
    num_fed: int = 0
    step: int = 0

    def remember(self, batch: DiscoveryBatch, carried: Carried | None = None) -> None:
        """Push each view's features into its memory, and its logits into theirs.

        So that both turn in step, zeros take the place of logits that nobody has computed.
        """
        for view, (memory, features) in enumerate(zip(self.memories, batch.views, strict=True)):
            memory.push(features)
            for head, logit_memory in enumerate(self.logit_memories[view]):
                logits = features.new_zeros(len(features), logit_memory.width)
                logit_memory.push(logits if carried is None else carried.logits[view][head])
        self.num_fed += 1

    def remembered(self, *, renew: bool) -> Remembered | None:
        """What the step may take of the memories' logits, or must store."""
        views = [[memory.features() for memory in view] for view in self.logit_memories]
        return Remembered(views, None if renew else self.moments) if any(views) else None

    def to_dict(self) -> dict[str, Any]:
        """What `load` takes."""
        return {
            "trained": self.trained.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "memories": [memory.state_dict() for memory in self.memories],
            "logit_memories": [
                [memory.state_dict() for memory in view] for view in self.logit_memories
            ],
            "starts": self.starts,
            "moments": self.moments,
            "num_fed": self.num_fed,
            "step": self.step,
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Continue where `to_dict` was taken."""
        self.trained.load_state_dict(saved["trained"])
        self.optimizer.load_state_dict(saved["optimizer"])
        for memory, state in zip(self.memories, saved["memories"], strict=True):
            memory.load_state_dict(state)
        # Checkpoints from before logits and moments were kept have none.
        kept = saved.get("logit_memories", [[], []])
        for view, states in zip(self.logit_memories, kept, strict=True):
            for memory, state in zip(view, states, strict=True):
                memory.load_state_dict(state)
        self.starts, self.moments = saved["starts"], saved.get("moments")
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
    memories = _empty_memories(heads, settings, processes)
    return DiscoveryState(
        trained=trained,
        optimizer=make_sgd(trained, momentum=settings.momentum, weight_decay=settings.weight_decay),
        memories=memories,
        logit_memories=[_empty_logit_memories(heads, memory, settings) for memory in memories],
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


def _empty_logit_memories(
    heads: DiscoveryHeads, memory: FeatureMemory, settings: DiscoverSettings
) -> list[FeatureMemory]:
    """One per head beside `memory`; none where every step renews the logits."""
    if settings.renew_memory == 1:
        return []
    return [
        FeatureMemory(memory.capacity, heads.num_known + num_clusters, device=memory.device)
        for num_clusters in heads.num_clusters
    ]
