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
    assert bank.counts().tolist() == [4, 2, 0, UNREADABLE, 3]
    bank.flush()
    reopened = Bank(bank.folder)
    assert reopened.counts().tolist() == [4, 2, 0, UNREADABLE, 3]
    assert reopened.matched_counts().tolist() == [3, 0]
    objectness = np.memmap(bank.folder / "objectness.f32", np.float32, "r", shape=(5, 4))
    for index, extracted in written.items():
        count = len(extracted.chosen.boxes_xyxy)
        assert torch.equal(reopened.read_boxes(index, count=count), extracted.chosen.boxes_xyxy)
        assert np.array_equal(objectness[index, :count], extracted.chosen.objectness.numpy())
        for view in range(3):
            assert torch.equal(
                reopened.read(index, view, count=count), extracted.features[view].half()
            )
    features, labels = reopened.read_matched(0, 2, count=3)
    assert torch.equal(features, written[0].matched_features[2].half())
    assert torch.equal(labels, written[0].chosen.matched_labels)


def test_single_regions_of_several_images_are_read_at_once(bank: Bank):
    for index in range(3):
        bank.write(index, regions(4, 0, index))
    wanted = [(2, 3), (0, 0), (2, 1), (1, 3), (2, 3)]
    images, places = np.array(wanted, dtype=np.int32).T
    found = bank.read_regions(images, 1, places)
    expected = [regions(4, 0, image).features[1, place].half() for image, place in wanted]
    assert torch.equal(found, torch.stack(expected))
    assert bank.read_regions(images[:0], 1, places[:0]).shape == (0, 6)


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


def test_ranks_note_what_they_finish_apart_and_one_writes_the_counts(bank: Bank):
    """No two processes ever write into the same file of counts."""
    empty = {
        name: (bank.folder / name).read_bytes() for name in ("counts.i32", "matched_counts.i32")
    }
    ranks = [Bank(bank.folder, writable=True, rank=rank) for rank in range(2)]
    ranks[0].write(0, regions(4, 3, 1))
    ranks[1].write(1, regions(2, 1, 2))
    ranks[1].mark_unreadable(4)
    for rank in ranks:
        rank.flush()
    assert {name: (bank.folder / name).read_bytes() for name in empty} == empty
    found = Bank(bank.folder)
    assert not found.is_settled
    assert found.counts().tolist() == [4, 2, MISSING, MISSING, UNREADABLE]
    assert found.matched_counts().tolist() == [3, 1]

    found.save_counts()
    assert not list(bank.folder.glob("finished_*"))
    settled = Bank(bank.folder)
    assert settled.is_settled
    assert settled.counts().tolist() == [4, 2, MISSING, MISSING, UNREADABLE]
    assert settled.matched_counts().tolist() == [3, 1]


def test_a_killed_process_loses_no_more_than_it_wrote_since_its_last_flush(bank: Bank):
    bank.write(0, regions(4, 3, 1))
    bank.flush()
    bank.write(1, regions(2, 1, 2))
    assert Bank(bank.folder).counts().tolist() == [4] + [MISSING] * 4


@pytest.mark.parametrize("torn", [b"[1, 2", b"\0\0\0\0\0\0\0\0", b"[1]\n", b"\xff\xfe"])
def test_a_note_cut_short_by_a_crash_is_left_out(bank: Bank, torn: bytes):
    bank.write(0, regions(4, 3, 1))
    bank.flush()
    (notes,) = bank.folder.glob("finished_*")
    notes.write_bytes(notes.read_bytes() + torn)
    assert Bank(bank.folder).counts().tolist() == [4] + [MISSING] * 4


def test_what_is_noted_is_on_the_disk(bank: Bank, monkeypatch):
    """A disk that fails to take the features leaves the image uncounted."""
    bank.write(0, regions(4, 3, 1))

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(UserError, match="Input/output error"):
        bank.flush()
    monkeypatch.undo()
    assert Bank(bank.folder).counts()[0] == MISSING
    bank.flush()
    assert Bank(bank.folder).counts()[0] == 4


def test_a_bank_whose_counts_were_written_in_place_still_opens(bank: Bank):
    """As earlier versions did it, image by image."""
    bank.write(0, regions(4, 3, 1))
    for name, position, count in (("counts.i32", 0, 4), ("matched_counts.i32", 0, 3)):
        with (bank.folder / name).open("r+b") as file:
            file.seek(4 * position)
            file.write(np.int32(count).tobytes())
    opened = Bank(bank.folder)
    assert opened.counts().tolist() == [4] + [MISSING] * 4
    assert torch.equal(opened.read(0, 1, count=4), regions(4, 3, 1).features[1].half())


def test_what_a_bank_did_not_note_is_judged_by_what_is_known_of_it(bank: Bank):
    now = {**ORIGIN, "precision": "auto"}
    bank.require_origin(now, if_unnoted={"precision": "auto", "seed": 9})
    with pytest.raises(UserError, match="precision: 'float32', now 'auto'"):
        bank.require_origin(now, if_unnoted={"precision": "float32"})
    with pytest.raises(UserError, match="precision: None, now 'auto'"):
        bank.require_origin(now)


def test_a_folder_where_no_bank_can_be_made_is_named(tmp_path: Path):
    (tmp_path / "taken").touch()
    with pytest.raises(UserError, match="taken"):
        Bank.create(tmp_path / "taken", SHAPE, ORIGIN)
