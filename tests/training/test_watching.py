"""A training that does not learn is noticed in its second half, once."""

import pytest

from rncdl.training.watching import TrainingWatch


def losses_warned_of(losses: list[float]) -> list[int]:
    """The steps, of 10 each, at which a warning comes; the first 20 are the warm-up."""
    watch = TrainingWatch(num_steps=10 * len(losses), warmup_steps=20)
    steps = range(10, 10 * len(losses) + 1, 10)
    return [s for s, loss in zip(steps, losses, strict=True) if watch.see_class_loss(s, loss)]


def test_nothing_is_said_of_a_loss_that_falls_or_of_few_readings():
    assert losses_warned_of([]) == []
    assert losses_warned_of([2.0] * 8) == []
    assert losses_warned_of([2.0 * 0.97**step for step in range(40)]) == []


@pytest.mark.parametrize("losses", [[2.0] * 40, [2.0 + 0.1 * step for step in range(40)]])
def test_a_loss_that_stays_or_rises_is_warned_of_once_in_the_middle(losses: list[float]):
    assert losses_warned_of(losses) == [200]


def test_a_loss_that_fell_in_the_warm_up_alone_is_warned_of():
    assert losses_warned_of([9.0, 5.0] + [2.0] * 38) == [200]


def test_known_ap_that_stays_at_nothing_is_warned_of_in_the_second_half():
    watch = TrainingWatch(num_steps=100, warmup_steps=0)
    assert watch.see_known_ap(25, 0.0) is None
    warning = watch.see_known_ap(50, 0.004)
    assert warning is not None
    assert "AP50 is 0.4 on --val at step 50" in warning
    assert watch.see_known_ap(75, 0.0) is None
    assert TrainingWatch(num_steps=100, warmup_steps=0).see_known_ap(100, 0.02) is None
