"""UNO: several clustering heads, taught by balanced pseudo-labels of the other view.

Fini et al., A Unified Objective for Novel Class Discovery, 2021; extended as in the RNCDL paper:
a pseudo-label may be a known class, because unlabelled regions may show one.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from rncdl.baselines.fitting import fit
from rncdl.detector.inference import Classify
from rncdl.discovery._accelerated_sinkhorn import accelerated_sinkhorn
from rncdl.discovery.feeding import DiscoveryBatch
from rncdl.discovery.heads import NovelHead
from rncdl.discovery.loss import supervised_loss, swapped_loss

EPSILON = 0.05
"""UNO's entropy weight in Sinkhorn's problem on cosines; its inverse is the exponent."""
_TOLERANCE = 0.01
_MAX_ROUNDS = 100
_MEMORY = 0.98
"""Of the running mean of each head's loss, by which the head is chosen: about 50 steps."""


class UnoHeads(nn.Module):
    """One set of known prototypes, and heads of N and of more clusters beside them."""

    def __init__(
        self,
        width: int,
        *,
        num_known: int,
        num_clusters: int,
        num_heads: int,
        overclustering: int,
        hidden_width: int,
        projection_width: int,
        temperature: float,
    ) -> None:
        super().__init__()
        self.temperature = temperature
        self.num_heads = num_heads
        self.known = NovelHead(width, num_known, projection=False, temperature=temperature)
        sizes = [num_clusters] * num_heads + [overclustering * num_clusters] * num_heads
        novel = [
            NovelHead(
                width,
                size,
                hidden_width=hidden_width,
                projection_width=projection_width,
                temperature=temperature,
            )
            for size in sizes
        ]
        self.novel = cast(Sequence[NovelHead], nn.ModuleList(novel))

    def forward(self, features: Tensor) -> list[Tensor]:
        """For each head, logits (R, K + its clusters); the over-clustering ones come last."""
        features = functional.normalize(features)
        known = self.known(features)
        return [torch.cat([known, head(features)], 1) for head in self.novel]

    def probabilities(self, features: Tensor, head: int) -> Tensor:
        """(R, K + N) by one of the clustering heads."""
        features = functional.normalize(features.float())
        return torch.cat([self.known(features), self.novel[head](features)], 1).softmax(1)


@torch.no_grad()
def pseudo_labels(logits: Tensor, *, sharpness: float) -> Tensor:
    """(R, C) soft labels of logits (R, C) that give every class the same share of the regions."""
    shares = logits.new_full((logits.shape[1],), 1 / logits.shape[1])
    return accelerated_sinkhorn(
        logits.detach(),
        shares,
        sharpness=sharpness,
        tolerance=_TOLERANCE,
        max_rounds=_MAX_ROUNDS,
    ).assignment


def unified_loss(
    labelled: Tensor, logits1: Tensor, logits2: Tensor, *, labels: Tensor, sharpness: float
) -> Tensor:
    """Mean cross-entropy over labelled and unlabelled regions, of one head.

    Logits `labelled` (L, C) are taught by the labels (L,); `logits1`, `logits2` (R, C), the same
    unlabelled regions in two views, each by the other's pseudo-labels.
    """
    swapped = swapped_loss(
        logits1,
        logits2,
        labels1=pseudo_labels(logits1, sharpness=sharpness),
        labels2=pseudo_labels(logits2, sharpness=sharpness),
    )
    supervised = supervised_loss(labelled, labels)
    share = len(labels) / max(1, len(labels) + len(logits1))
    return share * supervised + (1 - share) * swapped


def train_uno(
    encoder: nn.Module,
    heads: UnoHeads,
    batches: Iterator[DiscoveryBatch],
    *,
    steps: int,
    rate: float,
) -> Classify:
    """Train encoder and heads; the classifier of the encoder's features by the best head."""
    device = next(heads.parameters()).device
    running = torch.zeros(heads.num_heads, device=device)

    def loss_of(batch: DiscoveryBatch) -> Tensor:
        parts = (batch.labelled, *batch.views)
        features = encoder(torch.cat(parts))
        losses = torch.stack(
            [
                unified_loss(
                    *logits.split([len(part) for part in parts]),
                    labels=batch.labels,
                    sharpness=heads.temperature / EPSILON,
                )
                for logits in heads(features)
            ]
        )
        running.lerp_(losses.detach()[: heads.num_heads], 1 - _MEMORY)
        return losses.mean()

    fit(nn.ModuleList([encoder, heads]), loss_of, batches, steps=steps, rate=rate, title="uno")
    best = int(running.argmin())
    return partial(heads.probabilities, head=best)
