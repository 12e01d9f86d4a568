import itertools

import pytest
import torch

from rncdl.config import Settings, TrainSettings, change
from rncdl.training.schedule import Schedule, set_rate, shorten_schedule

PAPER = Schedule(15_000, peak=1e-2, start=1e-5, end=1e-3, warmup_steps=3000, shape="cosine")


def test_cosine_passes_through_the_papers_three_points():
    rates = [PAPER.rate(step) for step in range(15_000)]
    assert rates[0] == pytest.approx(1e-5)
    assert rates[3000] == max(rates) == pytest.approx(1e-2)
    assert rates[-1] == min(rates[3000:]) == pytest.approx(1e-3)
    assert rates[1500] == pytest.approx((1e-5 + 1e-2) / 2)
    assert all(b < a for a, b in itertools.pairwise(rates[3000:]))


def test_steps_divide_by_ten_where_told():
    rate = Schedule(
        180_000,
        peak=0.01,
        start=0.001,
        warmup_steps=1000,
        shape="steps",
        drop_at=(120_000, 160_000),
    ).rate
    assert rate(0) == pytest.approx(1e-3)
    assert rate(119_999) == pytest.approx(1e-2)
    assert rate(120_000) == pytest.approx(1e-3)
    assert rate(179_999) == pytest.approx(1e-4)


@pytest.mark.parametrize("shape", ["steps", "cosine"])
def test_a_single_step_without_warmup_uses_the_peak(shape):
    assert Schedule(1, peak=0.5, start=0.1, warmup_steps=0, shape=shape).rate(0) == 0.5


def test_set_rate_reaches_every_group():
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": [w]} for w in weights], lr=0.0)
    set_rate(optimizer, 0.25)
    for weight in weights:
        weight.grad = torch.ones(1)
    optimizer.step()
    assert [w.item() for w in weights] == [-0.25, -0.25]


def test_a_shortened_schedule_keeps_its_proportions():
    train = TrainSettings(steps=1000, warmup_steps=100, drop_at=(600, 900))
    shorter = change(Settings(), train=shorten_schedule(train, 100)).train
    assert (shorter.steps, shorter.warmup_steps, shorter.drop_at) == (100, 10, (60, 90))
