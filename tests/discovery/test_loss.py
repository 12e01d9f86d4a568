import math

import pytest
import torch

from rncdl.discovery.loss import discovery_loss, supervised_loss, swapped_loss

LOGITS1 = torch.tensor([[0.0, math.log(3)], [0.0, 0.0]])
LOGITS2 = torch.tensor([[math.log(4), 0.0], [0.0, math.log(9)]])
LABELS1 = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
LABELS2 = torch.tensor([[0.25, 0.75], [0.0, 1.0]])


def test_no_regions_give_zero_with_a_gradient():
    empty = torch.empty(0, 3, requires_grad=True)
    labels = torch.empty(0, 3)
    for loss in (
        swapped_loss(empty, empty, labels1=labels, labels2=labels),
        supervised_loss(empty, torch.empty(0, dtype=torch.long)),
    ):
        assert loss.item() == 0
        loss.backward()


def test_each_view_is_taught_by_the_other():
    # Probabilities: view 1 (1/4, 3/4), (1/2, 1/2); view 2 (4/5, 1/5), (1/10, 9/10).
    view1 = -(0.25 * math.log(1 / 4) + 0.75 * math.log(3 / 4) + math.log(1 / 2)) / 2
    view2 = -(math.log(4 / 5) + 0.5 * math.log(1 / 10) + 0.5 * math.log(9 / 10)) / 2
    loss = swapped_loss(LOGITS1, LOGITS2, labels1=LABELS1, labels2=LABELS2)
    assert loss.item() == pytest.approx((view1 + view2) / 2)


def test_without_the_swap_each_view_is_taught_by_itself():
    view1 = -(math.log(1 / 4) + math.log(1 / 2)) / 2
    view2 = -(0.25 * math.log(4 / 5) + 0.75 * math.log(1 / 5) + math.log(9 / 10)) / 2
    loss = swapped_loss(LOGITS1, LOGITS2, labels1=LABELS1, labels2=LABELS2, swap=False)
    assert loss.item() == pytest.approx((view1 + view2) / 2)


def test_the_supervised_term_counts_every_output():
    logits = torch.tensor([[0.0, 0.0, math.log(6)], [0.0, 0.0, 0.0]])
    expected = (math.log(8) + math.log(3)) / 2
    assert supervised_loss(logits, torch.tensor([0, 1])).item() == pytest.approx(expected)


@pytest.mark.parametrize(("alpha", "expected"), [(0.0, 3.0), (0.5, 18.0)])
def test_the_loss_is_the_mean_over_the_heads(alpha, expected):
    swapped = [torch.tensor(2.0), torch.tensor(4.0)]
    supervised = [torch.tensor(20.0), torch.tensor(40.0)]
    assert discovery_loss(swapped, supervised, alpha=alpha).item() == expected
