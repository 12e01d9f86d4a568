import math

import pytest
import torch

from rncdl.experiments.baselines.orca import (
    OrcaHead,
    choose_partners,
    evenness_loss,
    margin_loss,
    mean_uncertainty,
    pairwise_loss,
)


def partners(features: torch.Tensor, labels: list[int], seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    found = choose_partners(features, torch.tensor(labels, dtype=torch.int64), generator=generator)
    return found.tolist()


@pytest.mark.parametrize(("uncertainty", "margin"), [(0.0, 0.0), (0.3, 3.0), (0.9, 5.0)])
def test_the_margin_helps_the_true_class(uncertainty: float, margin: float):
    """By hand: logits 2, 5, -1, the first one true; never more than half of ten."""
    logits, labels = torch.tensor([[2.0, 5.0, -1.0]]), torch.tensor([0])
    loss = margin_loss(logits, labels, uncertainty=torch.tensor(uncertainty))
    raised = math.exp(2 + margin)
    expected = -math.log(raised / (raised + math.exp(5) + math.exp(-1)))
    assert loss.item() == pytest.approx(expected, abs=1e-5)


def test_uncertainty_is_what_the_best_class_leaves():
    probabilities = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.0, 0.9]])
    assert mean_uncertainty(probabilities).item() == pytest.approx(1 - 0.8)


def test_the_uncertainty_moves_a_tenth_of_the_way_and_stays_without_regions():
    head = OrcaHead(3, 2)
    head.note_uncertainty(torch.tensor([[0.7, 0.3]]))
    assert head.uncertainty.item() == pytest.approx(0.9 * 1 + 0.1 * 0.3)
    head.note_uncertainty(torch.zeros(0, 2))
    assert head.uncertainty.item() == pytest.approx(0.93)
    restored = OrcaHead(3, 2)
    restored.load_state_dict(head.state_dict())
    assert torch.equal(restored.uncertainty, head.uncertainty)


def test_without_labelled_regions_nothing_is_lost_or_not_finite():
    none = torch.zeros(0, dtype=torch.int64)
    assert margin_loss(torch.zeros(0, 3), none, uncertainty=torch.tensor(0.5)) == 0


def test_labelled_regions_find_their_class_and_the_others_their_neighbour():
    features = torch.tensor([[1.0, 0], [0, 1], [1, 0.1], [0.9, -0.1], [0.1, 5], [-1, 0.01]])
    for seed in range(5):
        found = partners(features, [0, 1, 0], seed)
        assert found[:3] == [2, 1, 0]  # the only one of class 1 has none but itself
        assert found[3:] == [0, 1, 1]  # by direction, not by length, and never itself


def test_partners_of_a_class_are_drawn_from_all_of_it():
    found = {partners(torch.eye(4), [2, 2, 2, 2], seed)[0] for seed in range(30)}
    assert found == {1, 2, 3}


def test_without_labels_all_go_by_neighbours():
    assert partners(torch.tensor([[1.0, 0], [1, 0.1], [0, 1]]), []) == [1, 0, 1]


def test_losses_by_hand():
    first = torch.tensor([[0.5, 0.5], [0.9, 0.1]])
    second = torch.tensor([[0.2, 0.8], [1.0, 0.0]])
    expected = -(math.log(0.5) + math.log(0.9)) / 2
    assert pairwise_loss(first, second).item() == pytest.approx(expected, abs=1e-6)
    assert evenness_loss(torch.full((3, 7), 1 / 7)).item() == pytest.approx(0, abs=1e-6)
    one_class = torch.tensor([[1.0, 0, 0, 0]])
    assert evenness_loss(one_class).item() == pytest.approx(math.log(4), abs=1e-5)


def test_partners_without_a_common_class_cost_a_finite_amount():
    apart = torch.eye(2)
    probabilities = apart.clone().requires_grad_()
    loss = pairwise_loss(probabilities, apart.flip(0))
    loss.backward()
    assert probabilities.grad is not None
    assert loss.isfinite()
    assert probabilities.grad.isfinite().all()
