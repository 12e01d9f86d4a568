from pathlib import Path

import numpy as np
import torch

from rncdl.data.records import ImageRecord
from rncdl.discovery.bank import Bank, BankShape
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.naming import membership as module
from rncdl.naming.membership import (
    DOUBTFUL_BELOW,
    ChosenHead,
    Membership,
    open_membership,
)
from tests.naming.made_up import with_background

NUM_KNOWN, NUM_CLUSTERS = 3, 5


def opened(folder: Path, bank: Bank, heads: DiscoveryHeads, origin: str = "a") -> Membership:
    images = [ImageRecord(i, Path(f"images/{i}.png"), 40, 48) for i in range(len(bank.counts()))]
    return open_membership(
        folder,
        bank,
        images=images,
        origin={"heads": origin, "known": NUM_KNOWN},
        open_head=lambda: ChosenHead(heads, 0, None),
    )


def test_an_empty_bank_has_no_members(tmp_path: Path, heads: DiscoveryHeads):
    Bank.create(tmp_path / "empty", BankShape(3, 1, 2, 4, 1, 6), {})
    found = opened(tmp_path / "kept", Bank(tmp_path / "empty"), heads)
    assert [len(found.rows_of_cluster(c)) for c in range(NUM_CLUSTERS)] == [0] * NUM_CLUSTERS
    assert found.row_of((0, 0)) is None


@torch.inference_mode()
def test_every_region_is_with_its_most_probable_output(
    tmp_path: Path, bank: Bank, heads: DiscoveryHeads
):
    found = opened(tmp_path / "kept", bank, heads)
    counts = bank.counts()
    seen = 0
    for image in np.flatnonzero(counts > 0).tolist():
        features = bank.read(image, 0, count=int(counts[image])).float()
        best, outputs = heads.eval().probabilities(features).topk(2, 1)
        for region, output in enumerate(outputs[:, 0].tolist()):
            row = found.row_of((image, region))
            assert row is not None
            assert found.key_of(row) == (image, region)
            assert row in found.rows_of_output(output)
            assert found.cluster_of(row) == (None if output < NUM_KNOWN else output - NUM_KNOWN)
            rows = np.array([row])
            assert np.isclose(found.confidence(rows)[0], best[region, 0].item(), atol=1e-5)
            box = bank.read_boxes(image, count=region + 1)[region]
            assert torch.equal(torch.from_numpy(found.boxes_xyxy[row].copy()), box)
            lead = (best[region, 0] - best[region, 1]).item()
            if abs(lead - DOUBTFUL_BELOW) > 1e-4:
                assert found.is_doubtful(rows)[0] == (lead < DOUBTFUL_BELOW)
            seen += 1
    assert seen == sum(len(found.rows_of_output(o)) for o in range(NUM_KNOWN + NUM_CLUSTERS))
    assert seen == counts.clip(min=0).sum()


@torch.inference_mode()
def test_regions_in_which_the_head_sees_no_object_are_kept_apart(
    tmp_path: Path, bank: Bank, heads: DiscoveryHeads
):
    taught = with_background(heads)
    found = opened(tmp_path / "kept", bank, taught)
    nothing = found.rows_of_output(found.no_object)
    assert 0 < len(nothing) < len(found.keys)
    assert len(found.keys) == bank.counts().clip(min=0).sum()
    for row in nothing.tolist():
        image, region = found.key_of(row)
        features = bank.read(image, 0, count=region + 1)[region:].float()
        *others, no_object = taught.eval().logits(features).softmax(1)[0].tolist()
        assert no_object > max(others)
        assert found.cluster_of(row) is None
        assert np.isclose(found.confidence(np.array([row]))[0], max(others), atol=1e-5)
        lead = no_object - max(others)
        if abs(lead - DOUBTFUL_BELOW) > 1e-4:
            assert found.is_doubtful(np.array([row]))[0] == (lead < DOUBTFUL_BELOW)


def test_the_most_certain_come_first(tmp_path: Path, bank: Bank, heads: DiscoveryHeads):
    found = opened(tmp_path / "kept", bank, heads)
    for cluster in range(NUM_CLUSTERS):
        assert np.all(np.diff(found.confidence(found.rows_of_cluster(cluster))) <= 0)


def test_regions_that_the_bank_does_not_have_have_no_row(
    tmp_path: Path, bank: Bank, heads: DiscoveryHeads
):
    found = opened(tmp_path / "kept", bank, heads)
    for key in [(0, 0), (3, 0), (5, 0), (9, 9), (-1, 0), (1, -1), (2**40, 0), (0, 2**40)]:
        assert found.row_of(key) is None


def test_it_is_made_once_and_again_for_other_heads_or_when_damaged(
    tmp_path: Path, bank: Bank, heads: DiscoveryHeads, monkeypatch
):
    made = []
    sort_regions = module._sort_regions

    def counted(*arguments, **named):
        made.append(1)
        return sort_regions(*arguments, **named)

    monkeypatch.setattr(module, "_sort_regions", counted)
    folder = tmp_path / "kept"
    first = opened(folder, bank, heads)
    assert opened(folder, bank, heads).facts == first.facts
    assert len(made) == 1
    opened(folder, bank, heads, origin="b")
    assert len(made) == 2
    content = (folder / "members.npy").read_bytes()
    (folder / "members.npy").write_bytes(content[: len(content) // 2])
    again = opened(folder, bank, heads, origin="b")
    assert len(made) == 3
    assert again.key_of(0) == first.key_of(0)


def test_images_are_kept_by_their_absolute_paths(
    tmp_path: Path, bank: Bank, heads: DiscoveryHeads, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    found = opened(tmp_path / "kept", bank, heads)
    assert found.image_paths()[7] == str(tmp_path / "images" / "7.png")
    assert len(found.image_paths()) == len(bank.counts())
