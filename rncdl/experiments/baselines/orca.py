"""ORCA: a margin on the known classes that shrinks as the network grows certain of the rest.

Cao, Brbić, Leskovec, Open-World Semi-Supervised Learning, 2022.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from rncdl.discovery.feeding import DiscoveryBatch
from rncdl.discovery.heads import NovelHead
from rncdl.discovery.loss import supervised_loss
from rncdl.experiments.baselines.fitting import Fitting, encode_jointly, fit
from rncdl.training.processes import autocast

SCALE = 10.0
"""s: logits are cosines times this."""
MAX_UNCERTAINTY = 0.5
"""The margin is never larger, as in the authors' code."""
_MEMORY = 0.9
"""Of the running mean of the uncertainty, which the authors measure once an epoch."""
_SMALLEST = 1e-8


class OrcaHead(nn.Module):
    """A cosine head of all classes, and how uncertain it has been of unlabelled regions."""

    uncertainty: Tensor
    """(), a running mean"""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.head = NovelHead(width, num_classes, projection=False, temperature=1 / SCALE)
        self.register_buffer("uncertainty", torch.ones(()))

    def forward(self, features: Tensor) -> Tensor:
        """(R, C) probabilities of the encoder's features (R, D)."""
        with autocast(features.device, torch.float32):
            return self.logits(features.float()).softmax(1)

    def logits(self, features: Tensor) -> Tensor:
        """(R, C): cosines times SCALE."""
        return self.head(features)

    def note_uncertainty(self, probabilities: Tensor) -> None:
        """Let a step's unlabelled regions, by their probabilities (R, C), count in the mean."""
        if len(probabilities):
            now = mean_uncertainty(probabilities.detach())
            self.uncertainty.lerp_(now, 1 - _MEMORY)


def margin_loss(logits: Tensor, labels: Tensor, *, uncertainty: Tensor) -> Tensor:
    """Cross-entropy of logits (L, C) whose true class is raised by SCALE times the uncertainty.

    The less certain the network is of unlabelled regions, the less the known classes are pressed
    together: the class counts as found before its logit has grown.
    """
    margin = SCALE * uncertainty.clamp_max(MAX_UNCERTAINTY)
    is_true = labels[:, None] == torch.arange(logits.shape[1], device=labels.device)
    return supervised_loss(logits + margin * is_true, labels)


def mean_uncertainty(probabilities: Tensor) -> Tensor:
    """One minus the mean of the largest probability in each row of (R, C)."""
    return 1 - probabilities.amax(1).mean()


def choose_partners(
    features: Tensor, labels: Tensor, *, generator: Generator | None = None
) -> Tensor:
    """(R,) for each region another one that should be of its class.

    The first rows of `features` (R, D) have labels (L,): another of the same label, drawn, or
    itself where there is none. The others: the nearest by cosine among all but itself. The
    `generator` is one of the CPU, torch's own unless given.
    """
    drawn = labels
    if len(labels):
        chances = torch.rand(len(labels), len(labels), generator=generator)
        chances = chances.to(labels.device, non_blocking=True)
        chances = torch.where(labels[:, None] == labels, chances, -1.0)
        drawn = chances.fill_diagonal_(-0.5).argmax(1)
    directions = functional.normalize(features.detach())
    cosines = directions[len(labels) :] @ directions.T
    cosines.diagonal(len(labels)).fill_(-torch.inf)
    return torch.cat([drawn, cosines.argmax(1)])


def pairwise_loss(probabilities: Tensor, partners: Tensor) -> Tensor:
    """Mean of -log of the inner products of regions' and partners' probabilities, (R, C) each."""
    return -(probabilities * partners).sum(1).clamp_min(_SMALLEST).log().mean()


def evenness_loss(probabilities: Tensor) -> Tensor:
    """KL divergence of the mean of probabilities (R, C) from the uniform distribution."""
    mean = probabilities.mean(0).clamp_min(_SMALLEST)
    return (mean * mean.log()).sum() + math.log(probabilities.shape[1])


def train_orca(
    encoder: nn.Module,
    head: OrcaHead,
    feed: Callable[[int], Iterator[DiscoveryBatch | None]],
    fitting: Fitting,
) -> OrcaHead:
    """Train encoder and head; the head as the classifier of the encoder's features."""

    def loss_of(batch: DiscoveryBatch) -> Tensor:
        labelled, view1, view2 = encode_jointly(
            encoder, batch.labelled, *batch.views, precision=fitting.precision
        )
        first, second = torch.cat([labelled, view1]), torch.cat([labelled, view2])
        logits = head.logits(first)
        probabilities = logits.softmax(1)
        num_labelled = len(batch.labels)
        head.note_uncertainty(probabilities[num_labelled:])
        supervised = margin_loss(logits[:num_labelled], batch.labels, uncertainty=head.uncertainty)
        # Drawn by torch's own generator, which each step seeds: nothing has to be saved.
        partners = choose_partners(first, batch.labels)
        pairs = pairwise_loss(probabilities, head(second)[partners])
        return supervised + pairs + evenness_loss(probabilities)

    fit(nn.ModuleList([encoder, head]), loss_of, feed, fitting)
    return head
