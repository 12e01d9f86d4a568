from pathlib import Path

import msgspec
import numpy as np
import pytest

from rncdl.data.masks import decode_masks, encode_rle, rle_to_json
from rncdl.data.unlabelled_objects import (
    WITHOUT_CLASS,
    FoundObject,
    ObjectsFolder,
    UnlabelledObjects,
)
from rncdl.errors import UserError


def found(image_index: int, x: int, *, score: float = 0.5) -> FoundObject:
    """A square of four pixels in an image of 12 x 10."""
    mask = np.zeros((10, 12), dtype=bool)
    mask[2:4, x : x + 2] = True
    runs = msgspec.Raw(msgspec.json.encode(rle_to_json(encode_rle(mask))))
    return FoundObject(image_index, (x, 2, x + 2, 4), score, runs)


def test_none_are_in_no_image(tmp_path: Path):
    for none in (UnlabelledObjects.of([]), ObjectsFolder(tmp_path / "not_there").read()):
        assert len(none) == 0
        assert none.boxes_xyxy.shape == (0, 4)
        assert none.rows_of_image(3) == slice(0, 0)


def test_parts_come_back_sorted_by_image(tmp_path: Path):
    folder = ObjectsFolder(tmp_path)
    assert folder.missing(3) == [0, 1, 2]
    folder.write(2, [found(9, 6)])
    folder.write(0, [found(4, 1, score=0.9), found(1, 3), found(4, 5, score=0.2)])
    assert folder.missing(3) == [1]
    objects = folder.read()
    assert objects.image_index.tolist() == [1, 4, 4, 9]
    assert objects.boxes_xyxy[:, 0].tolist() == [3, 1, 5, 6]
    assert objects.scores.tolist() == pytest.approx([0.5, 0.9, 0.2, 0.5])
    assert objects.label == WITHOUT_CLASS
    assert objects.rows_of_image(4) == slice(1, 3)
    [raw] = [objects.segmentations[3]]
    assert raw is not None
    [mask] = decode_masks([raw], 10, 12)
    assert np.argwhere(mask).tolist() == [[2, 6], [2, 7], [3, 6], [3, 7]]


def test_parts_of_another_origin_are_not_kept(tmp_path: Path):
    folder = ObjectsFolder(tmp_path / "objects")
    folder.begin({"detector": "a"})
    folder.write(0, [found(0, 1)])
    folder.begin({"detector": "a"})
    assert folder.missing(1) == []
    folder.begin({"detector": "b"})
    assert folder.missing(1) == [0]


def test_the_fingerprint_is_that_of_origin_and_parts(tmp_path: Path):
    folder = ObjectsFolder(tmp_path)
    folder.begin({"detector": "a"})
    prints = [folder.fingerprint()]
    folder.write(0, [found(0, 1)])
    prints.append(folder.fingerprint())
    folder.write(0, [found(0, 2)])
    prints.append(folder.fingerprint())
    assert len(set(prints)) == 3
    folder.write(0, [found(0, 1)])
    assert folder.fingerprint() == prints[1]


def test_a_damaged_part_is_named(tmp_path: Path):
    folder = ObjectsFolder(tmp_path)
    folder.write(7, [found(0, 1)])
    folder.part_file(7).write_bytes(folder.part_file(7).read_bytes()[:-5])
    with pytest.raises(UserError, match="part_000007"):
        folder.read()
