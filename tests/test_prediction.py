"""Who classifies what after discovery."""

import pytest
import torch

from rncdl.config import PredictSettings, resolve_settings
from rncdl.detector.model import Detector
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.prediction import (
    classify_known_only,
    classify_with_head,
    known_classifier,
)
from rncdl.stages.loading import build_heads
from tests.pipeline.tiny import SETTINGS

K, N = 3, 8


@pytest.fixture
def detector() -> Detector:
    torch.manual_seed(0)
    made = Detector(resolve_settings(overrides=SETTINGS).detector, K, masks=False)
    torch.nn.init.normal_(made.known_head.weight)
    return made.eval()


@pytest.fixture
def heads(detector: Detector) -> DiscoveryHeads:
    made = build_heads(detector, resolve_settings(overrides=SETTINGS).discover)
    torch.nn.init.normal_(made.known.linear.weight)  # as if discovery had moved it
    return made.eval()


FEATURES = torch.randn(50, 32, generator=torch.Generator().manual_seed(1))


def test_by_default_the_discovered_heads_classify_everything(detector, heads):
    assert known_classifier(detector, PredictSettings()) is None
    probabilities = classify_with_head(heads, 0, score="softmax")(FEATURES)
    assert probabilities.shape == (50, K + N)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(50))


@pytest.mark.parametrize("score", ["softmax", "foreground"])
def test_the_trained_classifier_may_keep_the_known_classes(detector, heads, score):
    known = known_classifier(detector, PredictSettings(known="trained"))
    mixed = classify_with_head(heads, 0, score=score, known=known)(FEATURES)
    logits = detector.known_head(FEATURES)
    torch.testing.assert_close(mixed[:, :K], logits.softmax(1)[:, :K])
    plain = classify_with_head(heads, 0, score=score)(FEATURES)
    torch.testing.assert_close(mixed[:, K:], plain[:, K:])
    assert not torch.allclose(mixed[:, :K], plain[:, :K])


def test_the_known_classes_alone_follow_the_same_choice(detector, heads):
    by_heads = classify_known_only(heads, score="softmax")(FEATURES)
    torch.testing.assert_close(by_heads.sum(1), torch.ones(50))
    known = known_classifier(detector, PredictSettings(known="trained"))
    as_trained = classify_known_only(heads, score="softmax", known=known)(FEATURES)
    # Without the background's row: the same as its probability shared out among the others.
    torch.testing.assert_close(as_trained, detector.known_head(FEATURES)[:, :K].softmax(1))
