from pathlib import Path

import numpy as np
import torch

from rncdl.discovery.bank import Bank, BankShape
from rncdl.discovery.extraction import ChosenRegions, ExtractedRegions
from rncdl.naming.cluster_map import lay_out, looks_to_teacher
from rncdl.naming.membership import MEMBER


def test_the_map_spreads_what_differs_and_nothing_else():
    assert lay_out(torch.ones(3, 4)).tolist() == [[0.5, 0.5]] * 3
    east, up = torch.tensor([1.0, 0, 0, 0]), torch.tensor([0, 0.3, 0, 0])
    forward = torch.tensor([0, 0, 0, 1.0])
    prototypes = torch.stack([forward + east, forward - east, forward + up, forward - up])
    placed = lay_out(prototypes)
    along, across = placed[:, 0], placed[:, 1]
    assert sorted(along[:2].tolist()) == [0.0, 1.0]
    assert torch.allclose(along[2:], torch.full((2,), 0.5, dtype=along.dtype))
    assert sorted(across[2:].tolist()) == [0.0, 1.0]
    assert torch.equal(lay_out(3 * prototypes), placed)


NUM_KNOWN = 1
EAST, NORTH = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]
HERE, THERE = [0.0, 0.0, 10.0, 10.0], [20.0, 20.0, 30.0, 30.0]


def seen(folder: Path, images: list[list[tuple[list[float], list[float]]]]) -> Bank:
    """A teacher's bank: of each image, the boxes of its objects and what they look like."""
    Bank.create(folder, BankShape(len(images), 0, 1, 4, 0, 3), {})
    bank = Bank(folder, writable=True)
    for index, objects in enumerate(images):
        boxes = torch.tensor([box for box, _ in objects]).reshape(-1, 4)
        nothing = (torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
        chosen = ChosenRegions(boxes, torch.ones(len(objects)), *nothing)
        features = torch.tensor([[look for _, look in objects]]).reshape(1, -1, 3)
        bank.write(index, ExtractedRegions(chosen, features, torch.zeros(1, 0, 3)))
    return bank


def regions(*rows: tuple[int, int, list[float]]) -> np.ndarray:
    """Members by output, image and box."""
    members = np.zeros(len(rows), MEMBER)
    for row, (output, image, box) in enumerate(rows):
        members[row] = (output, image, row, 1.0, 1.0, tuple(box))
    return members


def test_clusters_look_as_the_teacher_has_seen_their_regions(tmp_path: Path):
    bank = seen(tmp_path / "bank", [[(HERE, EAST), (THERE, NORTH)], [], [(HERE, NORTH)]])
    nearly_here = [0.0, 0.0, 10.0, 8.0]
    members = regions(
        *((0, 2, HERE),),  # a known class
        *((1, 0, nearly_here), (1, 1, HERE)),
        *((2, 0, THERE),),
        *((3, 0, [40.0, 40.0, 50.0, 50.0]),),  # the teacher has not looked there
    )
    prototypes = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.1, 1.0]])  # the third is like the second
    looks = looks_to_teacher(bank, members, prototypes, num_known=NUM_KNOWN)
    assert looks is not None
    assert looks.tolist() == [EAST, NORTH, NORTH]


def test_a_teacher_that_has_seen_no_cluster_places_none(tmp_path: Path):
    bank = seen(tmp_path / "bank", [[(HERE, EAST)]])
    members = regions((0, 0, HERE), (1, 0, THERE))
    assert looks_to_teacher(bank, members, torch.eye(2), num_known=NUM_KNOWN) is None
