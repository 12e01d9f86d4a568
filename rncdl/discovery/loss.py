"""What discovery minimises."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

UNTAUGHT = -100
"""The label of regions that teach nothing, which cross-entropy passes over."""


def taught_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of regions with the teacher's labels: `logits` (R, C), `targets` (R,).

    No region that it has a label for: zero, with a gradient.
    """
    summed = functional.cross_entropy(logits, targets, ignore_index=UNTAUGHT, reduction="sum")
    return summed / (targets != UNTAUGHT).sum().clamp_min(1)


def swapped_loss(
    logits1: Tensor, logits2: Tensor, *, labels1: Tensor, labels2: Tensor, swap: bool = True
) -> Tensor:
    """Mean of the two views' cross-entropies, each taught by the other view's soft labels.

    All (R, C); row r is the same region in both views. Without `swap` each view is taught by its
    own labels. No regions: zero, with a gradient.
    """
    if swap:
        labels1, labels2 = labels2, labels1
    return 0.5 * (_soft_cross_entropy(logits1, labels1) + _soft_cross_entropy(logits2, labels2))


def balance_loss(logits: Tensor, *, mean: Tensor, shares: Tensor) -> Tensor:
    """KL(`mean` || `shares`): how far the classes' mean probabilities are from their shares (C,).

    `mean` (C,) is that of batch and memory, without a gradient. All of its rows pass through the
    same heads, so the gradient of the batch, `logits` (R, C), is taken for that of all: the pull
    does not weaken with a longer memory. No regions: zero, with a gradient.
    """
    if len(logits) == 0:
        return logits.sum()
    own = logits.softmax(1).mean(0)
    mean = mean + (own - own.detach())
    tiny = torch.finfo(mean.dtype).tiny  # a class that no region is in has a share all the same
    return (mean * (mean.clamp_min(tiny) / shares).log()).sum()


def supervised_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy over all C outputs of labelled regions: `logits` (R, C), `labels` (R,).

    No regions: zero, with a gradient.
    """
    if len(labels) == 0:
        return logits.sum()
    return functional.cross_entropy(logits, labels)


def discovery_loss(
    swapped: Sequence[Tensor], supervised: Sequence[Tensor], *, alpha: float
) -> Tensor:
    """Mean over the heads of `swapped + alpha * supervised`."""
    heads = [ss + alpha * cls for ss, cls in zip(swapped, supervised, strict=True)]
    return torch.stack(heads).mean()


def _soft_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    if len(labels) == 0:
        return logits.sum()
    return functional.cross_entropy(logits, labels)
