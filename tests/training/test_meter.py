import math

import pytest
import torch

from rncdl.training.meter import Meter
from rncdl.training.processes import Processes

ALONE = Processes(rank=0, count=1, device=torch.device("cpu"))


def test_a_reading_gives_the_means_since_the_last_one():
    meter = Meter(ALONE)
    for loss in (1.0, 3.0):
        meter.add({"loss": torch.tensor(loss), "rounds": torch.tensor(4)})
    read = meter.read()
    assert read.means == {"loss": 2.0, "rounds": 4.0}
    assert read.bad_step is None
    assert read.steps_per_second > 0
    meter.add({"loss": torch.tensor(7.0), "rounds": torch.tensor(1)})
    assert meter.read().means["loss"] == 7.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_first_bad_step_is_named_with_what_it_said(bad):
    meter = Meter(ALONE)
    for step, value in enumerate([1.0, bad, bad, 2.0]):
        meter.add({"good": torch.tensor(0.0), "loss": torch.tensor(value)}, [f"image {step}"])
    for found in (meter.find_bad_step(), meter.read().bad_step):
        assert found is not None
        assert found.steps_ago == 2
        assert found.names == ["loss"]
        assert found.about == ["image 1"]
    assert meter.find_bad_step() is None
