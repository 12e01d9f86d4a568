import pytest
import torch
from torch import Generator, Tensor

from rncdl.discovery.distillation import distilled_labels, sharpness_at


def some_logits() -> Tensor:
    return 2 * torch.randn(50, 7, generator=Generator().manual_seed(0))


def test_no_regions_have_no_labels():
    assert distilled_labels(torch.empty(0, 7), sharpness=2.5).shape == (0, 7)


@pytest.mark.parametrize("sharpness", [1.0, 1.4, 2.5])
def test_labels_are_a_power_of_the_probabilities(sharpness):
    powers = some_logits().double().softmax(1) ** sharpness
    found = distilled_labels(some_logits(), sharpness=sharpness)
    torch.testing.assert_close(found.double(), powers / powers.sum(1, keepdim=True))


def test_sharper_labels_are_surer_of_the_same_class():
    logits = some_logits()
    labels = [distilled_labels(logits, sharpness=sharpness) for sharpness in (1.0, 1.4, 2.5, 20.0)]
    assert all(torch.equal(one.argmax(1), logits.argmax(1)) for one in labels)
    entropies = torch.stack([torch.special.entr(one).sum(1) for one in labels])
    assert (entropies.diff(dim=0) < 0).all()


def test_a_logit_of_any_size_gives_a_label():
    labels = distilled_labels(torch.tensor([[1e4, 0.0, -1e4]]), sharpness=2.5)
    assert labels.tolist() == [[1, 0, 0]]


def test_temperatures_fall_in_a_line_over_the_first_part_of_the_steps():
    temperatures = [0.1 / sharpness_at(step, num_steps=400) for step in (0, 30, 60, 61, 399)]
    assert temperatures == pytest.approx([0.07, 0.055, 0.04, 0.04, 0.04])
    assert 0.1 / sharpness_at(0, num_steps=1) == pytest.approx(0.07)
