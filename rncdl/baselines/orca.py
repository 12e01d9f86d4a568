"""ORCA: a margin on the known classes that shrinks as the network grows certain of the rest.

Cao, Brbić, Leskovec, Open-World Semi-Supervised Learning, 2022.
"""

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from rncdl.baselines.fitting import encode_jointly, fit
from rncdl.detector.inference import Classify
from rncdl.discovery.feeding import DiscoveryBatch
from rncdl.discovery.heads import NovelHead

SCALE = 10.0
"""s: logits are cosines times this."""
MAX_UNCERTAINTY = 0.5
"""The margin is never larger, as in the authors' code."""
_MEMORY = 0.9
"""Of the running mean of the uncertainty, which the authors measure once an epoch."""
_SMALLEST = 1e-8


def margin_loss(logits: Tensor, labels: Tensor, *, uncertainty: float) -> Tensor:
    """Cross-entropy of logits (L, C) whose true class is raised by SCALE times the uncertainty.

    The less certain the network is of unlabelled regions, the less the known classes are pressed
    together: the class counts as found before its logit has grown.
    """
    margin = SCALE * min(uncertainty, MAX_UNCERTAINTY)
    raised = logits + margin * functional.one_hot(labels, logits.shape[1])
    return functional.cross_entropy(raised, labels)


def mean_uncertainty(probabilities: Tensor) -> float:
    """One minus the mean of the largest probability in each row of (R, C)."""
    return 1 - probabilities.amax(1).mean().item()


def choose_partners(features: Tensor, labels: Tensor, *, generator: Generator) -> Tensor:
    """(R,) for each region another one that should be of its class.

    The first rows of `features` (R, D) have labels (L,): another of the same label, drawn, or
    itself where there is none. The others: the nearest by cosine among all but itself.
    """
    same = labels[:, None] == labels[None]
    same.fill_diagonal_(False)
    alone = ~same.any(1)
    same |= torch.diag(alone)
    drawn = same.new_zeros(0, dtype=torch.int64)
    if len(labels):
        weights = same.float().cpu()
        drawn = torch.multinomial(weights, 1, generator=generator)[:, 0].to(labels.device)
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
    width: int,
    batches: Iterator[DiscoveryBatch],
    *,
    num_classes: int,
    steps: int,
    rate: float,
    seed: int,
    device: torch.device,
) -> Classify:
    """Train the encoder (features (R, width)) and a cosine head; the head as a classifier."""
    head = NovelHead(width, num_classes, projection=False, temperature=1 / SCALE).to(device)
    generator = Generator().manual_seed(seed)
    uncertainty = 1.0

    def loss_of(batch: DiscoveryBatch) -> Tensor:
        nonlocal uncertainty
        labelled, view1, view2 = encode_jointly(encoder, batch.labelled, *batch.views)
        first, second = torch.cat([labelled, view1]), torch.cat([labelled, view2])
        logits = head(first)
        probabilities = logits.softmax(1)
        num_labelled = len(batch.labels)
        now = mean_uncertainty(probabilities[num_labelled:].detach())
        uncertainty = _MEMORY * uncertainty + (1 - _MEMORY) * now
        partners = choose_partners(first, batch.labels, generator=generator)
        supervised = margin_loss(logits[:num_labelled], batch.labels, uncertainty=uncertainty)
        pairs = pairwise_loss(probabilities, head(second).softmax(1)[partners])
        return supervised + pairs + evenness_loss(probabilities)

    fit(nn.ModuleList([encoder, head]), loss_of, batches, steps=steps, rate=rate, title="orca")
    return partial(_probabilities, head)


def _probabilities(head: NovelHead, features: Tensor) -> Tensor:
    return head(features.float()).softmax(1)
