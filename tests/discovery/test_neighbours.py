"""Who is whose neighbour in the teacher's eyes, and that the bank is read accordingly."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from rncdl.config import Settings, change
from rncdl.data.records import ImageRecord
from rncdl.discovery import neighbours
from rncdl.discovery.bank import Bank, BankShape
from rncdl.discovery.extraction import ChosenRegions, ExtractedRegions
from rncdl.discovery.feeding import BankFeed, BatchSize, DiscoveryBatch
from rncdl.discovery.lessons import SeenObjects
from rncdl.discovery.neighbours import (
    NONE,
    Neighbours,
    find_neighbours,
    most_alike,
    shown_objects,
)
from tests.discovery.test_lessons import (
    FAR_BOX,
    KNOWN_BOX,
    OTHER_BOX,
    make_bank,
    make_pool,
    moved,
    seen,
)

NUM_IMAGES, NUM_REGIONS, NUM_VIEWS = 5, 4, 3
SHOWN = np.array(
    [
        [0, 0, NONE, NONE],
        [1, NONE, 1, 2],
        [NONE, NONE, NONE, NONE],
        [4, NONE, NONE, NONE],
        [5, 5, 5, NONE],
    ],
    dtype=np.int32,
)
"""Which of six objects the regions of five images show; none shows object 3."""
OBJECT_IMAGES = np.array([0, 1, 1, 2, 3, 4])
ALIKE = np.array([[1, 3], [5, NONE], [3, 3], [0, 1], [NONE, NONE], [0, 1]], dtype=np.int32)
OWN_NEIGHBOURS = Neighbours.of(SHOWN, ALIKE)


def on_the_sphere(num: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return functional.normalize(torch.randn(num, 6, generator=generator))


@given(
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=9),
    count=st.integers(1, 12),
    block=st.integers(1, 200),
    seed=st.integers(0, 9),
)
def test_neighbours_are_the_most_alike_of_other_images(
    sizes: list[int], count: int, block: int, seed: int
):
    """Against all cosines at once, whatever the blocks; ties and rounding may choose either."""
    images = np.repeat(np.arange(len(sizes)), sizes)
    features = on_the_sphere(len(images), seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "_BLOCK_ELEMENTS", block)
        found = most_alike(features, images, count=count)
    cosines = (features.double() @ features.double().T).numpy()
    assert found.shape == (len(images), min(count, len(images)))
    for row, own in enumerate(found):
        others = np.flatnonzero(images != images[row])
        expected = np.sort(cosines[row, others])[::-1][:count]
        chosen = own[own != NONE]
        assert own[: len(chosen)].tolist() == chosen.tolist()  # what is missing comes last
        assert len(set(chosen)) == len(chosen) == len(expected)
        assert set(chosen) <= set(others)
        assert np.allclose(cosines[row, chosen], expected, atol=1e-5)


def test_a_region_shows_the_object_that_it_overlaps_most(tmp_path: Path):
    regions: dict[int, list[tuple[float, ...]]] = {
        # Moved by 3 it overlaps its old place by 0.54, by 4 by 0.43.
        0: [KNOWN_BOX, OTHER_BOX, moved(KNOWN_BOX, 3.0), moved(KNOWN_BOX, 4.0)],
        1: [moved(OTHER_BOX, 2.5), moved(OTHER_BOX, 5.0), FAR_BOX, moved(OTHER_BOX, 1.0)],
    }
    bank = make_bank(tmp_path, regions, 4)
    boxes = [KNOWN_BOX, moved(OTHER_BOX, 3.0), OTHER_BOX]
    objects = seen([0, 1, 1], boxes, [[0.0, 1.0]] * 3)
    shown = shown_objects(bank, objects, regions_per_image=4)
    assert shown.tolist() == [[0, NONE, 0, NONE], [1, 1, NONE, 2]]
    fewer = shown_objects(bank, objects, regions_per_image=1)
    assert fewer.tolist() == [[0, NONE, NONE, NONE], [1, NONE, NONE, NONE]]


def test_the_regions_of_each_object_are_those_that_show_it():
    found = [
        OWN_NEIGHBOURS.regions[start:stop].tolist()
        for start, stop in zip(OWN_NEIGHBOURS.starts[:-1], OWN_NEIGHBOURS.starts[1:], strict=True)
    ]
    assert found == [
        [[0, 0], [0, 1]],
        [[1, 0], [1, 2]],
        [[1, 3]],
        [],
        [[3, 0]],
        [[4, 0], [4, 1], [4, 2]],
    ]


def draws(image: int, *, count: int = NUM_REGIONS, num: int = 200) -> set[tuple[int, int, int]]:
    """What stands for which region of the image, over many seeds."""
    return {
        (row, other, region)
        for seed in range(num)
        for row, other, region in zip(
            *OWN_NEIGHBOURS.draw(image, count=count, generator=np.random.default_rng(seed)),
            strict=True,
        )
    }


def test_every_region_of_every_neighbour_is_drawn_and_no_other():
    # Object 0 is like 1, which two regions of image 1 show, and like 3, which none shows.
    assert draws(0) == {(row, 1, region) for row in (0, 1) for region in (0, 2)}
    # Object 1 is like 5 alone; the only neighbour of object 2 is shown by no region.
    assert draws(1) == {(row, 4, region) for row in (0, 2) for region in (0, 1, 2)}
    # No object; an object without neighbours.
    assert draws(2) == draws(3) == set()
    assert draws(4, count=1) == {(0, image, region) for image in (0, 1) for region in (0, 1, 2)} - {
        (0, 0, 2), (0, 1, 1)
    }  # fmt: skip


def test_without_objects_nothing_is_replaced():
    nothing = Neighbours.of(np.full((2, 3), NONE, np.int32), np.zeros((0, 0), np.int32))
    drawn = nothing.draw(1, count=3, generator=np.random.default_rng(0))
    assert [len(part) for part in drawn] == [0, 0, 0]


def found_in(folder: Path, certainty: list[float], **settings: object) -> Neighbours:
    """Among one object on an annotation, in the first image, and two of the second."""
    regions: dict[int, list[tuple[float, ...]]] = {0: [KNOWN_BOX], 1: [OTHER_BOX, FAR_BOX]}
    objects = SeenObjects(
        image_index=np.array([0, 1, 1]),
        boxes_xyxy=torch.tensor([KNOWN_BOX, OTHER_BOX, FAR_BOX]),
        certainty=torch.tensor(certainty),
        features=functional.normalize(torch.tensor([[1.0, 0.1], [0.0, 1.0], [1.0, 0.0]])),
        labelled=torch.zeros(0, 2),
        labels=torch.zeros(0, dtype=torch.int64),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "read_objects", lambda _: objects)
        return find_neighbours(
            make_bank(folder / "regions", regions, 4),
            make_bank(folder / "objects", regions, 4),
            make_pool(),
            settings=change(Settings(), discover={"neighbours": 1, **settings}),
            device=torch.device("cpu"),
        )


def test_annotated_objects_have_neighbours_and_are_neighbours(tmp_path: Path):
    found = found_in(tmp_path, [0.5, 0.6, 0.6])
    assert found.shown.tolist() == [[0, NONE, NONE, NONE], [1, 2, NONE, NONE]]
    assert found.alike.tolist() == [[2], [0], [0]]


def test_what_the_gate_keeps_out_is_no_object(tmp_path: Path):
    found = found_in(tmp_path, [0.5, 0.6, 0.4])
    assert found.shown.tolist() == [[0, NONE, NONE, NONE], [1, NONE, NONE, NONE]]
    assert found.alike.tolist() == [[1], [0]]


@pytest.fixture
def bank(tmp_path: Path) -> Bank:
    """Regions far apart, but for the last two of each image; features tell where they are."""
    shape = BankShape(NUM_IMAGES, 1, NUM_VIEWS, NUM_REGIONS, 1, 3)
    Bank.create(tmp_path / "bank", shape, {})
    bank = Bank(tmp_path / "bank", writable=True)
    corners = torch.tensor([0.0, 100.0, 200.0, 201.0])
    for index in range(NUM_IMAGES):
        chosen = ChosenRegions(
            torch.stack([corners, corners, corners + 20, corners + 20], 1),
            torch.zeros(NUM_REGIONS),
            torch.zeros(0, 4),
            torch.zeros(0, dtype=torch.int64),
        )
        views, regions = torch.arange(NUM_VIEWS), torch.arange(NUM_REGIONS)
        at = [torch.full((NUM_VIEWS, NUM_REGIONS), float(index))]
        at += [part.float() for part in torch.meshgrid(views, regions, indexing="ij")]
        features = torch.stack(at, 2)
        bank.write(index, ExtractedRegions(chosen, features, torch.zeros(NUM_VIEWS, 0, 3)))
    return bank


def batches(
    bank: Bank, *, start: int = 0, with_neighbours: bool = True, partner_iou: float | None = None
) -> list[DiscoveryBatch]:
    """The first forty, from `start` on."""
    feed = BankFeed(
        bank,
        [ImageRecord(i, Path(f"{i}.jpg"), 300, 300) for i in range(NUM_IMAGES)],
        size=BatchSize(1, 1),
        seed=0,
        partner_iou=partner_iou,
        neighbours=OWN_NEIGHBOURS if with_neighbours else None,
    )
    return list(islice(feed.batches(start), 40 - start))


def test_the_second_view_is_read_from_neighbours_and_the_rest_is_left_alone(bank: Bank):
    plain, made = batches(bank, with_neighbours=False), batches(bank)
    num_replaced = 0
    for before, after in zip(plain, made, strict=True):
        assert torch.equal(before.views[0], after.views[0])
        for own, other in zip(before.views[1].tolist(), after.views[1].tolist(), strict=True):
            if own != other:
                num_replaced += 1
                object_ = SHOWN[int(own[0]), int(own[2])]
                assert object_ != NONE
                assert SHOWN[int(other[0]), int(other[2])] in ALIKE[object_]
                assert other[0] != own[0]
                assert other[1] == own[1]  # in the same view of the other image
    assert num_replaced > 0


def test_a_feed_that_goes_on_draws_what_it_would_have_drawn(bank: Bank):
    whole, rest = batches(bank), batches(bank, start=17)
    for one, other in zip(whole[17:], rest, strict=True):
        assert torch.equal(one.views[0], other.views[0])
        assert torch.equal(one.views[1], other.views[1])


def test_partners_stand_for_what_neighbours_do_not(bank: Bank):
    """Of the last two regions of image 0, which show no object, each stands for the other."""
    with_both, without = batches(bank, partner_iou=0.5), batches(bank)
    seen_partners = set()
    for both, alone in zip(with_both, without, strict=True):
        assert torch.equal(both.views[0], alone.views[0])
        image = int(both.views[0][0, 0])
        replaced = alone.views[1][:, 0] != image
        assert torch.equal(both.views[1][replaced], alone.views[1][replaced])
        if image == 0:
            assert (both.views[1][2:, 0] == 0).all()
            seen_partners |= {tuple(row) for row in both.views[1][2:, 2:].flatten(1).T.tolist()}
    assert seen_partners > {(2.0, 3.0)}
