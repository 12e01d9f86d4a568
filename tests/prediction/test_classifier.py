"""Who classifies what after discovery."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rncdl.config import PredictSettings, resolve_settings
from rncdl.detector.model import Detector, ImageBatch
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.errors import UserError
from rncdl.models import build_heads
from rncdl.naming.decisions import Decisions
from rncdl.prediction.classifier import (
    Classifier,
    discovery_classifier,
    for_drawings,
    known_only_classifier,
    trained_classifier,
)
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
OBJECTNESS = torch.randn(50, generator=torch.Generator().manual_seed(2))
BATCH, BOXES = ImageBatch(torch.zeros(1, 3, 8, 8), [(8, 8)]), [torch.zeros(50, 4)]


def probabilities(classifier: Classifier) -> Tensor:
    with torch.no_grad():
        return classifier.probabilities(FEATURES, batch=BATCH, boxes=BOXES)


def discovered(detector: Detector, heads: DiscoveryHeads, **predict: Any) -> Classifier:
    return discovery_classifier(detector, heads, "abc", predict=PredictSettings(**predict))


def test_the_detector_as_trained_leaves_the_background_its_share(detector):
    classifier = trained_classifier(detector, "abc")
    found = probabilities(classifier)
    torch.testing.assert_close(found, detector.known_head(FEATURES).softmax(1)[:, :K])
    assert found.sum(1).min() < 0.5
    assert classifier.num_novel == 0


def test_by_default_the_discovered_heads_classify_everything(detector, heads):
    classifier = discovered(detector, heads, score="softmax")
    found = probabilities(classifier)
    assert found.shape == (50, K + N)
    torch.testing.assert_close(found.sum(1), torch.ones(50))
    torch.testing.assert_close(found, heads.probabilities(FEATURES))
    assert classifier.names[:4] == ("a", "b", "c", "novel_0000")
    assert len(classifier.names) == K + N


@pytest.mark.parametrize("score", ["softmax", "foreground"])
def test_the_trained_classifier_may_keep_the_known_classes(detector, heads, score):
    mixed = probabilities(discovered(detector, heads, score=score, known="trained"))
    torch.testing.assert_close(mixed[:, :K], detector.known_head(FEATURES).softmax(1)[:, :K])
    plain = probabilities(discovered(detector, heads, score=score))
    torch.testing.assert_close(mixed[:, K:], plain[:, K:])
    assert not torch.allclose(mixed[:, :K], plain[:, :K])


def test_scores_are_weighed_as_the_settings_say(detector, heads):
    plain = probabilities(discovered(detector, heads, score="softmax"))
    by_foreground = probabilities(discovered(detector, heads, score="foreground"))
    torch.testing.assert_close(by_foreground, plain * heads.foreground(FEATURES)[:, None])
    weighed = discovered(detector, heads, score="objectness")
    torch.testing.assert_close(
        weighed.scores(plain, OBJECTNESS), plain * OBJECTNESS.sigmoid()[:, None]
    )
    assert discovered(detector, heads, score="softmax").scores(plain, OBJECTNESS) is plain


@pytest.mark.parametrize("score", ["softmax", "foreground", "objectness"])
def test_drawings_are_weighed_by_all_that_tells_objects_from_the_rest(detector, heads, score):
    drawn = for_drawings(discovered(detector, heads, score=score))
    plain = probabilities(discovered(detector, heads, score="softmax"))
    found = probabilities(drawn)
    torch.testing.assert_close(found, plain * heads.foreground(FEATURES)[:, None])
    assert drawn.by_objectness
    trained = trained_classifier(detector, "abc")
    assert for_drawings(trained) is trained


def test_drawings_leave_what_is_weighed_by_fit_or_knows_the_background(detector, heads):
    detector.localiser = torch.nn.Linear(32, 1)
    by_fit = discovered(detector, heads, score="localisation")
    assert for_drawings(by_fit) is by_fit
    for novel in heads.novel:
        novel.background = torch.nn.Parameter(torch.ones(1, novel.prototypes.shape[1]))
    with_background = discovered(detector, heads, score="objectness")
    assert for_drawings(with_background) is with_background


def test_localisation_ranks_by_objectness_and_fit(detector, heads):
    detector.localiser = torch.nn.Linear(32, 1)
    classifier = discovered(detector, heads, score="localisation")
    fit = torch.rand(50, generator=torch.Generator().manual_seed(3))
    found = probabilities(classifier)
    expected = found * (OBJECTNESS.sigmoid() * fit).sqrt()[:, None]
    torch.testing.assert_close(classifier.scores(found, OBJECTNESS, fit), expected)
    for score, weight in (("softmax", torch.ones(50)), ("objectness", OBJECTNESS.sigmoid())):
        other = discovered(detector, heads, score=score)
        torch.testing.assert_close(other.scores(found, OBJECTNESS, fit), found * weight[:, None])


def test_localisation_that_was_never_learned_is_told_of(detector, heads):
    with pytest.raises(UserError, match=r"detector\.localisation=true"):
        discovered(detector, heads, score="localisation")


def test_the_known_classes_alone_follow_the_same_choice(detector, heads):
    by_heads, as_trained = (
        probabilities(
            known_only_classifier(
                detector,
                heads,
                "abc",
                predict=PredictSettings.model_validate({"score": "softmax", "known": known}),
            )
        )
        for known in ("discovered", "trained")
    )
    torch.testing.assert_close(by_heads, heads.known(FEATURES).softmax(1))
    # Without the background's row: the same as its probability shared out among the others.
    torch.testing.assert_close(as_trained, detector.known_head(FEATURES)[:, :K].softmax(1))


def test_limits_and_names_share_what_was_computed(detector, heads):
    whole = discovered(detector, heads, score="softmax")
    wanted = torch.arange(K + N) % 2 == 0
    limited = whole.limited_to(wanted)
    assert limited.source == whole.source
    assert limited.wanted is not None
    assert torch.equal(limited.wanted, wanted)
    renamed = whole.renamed([f"n{output}" for output in range(K + N)])
    assert renamed.names[-1] == f"n{K + N - 1}"
    with pytest.raises(ValueError, match="1 names for 11 outputs"):
        whole.renamed(["one"])


def test_decisions_join_what_the_heads_find(detector, heads):
    raw = discovered(detector, heads, score="softmax")
    decided = raw.decided(Decisions(names={1: "cup", 4: "cup", 2: "b"}, ignored=frozenset({0})))
    assert decided.names[:4] == ("a", "b", "c", "cup")
    assert decided.clusters[:4] == ((), (2,), (), (1, 4))
    plain, joined = probabilities(raw), probabilities(decided)
    torch.testing.assert_close(joined[:, 3], plain[:, K + 1] + plain[:, K + 4])
    torch.testing.assert_close(joined[:, 1], plain[:, 1] + plain[:, K + 2])
    torch.testing.assert_close(joined.sum(1), 1 - plain[:, K])
    assert decided.source != raw.source


def test_without_a_decision_nothing_changes(detector, heads):
    raw = discovered(detector, heads)
    assert raw.decided(None) is raw
    assert raw.decided(Decisions(looked_at=frozenset({1}))) is raw
