"""Prior over the classes: how large a share of the regions each of them should get."""

from functools import lru_cache
from typing import Literal

import torch
from torch import Generator, Tensor

LOG_MEAN = 1.0
"""The paper's. A factor common to all classes, which the normalisation removes again."""


@lru_cache(maxsize=16)
def class_shares(
    num_classes: int,
    kind: Literal["lognormal", "uniform"],
    *,
    sigma: float,
    num_regions: int,
) -> Tensor:
    """Shares (C,) float32 of the classes, from the largest to the smallest, summing to one.

    `lognormal`: the quantiles at (i + 0.5) / C of the distribution whose logarithm has the mean
    `LOG_MEAN` and the deviation `sigma`, the same on every machine and in every run. Every class
    gets at least one of the `num_regions`, the others giving up in proportion. Where there are more
    classes than regions that cannot be, and all shares are equal. Kept for the next step: not to be
    changed in place.
    """
    if kind == "uniform":
        return torch.full((num_classes,), 1 / num_classes)
    ranks = torch.arange(num_classes, dtype=torch.float64)
    quantiles = 1 - (ranks + 0.5) / num_classes
    shares = torch.exp(LOG_MEAN + sigma * torch.special.ndtri(quantiles))
    return _raise_to_floor(shares / shares.sum(), 1 / max(num_classes, num_regions)).float()


def _raise_to_floor(shares: Tensor, floor: float) -> Tensor:
    """Shares, descending, with the small ones at `floor` and the rest scaled to sum to one."""
    num_classes = len(shares)
    num_scaled = torch.arange(1, num_classes + 1)
    scale = (1 - floor * (num_classes - num_scaled)) / shares.cumsum(0)
    kept = int((shares * scale > floor).sum())
    raised = torch.full_like(shares, floor)
    if kept:
        raised[:kept] = shares[:kept] * scale[kept - 1]
    return raised


def order_shares(
    shares: Tensor,
    mass: Tensor,
    *,
    order: Literal["mass", "random", "fixed"],
    generator: Generator | None = None,
) -> Tensor:
    """The shares (C,), which come in descending order, dealt to the classes.

    `mass`: the class with the largest `mass` (C,) gets the largest share, and so on; `random`: a
    permutation drawn from `generator` (on the CPU); `fixed`: class j gets share j.
    """
    shares = shares.to(mass.device)
    if order == "mass":
        return torch.empty_like(shares).scatter_(
            0, mass.argsort(descending=True, stable=True), shares
        )
    if order == "random":
        return shares[torch.randperm(len(shares), generator=generator).to(shares.device)]
    return shares
