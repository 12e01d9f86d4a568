import pytest
import torch
from torch.nn import functional

from rncdl.discovery.heads import KnownHead
from rncdl.experiments.baselines.prototypes import PrototypeClassifier, inverse_squared_scores


def known_head(background_bias: float) -> KnownHead:
    """Two known classes that look at nothing, and a background that has its bias alone."""
    return KnownHead.from_classifier(torch.zeros(3, 2), torch.tensor([0.0, 0.0, background_bias]))


def test_no_regions_no_scores():
    assert inverse_squared_scores(torch.zeros(0, 2), torch.eye(2)).shape == (0, 2)


def test_scores_by_hand():
    """Squared distances 1, 4 and 2: half of them are 1/2, 2, 1; inverse squares 4, 1/4, 1."""
    features = torch.tensor([[0.0, 0.0]])
    prototypes = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    expected = torch.tensor([[4.0, 0.25, 1.0]]) / 5.25
    torch.testing.assert_close(inverse_squared_scores(features, prototypes), expected)


def test_a_region_on_a_prototype_is_certain_and_finite():
    scores = inverse_squared_scores(torch.eye(2), torch.tensor([[1.0, 0.0], [0.0, -1.0]]))
    assert scores[0].tolist() == pytest.approx([1, 0], abs=1e-6)


def test_features_are_normalised_and_the_background_takes_its_share():
    prototypes = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    features = torch.tensor([[30.0, 10.0], [0.02, 0.5]])
    scores = inverse_squared_scores(functional.normalize(features), prototypes)
    objects = PrototypeClassifier(prototypes, known_head(-20))(features)
    torch.testing.assert_close(objects, scores, rtol=1e-4, atol=1e-6)
    background = PrototypeClassifier(prototypes, known_head(5))(features)
    share = 2 / (2 + torch.tensor(5.0).exp())
    torch.testing.assert_close(background, scores * share, rtol=1e-4, atol=1e-6)
    assert background.sum(1).max() < 0.02
