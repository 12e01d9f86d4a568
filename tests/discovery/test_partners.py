"""Who may stand for whom, and that both feeds ask it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from rncdl.data.records import ImageRecord
from rncdl.discovery.bank import Bank, BankShape
from rncdl.discovery.extraction import ChosenRegions, ExtractedRegions
from rncdl.discovery.feeding import BankFeed, BatchSize, batch_of_extracted
from rncdl.discovery.partners import draw_partners

# Two boxes of one object (IoU 0.82), one half beside them (IoU 0.33 with the first), one far away.
BOXES = torch.tensor([[0, 0, 20, 20], [0, 0, 20, 18], [10, 0, 30, 20], [50, 50, 60, 60.0]])
FEATURES = torch.arange(4.0)[:, None].expand(4, 3)


def draw(min_iou: float, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return draw_partners(BOXES, min_iou=min_iou, generator=generator).tolist()


def test_no_regions_have_no_partners():
    assert draw_partners(torch.zeros(0, 4), min_iou=0.5, generator=torch.Generator()).tolist() == []


def test_every_region_that_overlaps_enough_is_drawn_equally_often_and_no_other():
    drawn = np.array([draw(0.5, seed) for seed in range(400)])
    assert set(drawn[:, 2]) == {2}
    assert set(drawn[:, 3]) == {3}
    for column in (0, 1):
        assert (drawn[:, column] == 0).mean() == pytest.approx(0.5, abs=0.1)
        assert set(drawn[:, column]) == {0, 1}
    assert {row[0] for row in (draw(0.3, seed) for seed in range(50))} == {0, 1, 2}


def test_a_box_without_area_stands_for_itself():
    boxes = torch.tensor([[5.0, 5, 5, 9]])
    assert draw_partners(boxes, min_iou=0.1, generator=torch.Generator()).tolist() == [0]


def extracted() -> ExtractedRegions:
    chosen = ChosenRegions(
        BOXES, torch.zeros(4), torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)
    )
    return ExtractedRegions(chosen, FEATURES.expand(2, 4, 3), torch.zeros(2, 0, 3))


def assert_partners(first: torch.Tensor, second: torch.Tensor) -> None:
    assert torch.equal(first, FEATURES)
    of_object, rest = second[:2, 0].tolist(), second[2:, 0].tolist()
    assert set(of_object) <= {0.0, 1.0}
    assert rest == [2.0, 3.0]


def test_fresh_batches_take_partners_in_the_second_view_only():
    batches = [
        batch_of_extracted([extracted()], [extracted()], partner_iou=0.5, seed=seed).views
        for seed in range(20)
    ]
    for first, second in batches:
        assert_partners(first, second)
    assert any(not torch.equal(first, second) for first, second in batches)
    alone = batch_of_extracted([extracted()], [extracted()]).views
    assert torch.equal(*alone)


def test_the_bank_is_read_with_partners(tmp_path: Path):
    shape = BankShape(
        num_images=1,
        num_labelled=1,
        num_views=2,
        regions_per_image=4,
        matched_per_image=1,
        num_features=3,
    )
    Bank.create(tmp_path / "bank", shape, {})
    bank = Bank(tmp_path / "bank", writable=True)
    bank.write(0, extracted())
    images = [ImageRecord(1, Path("a.jpg"), 64, 64)]

    def views(partner_iou: float | None) -> list[tuple[torch.Tensor, torch.Tensor]]:
        feed = BankFeed(bank, images, size=BatchSize(1, 1), seed=0, partner_iou=partner_iou)
        return [batch.views for batch, _ in zip(feed.batches(), range(20), strict=False)]

    with_partners = views(0.5)
    for first, second in with_partners:
        assert_partners(first, second)
    assert any(not torch.equal(first, second) for first, second in with_partners)
    assert all(torch.equal(first, second) for first, second in views(None))
