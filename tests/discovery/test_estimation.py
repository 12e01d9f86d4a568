import pytest
import torch
from torch import Tensor

from rncdl.discovery.estimation import Point, estimate_clusters, read_curve
from rncdl.errors import UserError

NUM_KNOWN, DIMENSIONS = 6, 32


def objects(num_new: int, per_class: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    """Compact classes far apart: unlabelled objects of all, labelled ones of the known."""
    generator = torch.Generator().manual_seed(num_new)
    centres = torch.randn(NUM_KNOWN + num_new, DIMENSIONS, generator=generator)
    classes = torch.arange((NUM_KNOWN + num_new) * per_class) % (NUM_KNOWN + num_new)
    labels = torch.arange(NUM_KNOWN * per_class) % NUM_KNOWN
    features, labelled = (
        torch.nn.functional.normalize(
            centres[own] + 0.25 * torch.randn(len(own), DIMENSIONS, generator=generator)
        )
        for own in (classes, labels)
    )
    return features, labelled, labels


def test_nothing_labelled_is_no_yardstick():
    features, labelled, labels = objects(3)
    with pytest.raises(UserError, match="fewer than two"):
        estimate_clusters(features, labelled[:0], labels[:0], num_known=NUM_KNOWN, seed=0)


def test_a_handful_of_objects_is_too_few():
    _, labelled, labels = objects(3)
    with pytest.raises(UserError, match="0 objects are too few"):
        estimate_clusters(labelled[:0], labelled[:12], labels[:12], num_known=6, seed=0)


@pytest.mark.parametrize("num_new", [5, 15, 40])
def test_the_estimate_is_near_the_truth(num_new: int):
    features, labelled, labels = objects(num_new)
    found = estimate_clusters(features, labelled, labels, num_known=NUM_KNOWN, seed=0)
    assert num_new / 1.5 <= found.num_clusters <= 1.5 * num_new
    assert found.low <= found.num_clusters <= found.high


def test_the_end_of_the_plateau_is_read():
    accuracies = {4: 0.9, 6: 0.91, 8: 0.9, 12: 0.89, 16: 0.7, 20: 0.5}
    found = read_curve([Point(n, accuracy, 0.03) for n, accuracy in accuracies.items()])
    assert (found.low, found.num_clusters, found.high) == (6, 12, 12)
    assert found.with_room == 18
    assert "About 12 new classes (between 6 and 12)" in found.line()
