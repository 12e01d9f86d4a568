from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from rncdl.experiments.baselines.fitting import Fitting
from rncdl.experiments.baselines.weng import (
    MARGIN,
    CropEmbedding,
    Triplets,
    draw_others,
    place_masks,
    poincare_distance,
    to_ball,
    train_embedding,
    triplet_loss,
)


def points(seed: int, *, largest: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    directions = nn.functional.normalize(torch.randn(200, 5, generator=generator))
    return largest * torch.rand(200, 1, generator=generator) * directions


def arcosh_distance(x: Tensor, y: Tensor) -> Tensor:
    """The textbook formula in double precision."""
    x, y = x.double(), y.double()
    room = (1 - x.square().sum(1)) * (1 - y.square().sum(1))
    return torch.acosh(1 + 2 * (x - y).square().sum(1) / room)


def test_the_distance_is_that_of_the_poincare_ball():
    x, y = points(0, largest=0.99), points(1, largest=0.99)
    expected = arcosh_distance(x, y).float()
    torch.testing.assert_close(poincare_distance(x, y), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(poincare_distance(x, y), poincare_distance(y, x))


def test_near_points_keep_their_digits():
    x = points(2, largest=0.5)
    y = x + 1e-4 * points(3, largest=1)
    torch.testing.assert_close(
        poincare_distance(x, y), arcosh_distance(x, y).float(), rtol=0.02, atol=3e-6
    )


def test_tangent_vectors_go_twice_their_length():
    tangents = 3 * points(4, largest=1)
    origin = torch.zeros_like(tangents)
    torch.testing.assert_close(
        poincare_distance(origin, to_ball(tangents)), 2 * tangents.norm(dim=1), rtol=1e-3, atol=1e-4
    )


def test_extreme_embeddings_have_finite_losses_and_gradients():
    for scale in (0.0, 1e-20, 1e6):
        vectors = (scale * points(5, largest=1)).requires_grad_()
        loss = triplet_loss(vectors, vectors, vectors.flip(0), hyperbolic=True)
        loss.backward()
        assert vectors.grad is not None
        assert loss.isfinite()
        assert vectors.grad.isfinite().all()


def test_the_euclidean_loss_by_hand():
    near, far = torch.tensor([[3.0, 4], [0, 1]]), torch.tensor([[0.0, 4.9], [0, 9]])
    loss = triplet_loss(torch.zeros(2, 2), near, far, hyperbolic=False)
    assert loss.item() == pytest.approx((5 - 4.9 + MARGIN + 0) / 2, abs=1e-4)


def test_masks_are_placed_where_the_box_is():
    """A wide box: a full mask fills the middle half of the square, its left half the left."""
    boxes = torch.tensor([[10.0, 20, 50, 40]])
    full = torch.ones(1, 28, 28)
    placed = place_masks(full, boxes, 16) > 0.5
    expected = torch.zeros(1, 16, 16, dtype=torch.bool)
    expected[:, 4:12] = True
    assert torch.equal(placed, expected)
    full[:, :, 14:] = 0
    expected[:, :, 8:] = False
    assert torch.equal(place_masks(full, boxes, 16) > 0.5, expected)


def test_others_lie_in_another_image():
    images = torch.tensor([0, 0, 0, 1, 2, 2])
    for seed in range(10):
        others = draw_others(images, torch.Generator().manual_seed(seed))
        assert (images[others] != images).all()
    alone = draw_others(torch.zeros(4), torch.Generator().manual_seed(0))
    assert alone.shape == (4,)


class MeanColour(nn.Module):
    """Repeated, so that the layers after it have room."""

    def forward(self, crops: Tensor) -> Tensor:
        return crops.mean((2, 3)).repeat(1, 4)


@pytest.mark.parametrize("hyperbolic", [False, True])
def test_views_of_one_thing_end_up_nearer_than_others(hyperbolic: bool):
    """Two kinds differ in one channel; the two others, which vary more, tell nothing."""
    torch.manual_seed(0)
    embedding = CropEmbedding(MeanColour(), 12, 8)
    generator = torch.Generator().manual_seed(1)
    kind = torch.arange(32) % 2

    def crops() -> Tensor:
        values = 1.5 * torch.randn(32, 3, generator=generator)
        values[:, 0] = 2.0 * kind - 1
        return values[:, :, None, None].expand(-1, -1, 2, 2)

    def spread_within_kinds() -> float:
        """Of embeddings, as a share of their spread between kinds."""
        with torch.no_grad():
            distances = torch.cdist(embedding(crops()), embedding(crops()))
        same = kind[:, None] == kind
        return (distances[same].mean() / distances[~same].mean()).item()

    assert spread_within_kinds() > 0.6

    def triplets(start: int) -> Iterator[Triplets]:
        assert start == 0
        while True:
            yield Triplets(crops(), crops(), None, None, draw_others(kind, generator))

    fitting = Fitting("weng", torch.device("cpu"), steps=200, rate=0.05)
    train_embedding(embedding, triplets, fitting, hyperbolic=hyperbolic)
    assert spread_within_kinds() < 0.3
