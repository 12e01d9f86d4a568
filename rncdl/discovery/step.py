"""One step of discovery: pseudo-labels for two views of a batch, and the loss they teach."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from rncdl.discovery._accelerated_sinkhorn import accelerated_sinkhorn
from rncdl.discovery.distillation import BALANCE_WEIGHT, distilled_labels
from rncdl.discovery.feeding import DiscoveryBatch
from rncdl.discovery.heads import DiscoveryHeads, kept_statistics
from rncdl.discovery.kmeans import kmeans_pseudo_labels
from rncdl.discovery.loss import (
    balance_loss,
    discovery_loss,
    supervised_loss,
    swapped_loss,
    taught_loss,
)
from rncdl.discovery.prior import class_shares, order_shares

SHARE_TOLERANCE = 1e-3
"""L1 error of the class shares at which the assignment stops."""


@dataclass(frozen=True)
class Labelling:
    """How pseudo-labels are made, and which view learns them."""

    kind: Literal["sinkhorn", "kmeans", "distilled"] = "sinkhorn"
    sharpness: float = 10.0
    max_rounds: int = 500
    prior: Literal["lognormal", "uniform"] = "lognormal"
    prior_sigma: float = 0.5
    order: Literal["mass", "random", "fixed"] = "mass"
    kmeans_rounds: int = 3
    distilled_sharpness: float = 2.5
    swap: bool = True
    """each view learns the other's labels; False: its own"""


@dataclass(frozen=True)
class Balance:
    """How full the classes are, and how full they should be."""

    mean: Tensor
    """(C,) mean probabilities of batch and memory by the head itself"""
    shares: Tensor
    """(C,)"""


@dataclass(frozen=True)
class PseudoLabels:
    """Soft labels of one view's batch by one head, and how they came about."""

    targets: Tensor
    """(B, C), rows sum to one"""
    log_scalings: Tensor | None
    """(C,) where the next step's assignment starts; None: from nothing"""
    num_rounds: Tensor
    share_error: Tensor
    """() L1 distance over batch and memory from the shares asked for; k-means asks for none: 0"""
    num_used: Tensor
    """() clusters that hold, by the head's own probabilities, at least one of the regions"""
    balance: Balance | None = None
    """for the loss to see to; None: the labels are balanced, or need not be"""


@dataclass(frozen=True)
class StepStatistics:
    """What a step has to report; scalar tensors, means over views and heads."""

    swapped_loss: Tensor
    """by the other view's pseudo-labels, distilled ones with their balance term; or by the
    teacher's labels"""
    supervised_loss: Tensor
    share_error: Tensor
    num_rounds: Tensor
    clusters_in_use: Tensor
    """Of the N of a head, those predicted for at least one region's worth of batch and memory"""
    label_entropy: Tensor
    """Mean entropy of the pseudo-labels of a region, or, with a teacher, of its probabilities"""


Starts = list[list[Tensor | None]]
"""Per view, per head: where the constrained clustering starts; None: from nothing."""


def discovery_step(
    heads: DiscoveryHeads,
    batch: DiscoveryBatch,
    *,
    memories: tuple[Tensor, Tensor],
    labelling: Labelling,
    alpha: float,
    starts: Starts | None = None,
    seed: int = 0,
) -> tuple[Tensor, StepStatistics, Starts]:
    """The loss to be minimised, what there is to report, and where the next step starts.

    `memories`: what each view's memory holds, (M, F). `seed`: for the shares' random order,
    another one for each step.

    All rows that teach pass through the heads at once, so that a step moves BatchNorm's running
    statistics once; making the pseudo-labels does not move them.
    """
    views, labelled = batch.views, batch.labelled
    first_starts, second_starts = starts or [[None] * len(heads.novel)] * 2
    first = pseudo_labels(
        heads, views[0], memories[0], labelling=labelling, starts=first_starts, seed=seed
    )
    second_starts = _moved_alike(second_starts, first, first_starts)
    second = pseudo_labels(
        heads, views[1], memories[1], labelling=labelling, starts=second_starts, seed=seed
    )
    sizes = [len(views[0]), len(views[1]), len(labelled)]
    swapped, supervised = [], []
    for logits, of_first, of_second in zip(
        heads(torch.cat([*views, labelled])), first, second, strict=True
    ):
        logits1, logits2, labelled_logits = logits.split(sizes)
        swapped.append(
            swapped_loss(
                logits1,
                logits2,
                labels1=of_first.targets,
                labels2=of_second.targets,
                swap=labelling.swap,
            )
        )
        if of_first.balance and of_second.balance:
            balance1 = balance_loss(logits1, **vars(of_first.balance))
            balance2 = balance_loss(logits2, **vars(of_second.balance))
            swapped[-1] = swapped[-1] + BALANCE_WEIGHT * 0.5 * (balance1 + balance2)
        supervised.append(supervised_loss(labelled_logits, batch.labels))
    loss = discovery_loss(swapped, supervised, alpha=alpha)
    next_starts = [[made.log_scalings for made in view] for view in (first, second)]
    return loss, _statistics(swapped, supervised, [*first, *second]), next_starts


