import math

import pytest
import torch

from rncdl.discovery.loss import balance_loss, discovery_loss, supervised_loss, swapped_loss

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
        balance_loss(empty, mean=torch.zeros(3), shares=torch.full((3,), 1 / 3)),
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


SHARES = torch.tensor([0.5, 0.3, 0.2])


def test_the_balance_term_is_the_divergence_from_the_shares():
    mean = torch.tensor([0.25, 0.6, 0.15])
    expected = 0.25 * math.log(0.5) + 0.6 * math.log(2) + 0.15 * math.log(0.75)
    loss = balance_loss(torch.randn(4, 3), mean=mean, shares=SHARES)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert balance_loss(torch.randn(4, 3), mean=SHARES, shares=SHARES).item() == pytest.approx(
        0, abs=1e-6
    )


def test_the_balance_term_moves_the_batch_as_if_the_memory_moved_with_it():
    """With a memory of rows like the batch's, the gradient is that of the rows altogether."""
    batch = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    mean = torch.cat([batch] * 5).softmax(1).mean(0)
    (expected,) = torch.autograd.grad(
        torch.nn.functional.kl_div(SHARES.double().log(), mean, reduction="sum"), batch
    )
    loss = balance_loss(batch, mean=mean.detach(), shares=SHARES.double())
    (found,) = torch.autograd.grad(loss, batch)
    torch.testing.assert_close(found, expected)


def test_the_balance_term_pulls_the_mean_to_the_shares():
    logits = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    for _ in range(300):
        mean = logits.softmax(1).mean(0).detach()
        (gradient,) = torch.autograd.grad(balance_loss(logits, mean=mean, shares=SHARES), logits)
        logits = (logits - 20 * gradient).detach().requires_grad_()
    torch.testing.assert_close(logits.softmax(1).mean(0), SHARES, atol=1e-3, rtol=0)


def test_a_class_without_a_region_leaves_the_gradient_finite():
    logits = torch.tensor([[0.0, 0.0, -500.0]], requires_grad=True)
    mean = logits.softmax(1).mean(0).detach()
    loss = balance_loss(logits, mean=mean, shares=SHARES)
    loss.backward()
    assert loss.item() == pytest.approx(0.5 * math.log(1 / 0.6), rel=1e-5)
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
