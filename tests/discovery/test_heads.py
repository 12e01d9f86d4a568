import copy
from typing import Any

import pytest
import torch
from torch import nn

from rncdl.discovery.heads import DiscoveryHeads, KnownHead, NovelHead

F, K = 6, 3


def make_heads(*num_clusters: int, **options: Any) -> DiscoveryHeads:
    torch.manual_seed(0)
    known = KnownHead.from_classifier(torch.randn(K + 1, F), torch.randn(K + 1))
    sizes: dict[str, Any] = {"hidden_width": 8, "projection_width": 4} | options
    return DiscoveryHeads(known, [NovelHead(F, n, **sizes) for n in num_clusters])


@pytest.mark.parametrize("num_rows", [0, 1])
@pytest.mark.parametrize("training", [True, False])
def test_few_rows_pass_through(num_rows, training):
    heads = make_heads(5).train(training)
    (logits,) = heads.logits(torch.randn(num_rows, F))
    assert logits.shape == (num_rows, K + 5)
    logits.sum().backward()
    assert logits.isfinite().all()


def test_the_known_head_is_the_classifier_without_its_background_row():
    classifier = nn.Linear(F, K + 1)
    head = KnownHead.from_classifier(classifier.weight, classifier.bias)
    features = torch.randn(7, F)
    logits = classifier(features)
    torch.testing.assert_close(head(features), logits[:, :K])
    torch.testing.assert_close(head.foreground(features), 1 - logits.softmax(1)[:, K])
    assert {name for name, _ in head.named_parameters()} == {"linear.weight", "linear.bias"}


def test_foreground_is_finite_for_huge_features():
    head = make_heads(2).known
    assert head.foreground(1e4 * torch.randn(50, F)).isfinite().all()


def test_cosine_logits_are_cosines_over_the_temperature():
    head = NovelHead(F, 5, projection=False, temperature=0.1)
    features = torch.randn(4, F)
    cosines = torch.cosine_similarity(features[:, None], head.prototypes[None], dim=2)
    torch.testing.assert_close(head(features), 10 * cosines)
    torch.testing.assert_close(head(3 * features), head(features))


def test_linear_logits_are_inner_products_plus_a_bias():
    head = NovelHead(F, 5, projection=False, classifier="linear")
    assert head.bias is not None
    nn.init.normal_(head.bias)
    features = torch.randn(4, F)
    torch.testing.assert_close(head(features), features @ head.prototypes.T + head.bias)


def test_the_projection_is_an_mlp_with_one_hidden_layer():
    head = NovelHead(F, 5, hidden_width=8, projection_width=4)
    kinds = [type(layer) for layer in head.projection]
    assert kinds == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]
    assert head.prototypes.shape == (5, 4)
    assert NovelHead(F, 5, projection=False).prototypes.shape == (5, F)


@pytest.mark.parametrize("classifier", ["cosine", "linear"])
def test_logits_put_in_place_are_the_same(classifier):
    head = make_heads(5, classifier=classifier).novel[0]
    embeddings = torch.randn(9, 4)
    wide = torch.zeros(9, K + 5)
    with torch.no_grad():
        head.classify(embeddings, out=wide[:, K:])
        torch.testing.assert_close(wide[:, K:], head.classify(embeddings))
    assert (wide[:, :K] == 0).all()


def test_joint_embeddings_are_those_of_training_without_moving_the_statistics():
    head = NovelHead(F, 5, hidden_width=8, projection_width=4)
    for parameter in head.projection[1].parameters():
        nn.init.normal_(parameter)
    features = torch.randn(2500, F) + 3
    before = copy.deepcopy(head.state_dict())
    with torch.no_grad():
        embeddings, moments = head.eval().embed_jointly(features)
        some, same_moments = head.embed_jointly(features[:3], moments=moments)
    assert same_moments is moments
    torch.testing.assert_close(some, embeddings[:3], atol=1e-5, rtol=1e-4)
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())
    torch.testing.assert_close(embeddings, head.train().projection(features), atol=1e-5, rtol=1e-4)


def test_prototypes_are_renormalised_for_cosine_alone():
    for classifier, expected in (("cosine", 1.0), ("linear", 3.0)):
        head = make_heads(5, classifier=classifier).novel[0]
        with torch.no_grad():
            head.prototypes.mul_(3)
        head.normalise_prototypes()
        torch.testing.assert_close(head.prototypes.norm(dim=1), torch.full((5,), expected))


def test_each_head_is_usable_alone():
    heads = make_heads(5, 9).eval()
    features = torch.randn(4, F)
    both = heads.logits(features)
    assert [logits.shape[1] for logits in both] == [K + 5, K + 9]
    assert heads.num_clusters == (5, 9)
    for index, logits in enumerate(both):
        torch.testing.assert_close(logits[:, :K], heads.known(features))
        torch.testing.assert_close(heads.probabilities(features, head=index), logits.softmax(1))


def test_a_state_dict_brings_everything_back():
    heads = make_heads(5, 9)
    heads.logits(torch.randn(20, F))  # moves the running statistics
    restored = make_heads(5, 9)
    for parameter in restored.parameters():
        nn.init.zeros_(parameter)
    restored.known.background_weight.zero_()
    restored.load_state_dict(heads.state_dict())
    features = torch.randn(4, F)
    assert torch.equal(
        restored.eval().probabilities(features, 1), heads.eval().probabilities(features, 1)
    )
    assert torch.equal(restored.foreground(features), heads.foreground(features))