def taught_step(
    heads: DiscoveryHeads, batch: DiscoveryBatch, *, alpha: float
) -> tuple[Tensor, StepStatistics]:
    """The loss by the teacher's labels of the regions, the same in both views."""
    targets = batch.targets
    assert targets is not None
    sizes = [2 * len(targets), len(batch.labelled)]
    taught, supervised, used, entropies = [], [], [], []
    for head, logits in enumerate(heads(torch.cat([*batch.views, batch.labelled]))):
        own, labelled_logits = logits.split(sizes)
        taught.append(taught_loss(own, targets[:, head].repeat(2)))
        supervised.append(supervised_loss(labelled_logits, batch.labels))
        with torch.no_grad():
            mass = own.softmax(1)
            clusters = slice(heads.num_known, heads.num_known + heads.num_clusters[head])
            used.append((mass.sum(0)[clusters] >= 1).sum())
            entropies.append(torch.special.entr(mass).sum(1).mean().nan_to_num())
    nothing = torch.zeros_like(entropies[0])
    statistics = StepStatistics(
        swapped_loss=_mean(taught).detach(),
        supervised_loss=_mean(supervised).detach(),
        share_error=nothing,
        num_rounds=nothing,
        clusters_in_use=_mean(used),
        label_entropy=_mean(entropies),
    )
    return discovery_loss(taught, supervised, alpha=alpha), statistics


@torch.no_grad()
def pseudo_labels(
    heads: DiscoveryHeads,
    batch: Tensor,
    memory: Tensor,
    *,
    labelling: Labelling,
    starts: Sequence[Tensor | None],
    seed: int,
) -> list[PseudoLabels]:
    """Labels by each head of one view's `batch` (B, F), found together with its `memory` (M, F).

    Both go through today's heads, which are in training mode, as one batch: BatchNorm normalises
    them by their common statistics and leaves its running ones alone.
    """
    rows = torch.cat([batch, memory])
    made = []
    with kept_statistics(heads):
        for head, start in enumerate(starts):
            logits = heads.logits(rows, head)
            mass = logits.softmax(1).sum(0)  # what each class holds now
            log_scalings, balance = None, None
            num_rounds = error = mass.new_zeros(())
            shares = _ordered_shares(labelling, mass, num_regions=len(rows), seed=seed)
            if labelling.kind == "kmeans":
                targets = kmeans_pseudo_labels(
                    heads.novel[head].embed(rows.float()),
                    logits,
                    num_known=heads.num_known,
                    rounds=labelling.kmeans_rounds,
                    keep_rows=len(batch),
                )
                num_rounds = torch.full_like(error, labelling.kmeans_rounds)
            elif labelling.kind == "distilled":
                targets = distilled_labels(
                    logits[: len(batch)], sharpness=labelling.distilled_sharpness
                )
                balance = Balance(mass / max(len(rows), 1), shares)
                error = (balance.mean - shares).abs().sum()
            else:
                balanced = accelerated_sinkhorn(
                    logits,
                    shares,
                    sharpness=labelling.sharpness,
                    tolerance=SHARE_TOLERANCE,
                    max_rounds=labelling.max_rounds,
                    start=start,
                    keep_rows=len(batch),
                )
                targets, log_scalings = balanced.assignment, balanced.log_scalings
                num_rounds, error = balanced.num_rounds, balanced.share_error
            num_used = (mass[heads.num_known :] >= 1).sum()
            made.append(PseudoLabels(targets, log_scalings, num_rounds, error, num_used, balance))
    return made


def _moved_alike(
    starts: Sequence[Tensor | None], first: Sequence[PseudoLabels], first_starts: Sequence
) -> list[Tensor | None]:
    """Where the second view's assignments start: the last step's, moved as the first view's did.

    Saves two fifths of the second view's rounds.
    """
    moved: list[Tensor | None] = []
    for start, made, first_start in zip(starts, first, first_starts, strict=True):
        now = made.log_scalings
        known = now is not None and first_start is not None and start is not None
        moved.append(start + (now - first_start) if known else now)
    return moved


def _ordered_shares(labelling: Labelling, mass: Tensor, *, num_regions: int, seed: int) -> Tensor:
    shares = class_shares(
        len(mass),
        labelling.prior,
        sigma=labelling.prior_sigma,
        num_regions=num_regions,
    )
    generator = Generator().manual_seed(seed)
    return order_shares(shares, mass, order=labelling.order, generator=generator)


@torch.no_grad()
def _statistics(
    swapped: Sequence[Tensor], supervised: Sequence[Tensor], made: Sequence[PseudoLabels]
) -> StepStatistics:
    entropies = [torch.special.entr(one.targets).sum(1) for one in made]
    return StepStatistics(
        swapped_loss=_mean(swapped),
        supervised_loss=_mean(supervised),
        share_error=_mean([one.share_error for one in made]),
        num_rounds=_mean([one.num_rounds for one in made]),
        clusters_in_use=_mean([one.num_used for one in made]),
        label_entropy=torch.cat(entropies).mean().nan_to_num(),
    )


def _mean(values: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(values)).float().mean()
