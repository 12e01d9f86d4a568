import copy
from typing import Any

import pytest
import torch
from torch import nn

from rncdl.discovery.heads import (
    DiscoveryHeads,
    KnownHead,
    NovelHead,
    RowNorm,
    kept_statistics,
)

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
    (logits,) = heads(torch.randn(num_rows, F))
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
    assert kinds == [nn.Linear, RowNorm, nn.ReLU, nn.Linear]
    assert head.prototypes.shape == (5, 4)
    assert NovelHead(F, 5, projection=False).prototypes.shape == (5, F)


def test_kept_statistics_are_kept_and_rows_are_normalised_as_in_training():
    head = NovelHead(F, 5, hidden_width=8, projection_width=4).train()
    features = torch.randn(50, F) + 3
    before = copy.deepcopy(head.state_dict())
    with kept_statistics(head):
        logits = head(features)
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())
    torch.testing.assert_close(logits, head(features))
    assert head.projection[1].num_batches_tracked == 1


def test_heads_compute_in_full_precision_under_autocast():
    """Cosines over a temperature of 0.1 would otherwise lose their order."""
    heads = make_heads(500).eval()
    features = torch.randn(20, F)
    expected = heads.probabilities(features)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = heads.probabilities(features)
        foreground = heads.foreground(features.bfloat16())
    assert torch.equal(found, expected)
    assert foreground.dtype == torch.float32


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
    both = heads(features)
    assert [logits.shape[1] for logits in both] == [K + 5, K + 9]
    assert heads.num_clusters == (5, 9)
    for index, logits in enumerate(both):
        torch.testing.assert_close(logits[:, :K], heads.known(features))
        torch.testing.assert_close(heads.probabilities(features, head=index), logits.softmax(1))


def test_a_state_dict_brings_everything_back():
    heads = make_heads(5, 9)
    heads(torch.randn(20, F))  # moves the running statistics
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


def test_a_background_is_the_last_output_and_no_class():
    heads = make_heads(5, background=True).eval()
    features = torch.randn(7, F)
    logits = heads.logits(features)
    assert heads.has_background
    assert heads.num_clusters == (5,)
    assert logits.shape == (7, K + 5 + 1)
    torch.testing.assert_close(heads.probabilities(features), logits.softmax(1)[:, :-1])
    assert (heads.probabilities(features).sum(1) < 1).all()


def test_the_backgrounds_prototype_keeps_its_length_too():
    (head,) = make_heads(5, background=True).novel
    assert head.background is not None
    with torch.no_grad():
        head.background.mul_(3)
    head.normalise_prototypes()
    torch.testing.assert_close(head.background.norm(), torch.ones(()))


def test_heads_without_a_background_have_the_files_they_had():
    assert not make_heads(5).has_background
    assert not [name for name in make_heads(5).novel[0].state_dict() if "background" in name]
