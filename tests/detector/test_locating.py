import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.ops import box_iou

from rncdl.detector.locating import Located, keep_apart, likelihood


def test_likelihood_is_finite_and_grows_with_objectness_and_fit():
    objectness = torch.tensor([-5.0, -1.0, 0.0, 4.0])
    alone = likelihood(objectness, None)
    torch.testing.assert_close(alone, 1 / (1 + torch.exp(-objectness)))
    fits = torch.tensor([0.2, 0.8])
    found = torch.stack([likelihood(objectness, fit.expand(4)) for fit in fits])
    assert found.isfinite().all()
    assert (found.diff(dim=0) > 0).all()
    assert (found.diff(dim=1) > 0).all()
    torch.testing.assert_close(found**2, fits[:, None] * alone)


def made_up(counts: list[int], seed: int, *, with_fit: bool) -> Located:
    """Regions of some images; a region's feature is its number among all."""
    draw = torch.Generator().manual_seed(seed)
    corners = [torch.rand(count, 2, generator=draw) * 40 for count in counts]
    sides = [torch.rand(count, 2, generator=draw) * 30 + 1 for count in counts]
    total = sum(counts)
    boxes = [torch.cat([low, low + side], 1) for low, side in zip(corners, sides, strict=True)]
    return Located(
        boxes,
        torch.arange(total)[:, None].float(),
        [torch.randn(count, generator=draw) for count in counts],
        torch.rand(total, generator=draw) if with_fit else None,
    )


@given(
    counts=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    overlap=st.sampled_from([0.0, 0.3, 0.5, 0.9]),
    seed=st.integers(0, 1000),
    with_fit=st.booleans(),
)
def test_regions_are_kept_apart_and_each_dropped_one_lies_on_a_likelier_one(
    counts: list[int], overlap: float, seed: int, with_fit: bool
) -> None:
    located = made_up(counts, seed, with_fit=with_fit)
    kept = keep_apart(located, overlap=overlap)
    likely = likelihood(torch.cat(located.objectness), located.localisation)
    numbers = kept.features[:, 0].long().split([len(own) for own in kept.boxes])
    everything, start = torch.cat(located.boxes), 0
    for count, boxes, logits, own in zip(counts, kept.boxes, kept.objectness, numbers, strict=True):
        assert torch.equal(boxes, everything[own])
        assert torch.equal(logits, torch.cat(located.objectness)[own])
        assert set(own.tolist()) <= set(range(start, start + count))
        assert (likely[own].diff() <= 0).all()
        assert (box_iou(boxes, boxes).fill_diagonal_(0) <= overlap).all()
        for dropped in set(range(start, start + count)) - set(own.tolist()):
            above = own[likely[own] >= likely[dropped]]
            assert (box_iou(everything[[dropped]], everything[above]) > overlap).any()
        start += count
    if located.localisation is not None:
        assert kept.localisation is not None
        assert torch.equal(kept.localisation, located.localisation[torch.cat(numbers)])
