"""What the teacher's eyes make of objects and regions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rncdl.classes import ClassSplit
from rncdl.config import Settings
from rncdl.data.records import AnnotationSet, Category, ImageRecord
from rncdl.data.viewed_images import Pool
from rncdl.discovery.bank import Bank, BankShape
from rncdl.discovery.extraction import ChosenRegions, ExtractedRegions
from rncdl.discovery.lessons import (
    SeenObjects,
    label_objects,
    label_regions,
    read_objects,
)
from rncdl.discovery.loss import UNTAUGHT
from rncdl.errors import UserError

KNOWN_BOX = (0.0, 0.0, 10.0, 10.0)
OTHER_BOX = (30.0, 30.0, 40.0, 40.0)
FAR_BOX = (60.0, 60.0, 70.0, 70.0)


def make_pool(*, is_federated: bool = False, name: str = "known") -> Pool:
    """A labelled image, on which `KNOWN_BOX` is of the only known class, and an unlabelled one."""
    images = [ImageRecord(i, Path(f"{i}.png"), 80, 80) for i in range(2)]
    annotations = AnnotationSet(
        images=(images[0],),
        categories=(Category(1, name),),
        annotation_ids=np.ones(1, np.int64),
        image_index=np.zeros(1, np.int64),
        category_ids=np.ones(1, np.int64),
        boxes_xyxy=np.array([KNOWN_BOX]),
        areas=np.ones(1),
        is_crowd=np.zeros(1, bool),
        segmentations=[None],
        is_federated=is_federated,
    )
    return Pool(ClassSplit((name,)).keep_known(annotations), images[1:])


def seen(
    images: list[int],
    boxes: list[tuple[float, ...]],
    features: list[list[float]],
    certainty: list[float] | None = None,
) -> SeenObjects:
    return SeenObjects(
        image_index=np.array(images),
        boxes_xyxy=torch.tensor(boxes),
        certainty=torch.tensor(certainty or [1.0] * len(images)),
        features=torch.tensor(features),
        labelled=torch.tensor([[1.0, 0.0]]),
        labels=torch.tensor([0]),
    )


def label(objects: SeenObjects, *, num_clusters: int = 1, **kind: Any) -> list[int]:
    pool = make_pool(**kind)
    return label_objects(
        objects, pool, num_clusters=num_clusters, settings=Settings(), seed=0
    ).tolist()


def test_fewer_objects_than_clusters_are_an_error():
    objects = seen([1], [OTHER_BOX], [[0.0, 1.0]])
    with pytest.raises(UserError, match="2 clusters cannot be made of 1 objects"):
        label(objects, num_clusters=2)


def test_an_annotated_object_is_what_it_is_annotated_as_whatever_it_looks_like():
    objects = seen([0, 1], [KNOWN_BOX, OTHER_BOX], [[0.0, 1.0], [0.0, 1.0]])
    assert label(objects) == [0, 1]


def test_unlabelled_objects_that_look_known_are_known():
    objects = seen([1, 1], [OTHER_BOX, FAR_BOX], [[1.0, 0.0], [0.0, 1.0]])
    assert label(objects) == [0, 1]


def test_objects_of_labelled_images_that_nobody_annotated_are_new_even_if_they_look_known():
    objects = seen([0, 1], [OTHER_BOX, FAR_BOX], [[1.0, 0.0], [0.0, 1.0]])
    assert label(objects) == [1, 1]
    # Federated annotations leave known objects out.
    assert label(objects, is_federated=True) == [0, 1]
    # The labels of what an earlier round has found do, too.
    assert label(objects, name="found_0012") == [0, 1]


def test_what_is_less_surely_an_object_than_annotated_ones_teaches_nothing():
    boxes: list[tuple[float, ...]] = [KNOWN_BOX, OTHER_BOX, FAR_BOX]
    features = [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    assert label(seen([0, 1, 1], boxes, features, [0.6, 0.7, 0.5])) == [0, 1, UNTAUGHT]
    # Nothing is found on an annotation: nothing is known of certainty.
    assert label(seen([1, 1, 1], boxes, features, [0.6, 0.7, 0.5]))[2] == 1


def make_bank(folder: Path, regions: dict[int, list[tuple[float, ...]]], num_features: int) -> Bank:
    """A bank of two images, the first labelled, with these regions."""
    Bank.create(folder, BankShape(2, 1, 1, 4, 4, num_features), {})
    bank = Bank(folder, writable=True)
    for index in range(2):
        boxes = torch.tensor(regions.get(index, [])).reshape(-1, 4)
        count = len(boxes)
        is_labelled = index == 0
        chosen = ChosenRegions(
            boxes_xyxy=boxes,
            objectness=0.1 * torch.arange(count),
            matched_boxes_xyxy=torch.tensor([KNOWN_BOX] * is_labelled).reshape(-1, 4),
            matched_labels=torch.zeros(int(is_labelled), dtype=torch.int64),
        )
        features = torch.full((1, count, num_features), float(1 + index))
        matched = torch.full((1, int(is_labelled), num_features), 9.0)
        bank.write(index, ExtractedRegions(chosen, features, matched))
    bank.flush()
    bank.save_counts()
    bank.close()
    return Bank(folder)


def test_an_object_bank_is_read_whole(tmp_path: Path):
    objects = read_objects(make_bank(tmp_path, {1: [OTHER_BOX, FAR_BOX], 0: [KNOWN_BOX]}, 4))
    assert objects.image_index.tolist() == [0, 1, 1]
    assert objects.boxes_xyxy.tolist() == [[*KNOWN_BOX], [*OTHER_BOX], [*FAR_BOX]]
    torch.testing.assert_close(objects.certainty, torch.tensor([0.0, 0.0, 0.1]))
    assert objects.features.shape == (3, 4)
    assert objects.labels.tolist() == [0]
    assert objects.labelled.shape == (1, 4)


def test_an_object_bank_without_objects_is_an_error(tmp_path: Path):
    with pytest.raises(UserError, match="seen no object"):
        read_objects(make_bank(tmp_path, {}, 4))


def moved(box: tuple[float, ...], by: float) -> tuple[float, ...]:
    return (box[0] + by, box[1], box[2] + by, box[3])


def test_regions_have_the_label_of_the_object_that_they_show(tmp_path: Path):
    """Moved by a quarter (IoU 0.6) it is shown, by half (0.33) nobody knows, beyond it is not."""
    regions: dict[int, list[tuple[float, ...]]] = {
        0: [KNOWN_BOX, OTHER_BOX],
        1: [moved(OTHER_BOX, by) for by in (2.5, 5.0, 8.0)] + [FAR_BOX],
    }
    bank = make_bank(tmp_path, regions, 4)
    objects = seen([1, 1], [OTHER_BOX, FAR_BOX], [[0.0, 1.0], [0.0, 1.0]])
    labels = np.array([5, 7])
    found = label_regions(bank, make_pool(), objects, labels, nothing=7)
    assert found[0].tolist() == [0, 7, UNTAUGHT, UNTAUGHT]  # two regions, then empty slots
    assert found[1].tolist() == [5, UNTAUGHT, 7, 7]
