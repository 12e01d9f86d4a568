"""Balanced assignment: regions shared out over classes so that every class gets its share.

The problem (method: Sinkhorn-Knopp, accelerated): among all Q with rows summing to one and
column j summing to `num_regions * shares[j]`, the one minimising `-<Q, log P> - H(Q) / sharpness`.
It has the form `Q = diag(a) P^sharpness diag(b)`. The normaliser of the softmax P is a factor of
its row and disappears in `a`, so logits serve in place of log P.

One round is `a = 1 / (K b)`, then `b = shares / (K^T a)`. In `x = log b` this is a fixed-point
iteration, and Anderson's extrapolation over its last few rounds reaches the same point in a
quarter of the rounds or fewer.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

# Kernel entries are exp of something in [_FLOOR, 0] and column scalings stay within
# exp(+-_MAX_SCALING), so no product is subnormal in float32 (below exp(-87)): arithmetic on
# subnormal numbers is about three times slower. Raising the entries below the floor up to it
# moves a row's sum by at most num_classes * exp(_FLOOR + 2 * _MAX_SCALING), that is 2e-9 each.
_FLOOR = -50.0
_MAX_SCALING = 15.0
# Columns whose largest exponent is below this are raised before rounds go on.
_STARVED = -30.0
_HISTORY = 15
# A plain round never raises the share error; an extrapolation that raises it so much is undone.
_MAX_GROWTH = 4.0
# Rows are handled in blocks of about this many bytes, so that a block stays in a core's cache
# between the two products of a round.
_BLOCK_BYTES = 600_000


@dataclass(frozen=True)
class Balanced:
    """The outcome of `balance`."""

    assignment: Tensor
    """(keep_rows, C): rows sum to one"""
    log_scalings: Tensor
    """(C,) `log(b / shares)` with mean zero: the `start` of a similar problem"""
    num_rounds: int
    share_error: float
    """L1 distance between the shares the classes got over all M regions and those asked for"""


def balance(
    logits: Tensor,
    shares: Tensor,
    *,
    sharpness: float,
    tolerance: float,
    max_rounds: int,
    start: Tensor | None = None,
    keep_rows: int | None = None,
    workspace: Tensor | None = None,
) -> Balanced:
    """Soft labels of M regions over C classes that give every class its share of the regions.

    `logits` (M, C) and `shares` (C,), which are made to sum to one and may hold zeros. Stops when
    the L1 error of the shares is at most `tolerance`, or after `max_rounds` (at least 1).
    `start`: `log_scalings` of an earlier, similar problem; the shares may have changed since.
    Only the first `keep_rows` rows of the assignment are returned. Needs one more (M, C) matrix of
    float32, or of float64 if the logits are, and uses `workspace` for it if that is given.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    num_regions, num_classes = logits.shape
    shares = shares.to(logits.device, dtype)
    shares = shares / shares.sum()
    if start is None:
        start = torch.zeros_like(shares)
    if num_regions == 0:
        return Balanced(logits.new_zeros(0, num_classes, dtype=dtype), start, 0, 0.0)
    values = workspace
    if values is None:
        values = torch.empty(logits.shape, dtype=dtype, device=logits.device)
    kernel = _Kernel(logits, sharpness, start.to(shares) + shares.log(), values=values)
    x, num_rounds, error = _solve(kernel, shares, tolerance=tolerance, max_rounds=max_rounds)
    live = shares > 0
    log_scalings = torch.where(live, kernel.offsets + x - shares.log(), 0.0)
    log_scalings = torch.where(live, log_scalings - log_scalings[live].mean(), 0.0)
    kept = kernel.values[:keep_rows]
    # Q takes the place of K only if all of K is ours and wanted.
    in_place = workspace is None and len(kept) == num_regions
    assignment = kernel.scale_rows(kept if in_place else kept.clone(), x)
    return Balanced(assignment, log_scalings, num_rounds, error)


