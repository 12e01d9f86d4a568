import pytest
import torch
from torch import Tensor
from torch.nn import functional

from rncdl.discovery.heads import NovelHead
from rncdl.experiments.baselines.uno import UnoHeads, pseudo_labels, unified_loss


def logits_of(seed: int, rows: int, classes: int) -> Tensor:
    return 10 * torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed)).tanh()


def plain_sinkhorn(logits: Tensor, sharpness: float) -> Tensor:
    """Equal shares by many plain rounds in float64."""
    labels = (sharpness * logits.double()).softmax(1)
    for _ in range(2000):
        labels = labels / labels.sum(0) / labels.shape[1]
        labels = labels / labels.sum(1, keepdim=True) / labels.shape[0]
    return (labels * labels.shape[0]).float()


def test_every_class_gets_the_same_share_known_ones_too():
    labels = pseudo_labels(logits_of(0, 120, 6), sharpness=2.0)
    torch.testing.assert_close(labels.sum(1), torch.ones(120))
    assert (labels.sum(0) / 120 - 1 / 6).abs().sum() <= 0.011
    assert (labels.argmax(1) < 2).any()  # an unlabelled region may be of a known class


def test_pseudo_labels_equal_plain_sinkhorn():
    logits = logits_of(1, 60, 5)
    found = pseudo_labels(logits, sharpness=0.5)
    assert (found - plain_sinkhorn(logits, 0.5)).abs().max() < 0.02


def test_no_regions_no_labels():
    assert pseudo_labels(torch.zeros(0, 4), sharpness=2.0).shape == (0, 4)


def test_the_loss_is_a_mean_over_all_regions():
    """By hand: 2 labelled and 6 unlabelled regions, each view taught by the other's labels."""
    labelled, view1, view2 = logits_of(2, 2, 4), logits_of(3, 6, 4), logits_of(4, 6, 4)
    labels = torch.tensor([1, 3])
    found = unified_loss(labelled, view1, view2, labels=labels, sharpness=2.0)
    teach1, teach2 = pseudo_labels(view2, sharpness=2.0), pseudo_labels(view1, sharpness=2.0)
    of_view1 = -(teach1 * functional.log_softmax(view1, 1)).sum(1)
    of_view2 = -(teach2 * functional.log_softmax(view2, 1)).sum(1)
    of_labelled = -functional.log_softmax(labelled, 1)[[0, 1], labels]
    expected = (of_labelled.sum() + (of_view1 + of_view2).sum() / 2) / 8
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def uno_heads() -> UnoHeads:
    """2 known classes, 2 heads of 3 clusters, 2 of 12, on features of width 5."""
    clustering, overclustering = (
        [NovelHead(5, size, hidden_width=7, projection_width=6) for _ in range(2)]
        for size in (3, 12)
    )
    return UnoHeads(NovelHead(5, 2, projection=False), clustering, overclustering).eval()


def test_heads_share_the_known_classes_and_overcluster():
    heads = uno_heads()
    features = torch.randn(9, 5, generator=torch.Generator().manual_seed(0))
    logits = heads(features)
    assert [of_head.shape for of_head in logits] == [(9, 5), (9, 5), (9, 14), (9, 14)]
    assert all(torch.equal(of_head[:, :2], logits[0][:, :2]) for of_head in logits)
    assert logits[0].abs().max() <= 10 + 1e-4  # cosines over the temperature


@pytest.mark.parametrize("best", [0, 1])
def test_the_clustering_head_with_the_least_loss_classifies(best: int):
    heads = uno_heads()
    features = torch.randn(9, 5, generator=torch.Generator().manual_seed(0))
    losses = torch.tensor([2.0, 2.0, 0.0, 0.0])  # those that over-cluster do not count
    losses[best] = 1
    for _ in range(3):
        heads.note_losses(losses)
    expected = heads(features)[best].softmax(1)
    torch.testing.assert_close(heads.best()(features), expected)
    restored = uno_heads()
    restored.load_state_dict(heads.state_dict())
    torch.testing.assert_close(restored.best()(features), expected)
