"""UNO: several clustering heads, taught by balanced pseudo-labels of the other view.

Fini et al., A Unified Objective for Novel Class Discovery, 2021; extended as in the RNCDL paper:
a pseudo-label may be a known class, because unlabelled regions may show one.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from rncdl.discovery._accelerated_sinkhorn import accelerated_sinkhorn
from rncdl.discovery.feeding import DiscoveryBatch
from rncdl.discovery.heads import NovelHead
from rncdl.discovery.loss import supervised_loss, swapped_loss
from rncdl.experiments.baselines.fitting import Fitting, encode_jointly, fit
from rncdl.training.processes import autocast

EPSILON = 0.05
"""UNO's entropy weight in Sinkhorn's problem on cosines; its inverse is the exponent."""
_TOLERANCE = 0.01
_MAX_ROUNDS = 100
_MEMORY = 0.98
"""Of the running mean of each head's loss, by which the head is chosen: about 50 steps."""


class UnoHeads(nn.Module):
    """One set of known prototypes, and heads of N and of more clusters beside them."""

    running_losses: Tensor
    """of each head of N clusters; it is by them that one is chosen"""

    def __init__(
        self,
        known: NovelHead,
        clustering: Sequence[NovelHead],
        overclustering: Sequence[NovelHead],
    ) -> None:
        super().__init__()
        self.known = known
        self.novel = cast(Sequence[NovelHead], nn.ModuleList([*clustering, *overclustering]))
        self.register_buffer("running_losses", torch.zeros(len(clustering)))

    def forward(self, features: Tensor) -> list[Tensor]:
        """For each head, logits (R, K + its clusters); the over-clustering ones come last."""
        features = functional.normalize(features)
        known = self.known(features)
        return [torch.cat([known, head(features)], 1) for head in self.novel]

    def note_losses(self, losses: Tensor) -> None:
        """Let a step's losses (H,), one per head, count in the running ones."""
        of_clustering = losses.detach()[: len(self.running_losses)]
        self.running_losses.lerp_(of_clustering, 1 - _MEMORY)

    def best(self) -> "UnoClassifier":
        """The classifier by the clustering head that has had the least loss."""
        return UnoClassifier(self.known, self.novel[int(self.running_losses.argmin())])


class UnoClassifier(nn.Module):
    """Probabilities of known classes and clusters, by one clustering head."""

    def __init__(self, known: NovelHead, novel: NovelHead) -> None:
        super().__init__()
        self.known = known
        self.novel = novel

    def forward(self, features: Tensor) -> Tensor:
        """(R, K + N) probabilities of the encoder's features (R, D)."""
        with autocast(features.device, torch.float32):
            features = functional.normalize(features.float())
            return torch.cat([self.known(features), self.novel(features)], 1).softmax(1)


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
    feed: Callable[[int], Iterator[DiscoveryBatch | None]],
    fitting: Fitting,
) -> UnoClassifier:
    """Train encoder and heads; the classifier of the encoder's features by the best head."""

    def loss_of(batch: DiscoveryBatch) -> Tensor:
        parts = encode_jointly(encoder, batch.labelled, *batch.views, precision=fitting.precision)
        losses = torch.stack(
            [
                unified_loss(
                    *logits.split([len(part) for part in parts]),
                    labels=batch.labels,
                    sharpness=heads.known.temperature / EPSILON,
                )
                for logits in heads(torch.cat(parts))
            ]
        )
        heads.note_losses(losses)
        return losses.mean()

    fit(nn.ModuleList([encoder, heads]), loss_of, feed, fitting)
    return heads.best()
