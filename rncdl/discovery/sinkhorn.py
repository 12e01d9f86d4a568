"""Constrained clustering: regions are shared out so that every class receives its share.

Among all Q (M × C) whose rows sum to one and whose column j sums to `M * shares[j]`, the one that
minimises `-<Q, log P> - H(Q) / sharpness` is `Q = diag(a) P^sharpness diag(b)`. In `x = log b` its
rows are `softmax(sharpness * logits + x)`: the normaliser of the softmax P is a factor of its row,
which `a` takes away again, so logits serve in place of log P.

`sinkhorn` is the iteration as it is written down; training uses `accelerated_sinkhorn`
(`_accelerated_sinkhorn.py`), which finds the same Q in a fraction of the time.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Balanced:
    """The outcome of `sinkhorn`."""

    assignment: Tensor
    """(keep_rows, C): rows sum to one"""
    log_scalings: Tensor
    """(C,) `log(b / shares)` with mean zero: the `start` of a similar problem"""
    num_rounds: Tensor
    """(), a tensor like the next one, so that a GPU need not be waited for"""
    share_error: Tensor
    """(), L1 distance between the shares that the classes got of all M regions and those wanted"""


@torch.no_grad()
def sinkhorn(
    logits: Tensor,
    shares: Tensor,
    *,
    sharpness: float,
    tolerance: float,
    max_rounds: int,
    start: Tensor | None = None,
    keep_rows: int | None = None,
) -> Balanced:
    """Soft labels of M regions over C classes that give every class its share of the regions.

    `logits` (M, C) and `shares` (C,), which are made to sum to one and may hold zeros. Stops when
    the L1 error of the shares is at most `tolerance`, or after `max_rounds` (at least 1).
    `start`: `log_scalings` of an earlier, similar problem; the shares may have changed since.
    Only the first `keep_rows` rows of the assignment are returned.
    """
    logits, shares = as_floats(logits, shares)
    x = first_scalings(shares, start)
    if not len(logits):
        return nobody_to_assign(x, shares)
    for num_rounds in range(1, max_rounds + 1):
        log_q = (sharpness * logits + x).log_softmax(1)  # every region is given away once
        log_got = log_q.logsumexp(0) - math.log(len(logits))
        error = (log_got.exp() - shares).abs().sum()
        if error <= tolerance or num_rounds == max_rounds:
            break
        x = torch.where(shares > 0, x + shares.log() - log_got, x)  # every class asks for its share
    rounds = torch.tensor(num_rounds)
    return Balanced(log_q[:keep_rows].exp(), relative_scalings(x, shares), rounds, error)


def as_floats(logits: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Both in float32, or float64 if the logits are, on one device; the shares sum to one."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    shares = shares.to(logits)
    return logits, shares / shares.sum()


def first_scalings(shares: Tensor, start: Tensor | None) -> Tensor:
    """Log b (C,) to begin with; -inf for classes without a share, which get nothing."""
    return shares.log() if start is None else shares.log() + start.to(shares)


def nobody_to_assign(x: Tensor, shares: Tensor) -> Balanced:
    """The outcome where there are no regions: nothing, after no rounds."""
    zero = shares.new_zeros(())
    return Balanced(shares.new_zeros(0, len(shares)), relative_scalings(x, shares), zero, zero)


def relative_scalings(x: Tensor, shares: Tensor) -> Tensor:
    """`log(b / shares)` with mean zero, and zero for classes without a share."""
    is_live = shares > 0
    relative = torch.where(is_live, x - shares.log(), 0.0)
    return torch.where(is_live, relative - relative.sum() / is_live.sum(), 0.0)
