import math

import pytest

from rncdl.discovery.divergence import has_collapsed, has_exploded


@pytest.mark.parametrize(("in_use", "expected"), [(0, True), (3.9, True), (4, False), (40, False)])
def test_a_tenth_of_the_clusters_must_be_in_use(in_use: float, expected: bool):
    assert has_collapsed(in_use, 40) is expected


@pytest.mark.parametrize("loss", [math.nan, math.inf, 1e6, 10.1 * math.log(48)])
def test_a_loss_far_above_guessing_has_exploded(loss: float):
    assert has_exploded(loss, 48)


@pytest.mark.parametrize("loss", [0.0, math.log(48), 9.9 * math.log(48)])
def test_a_loss_near_guessing_has_not(loss: float):
    assert not has_exploded(loss, 48)
