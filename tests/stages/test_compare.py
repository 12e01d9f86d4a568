"""What a comparison's rows are made of."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from rncdl.baselines.published import RANDOM_HEAD_KEY
from rncdl.detector.model import Detector
from rncdl.stages.compare import _Workshop
from rncdl.stages.rows import Ground
from tests.baselines.easy import NUM_FEATURES, easy_settings


def test_random_heads_are_on_the_detector_s_device(monkeypatch: pytest.MonkeyPatch):
    """The meta device stands for any but the CPU: it refuses to mix its tensors with the CPU's."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # it has none
    settings = easy_settings("discover.heads=[5,7]")
    detector = Detector(settings.detector, 2, masks=False).to("meta")
    ground = SimpleNamespace(detector=detector, settings=settings, split=None)
    made = _Workshop(cast(Ground, ground)).train[RANDOM_HEAD_KEY](0)
    with torch.inference_mode():
        scores = [
            system.classify(torch.zeros(3, NUM_FEATURES, device="meta"))
            for system in made.systems
            if callable(system.classify)
        ]
    assert [of_head.shape for of_head in scores] == [(3, 2 + 5), (3, 2 + 7)]
    assert {of_head.device.type for of_head in scores} == {"meta"}
