"""What the rows of a comparison are made of."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from rncdl.classes import ClassSplit
from rncdl.detector.model import Detector, ImageBatch
from rncdl.experiments.published import RANDOM_HEAD_KEY
from rncdl.experiments.setup import Setup
from rncdl.experiments.systems import SYSTEMS
from tests.experiments.baselines.easy import NUM_FEATURES, easy_settings


def test_random_heads_are_on_the_detector_s_device(monkeypatch: pytest.MonkeyPatch):
    """The meta device stands for any but the CPU: it refuses to mix its tensors with the CPU's."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # it has none
    settings = easy_settings("discover.heads=[5,7]")
    detector = Detector(settings.detector, 2, masks=False).to("meta")
    setup = SimpleNamespace(detector=detector, settings=settings, split=ClassSplit(("a", "b")))
    made = SYSTEMS[RANDOM_HEAD_KEY](cast(Setup, setup), 0)
    batch = ImageBatch(torch.zeros(1, 3, 8, 8, device="meta"), [(8, 8)])
    with torch.inference_mode():
        scores = [
            classifier.probabilities(
                torch.zeros(3, NUM_FEATURES, device="meta"),
                batch=batch,
                boxes=[torch.zeros(3, 4, device="meta")],
            )
            for classifier in made.classifiers.values()
        ]
    assert [of_head.shape for of_head in scores] == [(3, 2 + 5), (3, 2 + 7)]
    assert {of_head.device.type for of_head in scores} == {"meta"}
