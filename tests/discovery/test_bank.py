import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from rncdl.discovery.bank import MISSING, UNREADABLE, Bank, BankShape
from rncdl.discovery.extraction import ChosenRegions, ExtractedRegions
from rncdl.errors import UserError

SHAPE = BankShape(
    num_images=5,
    num_labelled=2,
    num_views=3,
    regions_per_image=4,
    matched_per_image=3,
    num_features=6,
)
ORIGIN = {"detector": "abc", "seed": 0}


def regions(num_regions: int, num_matched: int, seed: int) -> ExtractedRegions:
    generator = torch.Generator().manual_seed(seed)
    chosen = ChosenRegions(
        boxes_xyxy=torch.rand(num_regions, 4, generator=generator),
        objectness=torch.rand(num_regions, generator=generator),
        matched_boxes_xyxy=torch.rand(num_matched, 4, generator=generator),
        matched_labels=torch.randint(0, 9, (num_matched,), generator=generator),
    )
    return ExtractedRegions(
        chosen,
        features=torch.randn(3, num_regions, 6, generator=generator),
        matched_features=torch.randn(3, num_matched, 6, generator=generator),
    )


@pytest.fixture
def bank(tmp_path: Path) -> Bank:
    Bank.create(tmp_path / "bank", SHAPE, ORIGIN)
    return Bank(tmp_path / "bank", writable=True)


def test_a_new_bank_holds_nothing(bank: Bank):
    assert bank.counts().tolist() == [MISSING] * 5
    assert bank.matched_counts().tolist() == [0, 0]


def test_every_image_comes_back_as_it_was_written(bank: Bank):
    written = {0: regions(4, 3, 1), 1: regions(2, 0, 2), 4: regions(3, 0, 3), 2: regions(0, 0, 4)}
    for index, extracted in written.items():
        bank.write(index, extracted)
    bank.mark_unreadable(3)
    reopened = Bank(bank.folder)
    assert reopened.counts().tolist() == [4, 2, 0, UNREADABLE, 3]
    assert reopened.matched_counts().tolist() == [3, 0]
    for index, extracted in written.items():
        count = len(extracted.chosen.boxes_xyxy)
        assert torch.equal(reopened.read_boxes(index, count=count), extracted.chosen.boxes_xyxy)
        assert torch.equal(
            reopened.read_objectness(index, count=count), extracted.chosen.objectness
        )
        for view in range(3):
            assert torch.equal(
                reopened.read(index, view, count=count), extracted.features[view].half()
            )
    features, labels = reopened.read_matched(0, 2, count=3)
    assert torch.equal(features, written[0].matched_features[2].half())
    assert torch.equal(labels, written[0].chosen.matched_labels)


def test_numpy_can_map_the_features(bank: Bank):
    bank.write(1, regions(2, 0, 2))
    mapped = np.memmap(bank.folder / "features.f16", np.float16, "r", shape=(5, 3, 4, 6))
    assert np.array_equal(mapped[1, 2, :2], regions(2, 0, 2).features[2].half().numpy())


def test_another_origin_is_refused_and_named(bank: Bank):
    bank.require_origin(ORIGIN)
    with pytest.raises(UserError, match="detector: 'abc', now 'xyz'"):
        bank.require_origin({**ORIGIN, "detector": "xyz"})


def test_no_bank_is_said_so(tmp_path: Path):
    assert not Bank.exists(tmp_path)
    with pytest.raises(UserError, match="no bank here"):
        Bank(tmp_path)


def test_a_disk_too_small_is_refused_before_anything_is_written(tmp_path: Path):
    huge = BankShape(10**9, 0, 4, 50, 1, 1024)
    assert huge.num_bytes > 10**9 * 50 * 4 * 1024 * 2
    with pytest.raises(UserError, match=r"needs up to \d+.* GB"):
        Bank.create(tmp_path / "bank", huge, ORIGIN)
    assert not Bank.exists(tmp_path / "bank")


def test_a_disk_that_fills_up_leaves_the_image_uncounted(bank: Bank, monkeypatch):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(UserError, match="No space left"):
        bank.write(0, regions(4, 3, 1))
    assert bank.counts()[0] == MISSING
