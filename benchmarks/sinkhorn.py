"""Time, rounds and memory of the balanced assignment beside plain Sinkhorn in float64.

The plain one stops by the rule of RNCDL's published code: the relative changes of the row
scalings, summed over the rows and looked at every ten rounds, are below 0.1. Ours stops when the
class shares are right to an L1 error of 1e-3. Warm: logits moved by noise of 2 % of their
standard deviation, started from the cold solution. Needs `sinkhorn/*.npz` (logits of trained
heads) below `$RNCDL_SHARED/data` (default: `shared` beside the repository); a made-up problem of
the paper's size, 20,200 x 3,080, is solved by ours alone (`--large`).
"""

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rncdl.discovery._accelerated_sinkhorn import accelerated_sinkhorn
from rncdl.discovery.prior import class_shares, order_shares
from rncdl.discovery.sinkhorn import Balanced

SHARED = Path(os.environ.get("RNCDL_SHARED", Path(__file__).parents[2] / "shared"))
T = TypeVar("T")
SHARPNESS = 10.0
REPEATS = 5


def plain_sinkhorn(logits: Tensor, shares: Tensor, *, max_rounds: int = 2000) -> tuple[Tensor, int]:
    """Q (M, C) and the rounds it took, in float64."""
    kernel = logits.double().softmax(1) ** SHARPNESS
    shares = shares.double()
    num_regions = len(kernel)
    row_scalings = torch.full((num_regions,), 1 / num_regions, dtype=torch.float64)
    for num_rounds in range(1, max_rounds + 1):
        column_scalings = shares / (row_scalings @ kernel)
        last = row_scalings
        row_scalings = 1 / num_regions / (kernel @ column_scalings)
        if num_rounds % 10 == 0 and (last / row_scalings - 1).abs().sum() < 0.1:
            break
    assignment = row_scalings[:, None] * kernel * column_scalings
    return assignment / assignment.sum(1, keepdim=True), num_rounds


def solve(logits: Tensor, shares: Tensor, start: Tensor | None = None) -> Balanced:
    """Ours, all rows kept."""
    return accelerated_sinkhorn(
        logits, shares, sharpness=SHARPNESS, tolerance=1e-3, max_rounds=1000, start=start
    )


def least_seconds(work: Callable[[], T], repeats: int = REPEATS) -> tuple[T, float]:
    """The result and the shortest of several times."""
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - begin)
    return result, min(seconds)


def ordered_prior(logits: Tensor) -> Tensor:
    """Log-normal shares, the largest to the class with the most mass."""
    num_regions, num_classes = logits.shape
    prior = class_shares(num_classes, "lognormal", sigma=0.5, num_regions=num_regions)
    return order_shares(prior, logits.softmax(1).sum(0), order="mass")


def moved(logits: Tensor) -> Tensor:
    """The logits with noise of 2 %."""
    noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(0))
    return logits + 0.02 * logits.std() * noise


def paper_sized_logits() -> Tensor:
    """Logits (20200, 3080) like those of trained heads: cosines with prototypes near by."""
    generator = torch.Generator().manual_seed(0)
    prototypes = functional.normalize(torch.randn(3080, 256, generator=generator))
    frequency = torch.linspace(0, -4, 3080).exp()
    labels = torch.multinomial(frequency, 20_200, replacement=True, generator=generator)
    noise = torch.randn(20_200, 256, generator=generator) / 16
    return 10 * functional.normalize(prototypes[labels] + noise) @ prototypes.T


def added_bytes(work: Callable[[], object]) -> int:
    """The most memory that the work holds at once beyond what is held already (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is held
    before = _peak_bytes()
    result = work()
    added = _peak_bytes() - before
    del result
    return added


def _peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def compare(name: str, logits: Tensor, *, with_plain: bool) -> None:
    """Prints one problem's rows of the table."""
    shares = ordered_prior(logits)
    solve(logits[:100], shares)
    matrices = 1 + added_bytes(lambda: solve(logits, shares)) / (logits.numel() * 4)
    cold, cold_seconds = least_seconds(lambda: solve(logits, shares))
    nearby = moved(logits)
    warm, warm_seconds = least_seconds(lambda: solve(nearby, shares, cold.log_scalings))
    rows = [
        ("ours, cold", int(cold.num_rounds), cold.share_error.item(), cold_seconds),
        ("ours, warm", int(warm.num_rounds), warm.share_error.item(), warm_seconds),
    ]
    plain_seconds = float("nan")
    if with_plain:
        (assignment, num_rounds), plain_seconds = least_seconds(
            lambda: plain_sinkhorn(logits, shares), repeats=2
        )
        error = (assignment.mean(0) - shares).abs().sum().item()
        rows.insert(0, ("plain float64", num_rounds, error, plain_seconds))
    for solver, num_rounds, error, seconds in rows:
        ratio = f"{seconds / plain_seconds:8.4f}" if with_plain else " " * 8
        print(f"{name:12} {solver:14} {num_rounds:6} {error:9.1e} {seconds * 1e3:10.1f} {ratio}")
    print(f"{name:12} float32 matrices held at the peak, logits and Q among them: {matrices:.2f}")


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true", help="also the paper's size, 0.8 GB")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'problem':12} {'solver':14} {'rounds':>6} {'L1 error':>9} {'ms':>10} {'ratio':>8}")
    for size in ("2000x120", "5000x580"):
        path = SHARED / "data" / "sinkhorn" / f"{size}_aligned.npz"
        if not path.exists():
            print(f"{size:12} skipped: no {path}")
            continue
        with np.load(path) as file:
            compare(size, torch.from_numpy(file["logits"]).float(), with_plain=True)
    if arguments.large:
        compare("20200x3080", paper_sized_logits(), with_plain=False)


if __name__ == "__main__":
    main()