def _solve(
    kernel: "_Kernel", shares: Tensor, *, tolerance: float, max_rounds: int
) -> tuple[Tensor, int, float]:
    """Log scalings x (C,) of the kernel's columns, the rounds it took and the error left.

    If the rounds run out, the best point that was met.
    """
    log_shares = shares.log()
    history = _History(shares.sqrt())
    x = plain = torch.zeros_like(shares)
    accepted_error = best_error = torch.inf
    best = kernel.offsets, x
    for num_rounds in range(1, max_rounds + 1):
        if num_rounds == 1 or x.abs().max() > _MAX_SCALING:
            kernel.fill(kernel.offsets + x)
            kernel.lift_starved()
            plain, x = plain - x, torch.zeros_like(x)
            history.clear()
        got = kernel.class_shares(x)
        error = (got - shares).abs().sum().item()
        if error < best_error:
            best, best_error = (kernel.offsets, x), error
        if error <= tolerance:
            return x, num_rounds, error
        if error > _MAX_GROWTH * accepted_error:
            x, accepted_error = plain, torch.inf
            history.clear()
            continue
        # Classes that are out have neither a share nor a scaling: -inf less -inf.
        step = (log_shares - got.log()).nan_to_num_(nan=0.0, posinf=_MAX_SCALING)
        plain, accepted_error = x + step, error
        x = history.extrapolate(x, step)
        x = x - x.mean()
    kernel.fill(best[0] + best[1])
    return torch.zeros_like(x), max_rounds, best_error


class _Kernel:
    """K = exp(sharpness * logits + offsets - row maximum), (M, C).

    Scalings that grow extreme are moved into the offsets, in the exponent, where they are exact.
    Offsets of -inf take a class out.
    """

    def __init__(
        self, logits: Tensor, sharpness: float, offsets: Tensor, *, values: Tensor
    ) -> None:
        self.sharpness = sharpness
        self.offsets = offsets
        self.live = offsets > -torch.inf
        self.peaks = offsets
        self.values = values
        row_bytes = values.shape[1] * values.element_size()
        block = max(1, _BLOCK_BYTES // row_bytes) if logits.device.type == "cpu" else len(logits)
        self.blocks = list(zip(logits.split(block), values.split(block), strict=True))

    def fill(self, offsets: Tensor) -> None:
        """Computes K with these offsets, and the largest exponent of each column, at most 0."""
        self.offsets = offsets
        self.peaks = torch.full_like(offsets, -torch.inf)
        for logits, values in self.blocks:
            torch.add(offsets, logits, alpha=self.sharpness, out=values)
            values.sub_(values.amax(1, keepdim=True))
            torch.maximum(self.peaks, values.amax(0), out=self.peaks)
            values.clamp_(min=_FLOOR).exp_()

    def lift_starved(self) -> None:
        """Raises columns that the floor has all but erased until each ties for some row's maximum.

        No row's maximum moves, so one time is enough.
        """
        starved = self.live & (self.peaks < _STARVED)
        if starved.any():
            self.fill(torch.where(starved, self.offsets - self.peaks, self.offsets))

    def class_shares(self, x: Tensor) -> Tensor:
        """Shares (C,) the classes get when columns are scaled by exp(x) and rows sum to one."""
        b = x.exp() * self.live
        sums = torch.zeros_like(b)
        for _, values in self.blocks:
            sums.addmv_(values.T, torch.mv(values, b).reciprocal_())
        return sums * b / len(self.values)

    def scale_rows(self, rows: Tensor, x: Tensor) -> Tensor:
        """Turns rows of K into rows of Q, in place."""
        rows.mul_(x.exp() * self.live)
        return rows.div_(rows.sum(1, keepdim=True))


class _History:
    """The last rounds of a fixed-point iteration, for Anderson's extrapolation (type II)."""

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights
        self.clear()

    def clear(self) -> None:
        self.last: tuple[Tensor, Tensor] | None = None
        self.weighted_changes: list[Tensor] = []
        self.moves: list[Tensor] = []

    def extrapolate(self, point: Tensor, step: Tensor) -> Tensor:
        """Where the iteration `point -> point + step` seems to be heading.

        The combination of past rounds whose weighted step is smallest, moved by that step.
        """
        if self.last is not None:
            step_change = step - self.last[1]
            weighted_change = (step_change * self.weights).double()
            self.weighted_changes = [*self.weighted_changes[1 - _HISTORY :], weighted_change]
            self.moves = [*self.moves[1 - _HISTORY :], point - self.last[0] + step_change]
        self.last = point, step
        if not self.moves:
            return point + step
        weighted = torch.stack(self.weighted_changes)
        gram = weighted @ weighted.T
        gram.diagonal().mul_(1 + 1e-8).add_(1e-30)
        mixture = torch.linalg.solve(gram, weighted @ (step * self.weights).double())
        return point + step - mixture.to(point.dtype) @ torch.stack(self.moves)
