"""One step of discovery: pseudo-labels for two views of a batch, and the loss they teach."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import torch
from torch import Generator, Tensor
from torch.nn import functional

from rncdl.discovery.assignment import Balanced, balance
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.discovery.kmeans import kmeans_pseudo_labels
from rncdl.discovery.loss import discovery_loss, supervised_loss, swapped_loss
from rncdl.discovery.prior import class_mass, class_shares, order_shares
from rncdl.discovery.scratch import Scratch


@dataclass(frozen=True)
class Labelling:
    """How pseudo-labels are made."""

    kind: Literal["sinkhorn", "kmeans"] = "sinkhorn"
    sharpness: float = 10.0
    share_tolerance: float = 1e-3
    max_rounds: int = 500
    prior: Literal["lognormal", "uniform"] = "lognormal"
    prior_mean: float = 1.0
    prior_sigma: float = 0.5
    order: Literal["mass", "random", "fixed"] = "mass"
    kmeans_rounds: int = 3


@dataclass(frozen=True)
class PseudoLabels:
    """Soft labels of one view's batch by one head, and how they came about."""

    targets: Tensor
    """(B, C), rows sum to one"""
    logits: Tensor
    """(B, C) what the head made of the batch"""
    log_scalings: Tensor | None
    """(C,) where the next step's assignment starts; None: from nothing"""
    moments: Tensor | None
    """(2, H) what the head's BatchNorm normalised by, if it has one"""
    num_rounds: int
    share_error: float
    """L1 distance over batch and memory from the shares asked for; k-means asks for none: 0"""
    num_used: int
    """Clusters that hold, by the head's own probabilities, at least one of the regions"""


@dataclass(frozen=True)
class StepStatistics:
    """What a step has to report; means over views and heads."""

    swapped_loss: float
    supervised_loss: float
    share_error: float
    num_rounds: float
    clusters_in_use: float
    """Of the N of a head, those predicted for at least one region's worth of batch and memory"""
    label_entropy: float
    """Mean entropy of the pseudo-labels of a region, in nats"""


Starts = list[list[Tensor | None]]
"""Per view, per head: where the balanced assignment starts; None: from nothing."""


Moments = list[list[Tensor | None]]
"""Per view, per head (2, H): what BatchNorm normalised by when the memory's logits were computed;
None: it did not (no MLP, or a single row)."""


@dataclass(frozen=True)
class Remembered:
    """The logits of the memories' rows, kept from step to step."""

    logits: Sequence[Sequence[Tensor]]
    """per view, per head (M, C), in the order of the memory's rows"""
    moments: Moments | None
    """the step takes the logits as they are, and normalises its batch by these as they were;
    None: it computes the logits anew and stores them"""


@dataclass(frozen=True)
class Carried:
    """What a step hands on to the next one."""

    starts: Starts
    moments: Moments
    logits: list[list[Tensor]]
    """per view, per head (B, C): what the heads made of the batch before they learned from it"""


def discovery_step(
    heads: DiscoveryHeads,
    views: tuple[Tensor, Tensor],
    *,
    memories: tuple[Tensor, Tensor],
    labelled: Tensor,
    labels: Tensor,
    labelling: Labelling,
    alpha: float,
    swap: bool = True,
    starts: Starts | None = None,
    remembered: Remembered | None = None,
    seed: int = 0,
    scratch: Scratch | None = None,
) -> tuple[Tensor, StepStatistics, Carried]:
    """The loss to be minimised, what there is to report, and what the next step goes on from.

    `views`: features (B, F) of the same regions in two views; `memories`: what each view's memory
    holds, (M, F); `labelled` (L, F) and `labels` (L,): matched regions of labelled images and
    their known classes. `remembered`: spares the memories' way through the heads in steps that do
    not renew them; None: they take it in every step. `seed`: for the shares' random order, another
    one for each step. `scratch`: to be handed to every step, which saves time.

    All rows pass through the heads at once, so that a step moves BatchNorm's running statistics
    once; making the pseudo-labels does not move them.
    """
    if starts is None:
        starts = [[None] * len(heads.novel)] * 2
    scratch = scratch or Scratch()
    taught: list[list[PseudoLabels]] = []
    for view, (batch, memory) in enumerate(zip(views, memories, strict=True)):
        moments = None if remembered is None else remembered.moments
        view_starts = starts[0] if view == 0 else _second_starts(taught[0], starts)
        taught.append(
            pseudo_labels(
                heads,
                batch,
                memory,
                labelling=labelling,
                starts=view_starts,
                remembered=None if remembered is None else remembered.logits[view],
                moments=None if moments is None else moments[view],
                seed=seed,
                scratch=scratch,
            )
        )
    sizes = [len(views[0]), len(views[1]), len(labelled)]
    swapped, supervised = [], []
    all_logits = heads.logits(torch.cat([*views, labelled]).float())
    for logits, made1, made2 in zip(all_logits, *taught, strict=True):
        logits1, logits2, labelled_logits = logits.split(sizes)
        swapped.append(
            swapped_loss(logits1, logits2, labels1=made1.targets, labels2=made2.targets, swap=swap)
        )
        supervised.append(supervised_loss(labelled_logits, labels))
    loss = discovery_loss(swapped, supervised, alpha=alpha)
    statistics = _statistics(swapped, supervised, [*taught[0], *taught[1]])
    carried = Carried(
        [[made.log_scalings for made in view] for view in taught],
        [[made.moments for made in view] for view in taught],
        [[made.logits for made in view] for view in taught],
    )
    return loss, statistics, carried


