"""Sinkhorn's iteration in a quarter of the rounds or fewer, each of them two products.

With the kernel `K = exp(sharpness * logits + offsets)`, rows divided by their maximum, one round is
`a = 1 / (K b)`, then `b = shares / (K^T a)`. In `x = log b` this is a fixed-point iteration, and
Anderson's extrapolation over its last few rounds reaches the same point sooner.

Nothing here asks a GPU for a number, which would make the host wait for it: what depends on one is
chosen by `torch.where`, and rounds after the last one that was needed change nothing. On a CPU the
loop just ends.
"""

import torch
from torch import Tensor

from rncdl.discovery.sinkhorn import (
    Balanced,
    as_floats,
    first_scalings,
    nobody_to_assign,
    relative_scalings,
)

# Kernel entries are exp of something in [_FLOOR, 0] and column scalings stay within
# exp(+-_MAX_SCALING), so no product is subnormal in float32 (below exp(-87)): arithmetic on
# subnormal numbers is about three times slower. Raising the entries below the floor up to it
# moves a row's sum by at most num_classes * exp(_FLOOR + 2 * _MAX_SCALING), that is 2e-9 each.
_FLOOR = -50.0
_MAX_SCALING = 15.0
# Rounds after which the scalings are moved into the kernel, where they are exact.
_ROUNDS_PER_KERNEL = 15
# Columns whose largest exponent is below this are raised first.
_STARVED = -30.0
_HISTORY = 15
# A plain round never raises the share error; an extrapolation that raises it this much is undone.
_MAX_GROWTH = 4.0


@torch.no_grad()
def accelerated_sinkhorn(
    logits: Tensor,
    shares: Tensor,
    *,
    sharpness: float,
    tolerance: float,
    max_rounds: int,
    start: Tensor | None = None,
    keep_rows: int | None = None,
) -> Balanced:
    """What `sinkhorn` returns; see there. If the rounds run out, the best point that was met."""
    logits, shares = as_floats(logits, shares)
    offsets = best_x = first_scalings(shares, start)
    if not len(logits):
        return nobody_to_assign(best_x, shares)
    num_rounds = torch.zeros((), dtype=torch.int64, device=shares.device)
    best_error = accepted_error = torch.full_like(shares.sum(), torch.inf)
    is_done = torch.zeros_like(best_error, dtype=torch.bool)
    x = plain = torch.zeros_like(shares)
    is_live, history = shares > 0, _History(shares.sqrt())
    for number in range(max_rounds):
        if number % _ROUNDS_PER_KERNEL == 0:
            # Scalings that a similar problem ended with leave no column starved.
            lift = number > 0 or start is None
            kernel, offsets = _make_kernel(logits, sharpness, offsets + x, lift=lift)
            plain, x = plain - x, torch.zeros_like(x)
            history.clear()
        got = _class_shares(kernel, x.exp() * is_live)
        error = (got - shares).abs().sum()
        is_better = (error < best_error) & ~is_done
        best_x = torch.where(is_better, offsets + x, best_x)
        best_error = torch.where(is_better, error, best_error)
        num_rounds += ~is_done
        is_done |= error <= tolerance
        if _may_look(is_done) and is_done:
            break
        # Classes without a share have no scaling either: -inf less -inf.
        step = (shares.log() - got.log()).nan_to_num(nan=0.0, posinf=_MAX_SCALING)
        is_worse = error > _MAX_GROWTH * accepted_error
        ahead = history.extrapolate(x, step, forget=is_worse)
        x, plain = (
            torch.where(is_worse, plain, ahead).clamp(-_MAX_SCALING, _MAX_SCALING),
            torch.where(is_worse, plain, x + step),
        )
        accepted_error = torch.where(is_worse, torch.inf, error)
    assignment = torch.softmax(sharpness * logits[:keep_rows] + best_x, 1)
    return Balanced(assignment, relative_scalings(best_x, shares), num_rounds, best_error)


def _may_look(tensor: Tensor) -> bool:
    """Whether reading a value makes nobody wait."""
    return tensor.device.type == "cpu"


def _make_kernel(
    logits: Tensor, sharpness: float, offsets: Tensor, *, lift: bool
) -> tuple[Tensor, Tensor]:
    """K = exp(sharpness * logits + offsets - row maximum) (M, C), and the offsets it has.

    `lift`: columns that the floor would all but erase are raised until each ties for some row's
    maximum; no row's maximum moves by that.
    """
    exponents = torch.add(offsets, logits, alpha=sharpness)
    exponents.sub_(exponents.amax(1, keepdim=True))
    if lift:
        peaks = exponents.amax(0)
        raised = torch.where((peaks < _STARVED) & (offsets > -torch.inf), -peaks, 0.0)
        exponents.add_(raised)
        offsets = offsets + raised
    return exponents.clamp_(min=_FLOOR).exp_(), offsets


def _class_shares(kernel: Tensor, b: Tensor) -> Tensor:
    """Shares (C,) that the classes get when columns are scaled by b and rows sum to one."""
    return (kernel.T @ (kernel @ b).reciprocal_()).mul_(b).div_(len(kernel))


class _History:
    """The last rounds of a fixed-point iteration, for Anderson's extrapolation (type II)."""

    def __init__(self, weights: Tensor) -> None:
        self._weights = weights
        # Nearly parallel rounds are told apart in double precision, which Apple's GPUs lack.
        on_mps = weights.device.type == "mps"
        self._wide, self._ridge = (torch.float32, 1e-4) if on_mps else (torch.float64, 1e-8)
        self.clear()

    def clear(self) -> None:
        """Forget all rounds."""
        rows = self._weights.new_zeros(_HISTORY, len(self._weights))
        self._changes, self._moves = rows.to(self._wide), rows.clone()
        self._last_point = self._last_step = torch.zeros_like(self._weights)
        self._has_last = torch.zeros_like(self._weights[:1])
        self._row = 0

    def extrapolate(self, point: Tensor, step: Tensor, *, forget: Tensor) -> Tensor:
        """Where the iteration `point -> point + step` seems to be heading, (C,) with mean zero.

        The combination of past rounds whose weighted step is smallest, moved by that step. Where
        `forget` () is true, these rounds and this one are not to be trusted and count no more.
        """
        change = (step - self._last_step) * self._has_last
        self._changes[self._row] = change * self._weights
        self._moves[self._row] = (point - self._last_point) * self._has_last + change
        gram = self._changes @ self._changes.T
        gram.diagonal().mul_(1 + self._ridge).add_(1e-30)
        mixture, _ = torch.linalg.solve_ex(
            gram, self._changes @ (step * self._weights).to(self._wide)
        )
        ahead = point + step - mixture.to(point.dtype) @ self._moves
        ahead = torch.where(ahead.isfinite().all(), ahead, point + step)
        kept = (~forget).to(point.dtype)
        self._changes *= kept
        self._moves *= kept
        self._has_last = kept.reshape(1)
        self._last_point, self._last_step = point, step
        self._row = (self._row + 1) % _HISTORY
        return ahead - ahead.mean()
