"""Constrained clustering: against POT, and in the corners where float32 gives way."""

import math
from typing import Any

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rncdl.discovery import _accelerated_sinkhorn
from rncdl.discovery._accelerated_sinkhorn import accelerated_sinkhorn
from rncdl.discovery.prior import class_shares, order_shares
from rncdl.discovery.sinkhorn import Balanced, sinkhorn
from tests.shared_data import shared_path


def solve(logits: Tensor, shares: Tensor, *, by=accelerated_sinkhorn, **changes: Any) -> Balanced:
    settings: dict[str, Any] = {"sharpness": 10.0, "tolerance": 1e-3, "max_rounds": 500} | changes
    return by(logits, shares, **settings)


both_ways = pytest.mark.parametrize("by", [sinkhorn, accelerated_sinkhorn])


def random_problem(num_regions: int, num_classes: int, *, scale: float = 1.0, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(num_regions, num_classes, generator=generator)
    shares = torch.rand(num_classes, generator=generator) + 0.1
    return logits, shares / shares.sum()


def share_error(assignment: Tensor, shares: Tensor) -> float:
    return (assignment.double().mean(0) - shares).abs().sum().item()


@both_ways
def test_no_regions_give_an_empty_assignment(by):
    start = torch.tensor([1.0, -1.0, 0.0])
    balanced = solve(torch.empty(0, 3), torch.full((3,), 1 / 3), start=start, by=by)
    assert balanced.assignment.shape == (0, 3)
    assert balanced.num_rounds == 0
    assert torch.equal(balanced.log_scalings, start)


@both_ways
def test_two_regions_two_classes_by_hand(by):
    # Symmetric: each region prefers its own class by the same odds, shares equal.
    balanced = solve(torch.tensor([[0.2, 0.0], [0.0, 0.2]]), torch.tensor([0.5, 0.5]), by=by)
    own = 1 / (1 + math.exp(-10 * 0.2))
    expected = torch.tensor([[own, 1 - own], [1 - own, own]])
    torch.testing.assert_close(balanced.assignment, expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize("sharpness", [1.0, 10.0, 20.0])
def test_equals_pot_in_float64(sharpness):
    logits, shares = random_problem(60, 7)
    logits = logits.double()
    cost = -logits.log_softmax(1).numpy()
    expected = ot.sinkhorn(
        np.full(60, 1 / 60),
        shares.double().numpy() / shares.double().sum().item(),
        cost,
        reg=1 / sharpness,
        method="sinkhorn_log",
        numItermax=100_000,
        stopThr=1e-13,
    )
    balanced = solve(logits, shares, sharpness=sharpness, tolerance=1e-6, max_rounds=5000)
    np.testing.assert_allclose(balanced.assignment.numpy(), 60 * expected, atol=1e-5)
    assert balanced.assignment.dtype == torch.float64


def test_float32_equals_float64_on_peaked_logits():
    # P ** sharpness spans e^-400 .. 1 here.
    logits, shares = random_problem(400, 20, scale=4)
    single = solve(logits, shares, tolerance=1e-5, max_rounds=5000)
    double = solve(logits.double(), shares, tolerance=1e-8, max_rounds=50_000)
    torch.testing.assert_close(single.assignment, double.assignment.float(), atol=2e-3, rtol=0)


@pytest.mark.parametrize("sharpness", [1.0, 10.0])
def test_both_ways_lead_to_the_same_assignment(sharpness):
    logits, shares = random_problem(300, 12)
    options: dict[str, Any] = {"sharpness": sharpness, "tolerance": 1e-6, "max_rounds": 20_000}
    plain = solve(logits.double(), shares, by=sinkhorn, **options)
    quick = solve(logits.double(), shares, **options)
    # Shares that are right to 1e-6 leave 300 regions' worth of that to be moved about.
    torch.testing.assert_close(quick.assignment, plain.assignment, atol=3e-4, rtol=0)
    torch.testing.assert_close(quick.log_scalings, plain.log_scalings, atol=1e-3, rtol=1e-3)
    assert quick.num_rounds <= plain.num_rounds


def test_rounds_after_the_last_change_nothing(monkeypatch):
    """Where nobody looks whether it is done, as on a GPU, the outcome is the same."""
    logits, shares = random_problem(200, 9)
    looked = solve(logits, shares, max_rounds=60)
    assert looked.num_rounds < 30
    monkeypatch.setattr(_accelerated_sinkhorn, "_may_look", lambda tensor: False)
    not_looked = solve(logits, shares, max_rounds=60)
    assert torch.equal(looked.assignment, not_looked.assignment)
    assert torch.equal(looked.log_scalings, not_looked.log_scalings)
    assert looked.num_rounds == not_looked.num_rounds


@settings(max_examples=60)
@given(
    num_regions=st.integers(1, 80),
    num_classes=st.integers(1, 30),
    log10_scale=st.floats(-3, 1),
    seed=st.integers(0, 999),
)
def test_rows_sum_to_one_and_the_error_is_the_true_one(num_regions, num_classes, log10_scale, seed):
    logits, shares = random_problem(num_regions, num_classes, scale=10**log10_scale, seed=seed)
    balanced = solve(logits, shares)
    assert (balanced.assignment >= 0).all()
    torch.testing.assert_close(
        balanced.assignment.sum(1), torch.ones(num_regions), atol=1e-5, rtol=0
    )
    # Exponents of up to a thousand, in float32, are right to 6e-5.
    assert balanced.share_error.item() == pytest.approx(
        share_error(balanced.assignment, shares), abs=2e-4
    )
    assert balanced.share_error <= 1e-3 or balanced.num_rounds == 500


@both_ways
def test_every_class_receives_its_skewed_share(by):
    logits = torch.randn(3000, 3, generator=torch.Generator().manual_seed(0))
    shares = torch.tensor([0.7, 0.2, 0.1])
    got = solve(logits, shares, by=by).assignment.mean(0)
    torch.testing.assert_close(got, shares, atol=1e-3, rtol=0)


@both_ways
def test_too_few_rounds_are_reported_as_such(by):
    logits, shares = random_problem(500, 50, scale=2)
    balanced = solve(logits, shares, max_rounds=2, tolerance=1e-6, by=by)
    assert balanced.num_rounds == 2
    assert balanced.share_error > 1e-2
    assert balanced.share_error.item() == pytest.approx(
        share_error(balanced.assignment, shares), abs=1e-5
    )


@pytest.mark.parametrize(
    "logits",
    [
        pytest.param(torch.tensor([[1e4, -1e4], [1e4, -1e4]]), id="nobody wants class 1"),
        pytest.param(torch.zeros(5, 4), id="all equal"),
        pytest.param(torch.tensor([[3.0, 1.0, -2.0]]), id="one region"),
        pytest.param(torch.tensor([[3.0], [-1e4]]), id="one class"),
        pytest.param(torch.cat([torch.randn(40, 5), torch.full((40, 2), -1e4)], 1), id="no mass"),
        pytest.param(torch.cat([torch.zeros(40, 5), torch.full((40, 2), 1e4)], 1), id="all mass"),
    ],
)
def test_hard_cases_are_finite_and_balanced(logits):
    num_regions, num_classes = logits.shape
    balanced = solve(logits, torch.full((num_classes,), 1 / num_classes), max_rounds=2000)
    assert balanced.assignment.isfinite().all()
    assert balanced.log_scalings.isfinite().all()
    torch.testing.assert_close(
        balanced.assignment.sum(1), torch.ones(num_regions), atol=1e-5, rtol=0
    )
    assert balanced.share_error <= 1e-3


def test_random_logits_of_1e4_stay_finite_and_no_worse_than_without_balance():
    # The entropy counts for nothing here: a matching of 50 regions to 8 classes, out of reach.
    logits, shares = random_problem(50, 8, scale=1e4)
    balanced = solve(logits, shares, max_rounds=200)
    assert balanced.assignment.isfinite().all()
    assert balanced.log_scalings.isfinite().all()
    torch.testing.assert_close(balanced.assignment.sum(1), torch.ones(50), atol=1e-5, rtol=0)
    assert balanced.share_error <= share_error((10 * logits).softmax(1), shares) + 1e-6
    assert balanced.share_error.item() == pytest.approx(
        share_error(balanced.assignment, shares), abs=1e-5
    )


@both_ways
def test_classes_with_a_share_of_zero_get_nothing_and_can_come_back(by):
    logits, shares = random_problem(200, 6)
    logits[:, 1] += 100  # the class that is out is the one every region wants
    without = shares.clone()
    without[1] = 0
    without /= without.sum()
    balanced = solve(logits, without, by=by)
    assert (balanced.assignment[:, 1] == 0).all()
    assert balanced.share_error <= 1e-3
    again = solve(logits, shares, start=balanced.log_scalings, by=by)
    assert again.share_error <= 1e-3
    assert balanced.log_scalings.isfinite().all()


@both_ways
def test_kept_rows_are_the_first_rows(by):
    logits, shares = random_problem(300, 10)
    whole, first = solve(logits, shares, by=by), solve(logits, shares, keep_rows=7, by=by)
    assert torch.equal(whole.assignment[:7], first.assignment)
    assert solve(logits, shares, keep_rows=0, by=by).assignment.shape == (0, 10)


@both_ways
def test_leaves_its_arguments_alone(by):
    logits, shares = random_problem(50, 5)
    start = torch.randn(5)
    copies = logits.clone(), shares.clone(), start.clone()
    solve(logits, shares, start=start, by=by)
    assert all(torch.equal(a, b) for a, b in zip((logits, shares, start), copies, strict=True))


@both_ways
def test_a_constant_added_to_a_row_changes_nothing(by):
    logits, shares = random_problem(50, 5)
    moved = logits + torch.arange(50.0)[:, None]
    torch.testing.assert_close(
        solve(moved, shares, by=by).assignment,
        solve(logits, shares, by=by).assignment,
        atol=2e-3,
        rtol=0,
    )


@pytest.mark.parametrize("name", ["2000x120_aligned", "5000x580_aligned"])
def test_trained_logits_are_balanced_quickly_and_a_warm_start_is_quicker(name):
    with np.load(shared_path("sinkhorn", f"{name}.npz")) as file:
        logits = torch.from_numpy(file["logits"]).float()
    num_regions, num_classes = logits.shape
    prior = class_shares(num_classes, "lognormal", sigma=0.5, num_regions=num_regions)
    shares = order_shares(prior, logits.softmax(1).sum(0), order="mass")
    cold = solve(logits, shares)
    assert cold.share_error <= 1e-3
    assert share_error(cold.assignment, shares) <= 1.01e-3
    assert cold.num_rounds <= 150
    noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(0))
    warm = solve(logits + 0.02 * logits.std() * noise, shares, start=cold.log_scalings)
    assert warm.share_error <= 1e-3
    assert warm.num_rounds <= cold.num_rounds // 4
    assert solve(logits, shares, start=cold.log_scalings).num_rounds <= 2


@both_ways
def test_warm_start_survives_a_swap_of_shares(by):
    logits, shares = random_problem(1000, 40, scale=2)
    cold = solve(logits, shares, by=by)
    swapped = shares.clone()
    swapped[[0, 1]] = shares[[1, 0]]
    warm = solve(logits, swapped, start=cold.log_scalings, by=by)
    assert warm.share_error <= 1e-3
    assert warm.num_rounds < solve(logits, swapped, by=by).num_rounds