@torch.no_grad()
def pseudo_labels(
    heads: DiscoveryHeads,
    batch: Tensor,
    memory: Tensor,
    *,
    labelling: Labelling,
    starts: Sequence[Tensor | None],
    seed: int,
    remembered: Sequence[Tensor] | None = None,
    moments: Sequence[Tensor | None] | None = None,
    scratch: Scratch | None = None,
) -> list[PseudoLabels]:
    """Labels by each head of one view's `batch` (B, F), found together with its `memory` (M, F).

    Both go through today's heads as one batch: BatchNorm normalises them by their common
    statistics and leaves its running ones alone. In full precision even under autocast, since the
    sharpness multiplies the rounding of the logits. `remembered`: per head, the memory's logits
    (M, C), stored there, or, given the `moments` that they were computed with, taken from there;
    the batch then goes through the heads alone, normalised by these.
    """
    scratch = scratch or Scratch()
    renew = moments is None
    if moments is None:
        moments = [None] * len(heads.novel)
    num_rows = len(batch) + len(memory)
    num_fresh = num_rows if renew else len(batch)
    features = scratch.matrix("features", num_fresh, batch.shape[1], like=heads.known.linear.weight)
    features[: len(batch)] = batch
    if renew:
        features[len(batch) :] = memory
    made = []
    with torch.autocast(features.device.type, enabled=False):
        each_head = zip(heads.novel, starts, moments, strict=True)
        for number, (head, start, old_moments) in enumerate(each_head):
            num_classes = heads.num_known + len(head.prototypes)
            logits = scratch.matrix("logits", num_rows, num_classes, like=features)
            heads.known.classify(features, out=logits[:num_fresh, : heads.num_known])
            embeddings, used = head.embed_jointly(features, moments=old_moments, scratch=scratch)
            head.classify(embeddings, out=logits[:num_fresh, heads.num_known :])
            if remembered is not None:
                source, target = logits[len(batch) :], remembered[number]
                if not renew:
                    source, target = target, source
                target.copy_(source)
            of_batch = logits[: len(batch)].clone()
            mass = class_mass(logits)
            num_used = int((mass[heads.num_known :] >= 1).sum())
            if labelling.kind == "kmeans":
                targets = kmeans_pseudo_labels(
                    functional.normalize(embeddings) if head.classifier == "cosine" else embeddings,
                    logits,
                    num_known=heads.num_known,
                    rounds=labelling.kmeans_rounds,
                    keep_rows=len(batch),
                )
                made.append(
                    PseudoLabels(
                        targets, of_batch, None, used, labelling.kmeans_rounds, 0.0, num_used
                    )
                )
            else:
                balanced = balance(
                    logits,
                    _ordered_shares(labelling, mass, num_regions=num_rows, seed=seed),
                    sharpness=labelling.sharpness,
                    tolerance=labelling.share_tolerance,
                    max_rounds=labelling.max_rounds,
                    start=start,
                    keep_rows=len(batch),
                    workspace=scratch.matrix("kernel", num_rows, num_classes, like=features),
                )
                made.append(_from_balanced(balanced, of_batch, used, num_used))
    return made


def _second_starts(first: Sequence[PseudoLabels], starts: Starts) -> list[Tensor | None]:
    """Where the second view's assignments start: the last step's, moved as the first view's did.

    Saves two fifths of the second view's rounds.
    """
    moved: list[Tensor | None] = []
    for made, first_start, second_start in zip(first, *starts, strict=True):
        now = made.log_scalings
        known = now is not None and first_start is not None and second_start is not None
        moved.append(second_start + (now - first_start) if known else now)
    return moved


def _from_balanced(
    balanced: Balanced, logits: Tensor, moments: Tensor | None, num_used: int
) -> PseudoLabels:
    return PseudoLabels(
        balanced.assignment,
        logits,
        balanced.log_scalings,
        moments,
        balanced.num_rounds,
        balanced.share_error,
        num_used,
    )


def _ordered_shares(labelling: Labelling, mass: Tensor, *, num_regions: int, seed: int) -> Tensor:
    shares = class_shares(
        len(mass),
        labelling.prior,
        mean=labelling.prior_mean,
        sigma=labelling.prior_sigma,
        num_regions=num_regions,
    )
    generator = Generator().manual_seed(seed)
    return order_shares(shares, mass, order=labelling.order, generator=generator)


def _statistics(
    swapped: Sequence[Tensor], supervised: Sequence[Tensor], made: Sequence[PseudoLabels]
) -> StepStatistics:
    entropies = [torch.special.entr(one.targets).sum(1) for one in made]
    return StepStatistics(
        swapped_loss=fmean(loss.item() for loss in swapped),
        supervised_loss=fmean(loss.item() for loss in supervised),
        share_error=fmean(one.share_error for one in made),
        num_rounds=fmean(one.num_rounds for one in made),
        clusters_in_use=fmean(one.num_used for one in made),
        label_entropy=torch.cat(entropies).mean().nan_to_num().item(),
    )
