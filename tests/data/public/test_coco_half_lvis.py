import json
from pathlib import Path

import pytest

from rncdl.classes import ClassSplit
from rncdl.data.annotations import load_annotations
from rncdl.data.public.coco_half_lvis import choose_half, make_coco_half_lvis
from rncdl.data.public.counts import Count
from rncdl.errors import UserError
from tests.data.public.made_up import COCO_CLASSES, LVIS_TRAIN, LVIS_VAL


def image_ids(file) -> list[int]:
    return [image.id for image in file.images]


def test_half_of_nothing_is_nothing():
    assert choose_half([], 0) == set()


def test_the_half_depends_on_the_seed_and_not_on_the_order():
    half = choose_half(range(1000), 3)
    assert len(half) == 500
    assert choose_half(reversed(range(1000)), 3) == half
    assert choose_half(range(1000), 4) != half
    assert 150 < len(half & set(range(500))) < 350  # not simply the first ones


def test_the_halves_are_all_of_lvis_train_and_nothing_else(downloads: Path):
    made = make_coco_half_lvis(downloads / "coco", downloads / "lvis")
    labelled, unlabelled = image_ids(made.labelled), image_ids(made.unlabelled)
    assert len(labelled) == 2
    assert sorted(labelled + unlabelled) == sorted(LVIS_TRAIN)


def test_labels_are_cocos_whichever_of_its_files_holds_them(downloads: Path):
    """Over some seeds, the labelled half holds images of train2017 and of val2017."""
    folders = set()
    for seed in range(8):
        made = make_coco_half_lvis(downloads / "coco", downloads / "lvis", seed=seed)
        ids = set(image_ids(made.labelled))
        expected = {1000 * i + c for i in ids for c in COCO_CLASSES}
        assert isinstance(made.labelled.annotations, list)
        assert {a.id for a in made.labelled.annotations} == expected
        folders |= {place.folder for place in made.labelled.images}
    assert folders == {"train2017", "val2017"}


def test_known_classes_are_the_same_in_the_labelled_file_and_in_lvis(downloads: Path):
    made = make_coco_half_lvis(downloads / "coco", downloads / "lvis")
    for name in ("labelled", "val", "known_val", "unlabelled"):
        getattr(made, name).write(downloads / f"{name}.json")
    labelled = load_annotations(downloads / "labelled.json").annotations
    val = load_annotations(downloads / "val.json").annotations

    split = ClassSplit.from_labelled(labelled)

    assert split.known == made.known == ("person", "car_(automobile)", "kite", "hot dog")
    assert split.known_ids(labelled) == {1: 0, 3: 1, 38: 2, 58: 3}  # COCO's ids
    assert split.known_ids(val) == {793: 0, 207: 1, 611: 2}  # LVIS's ids, no hot dog
    assert {c.id for c in val.categories} == {2, 207, 611, 793}
    assert val.is_federated
    assert [image.id for image in val.images] == list(LVIS_VAL)
    assert len(val.annotation_ids) == 4 * len(LVIS_VAL)
    assert val.has_masks
    unlabelled = json.loads((downloads / "unlabelled.json").read_text())
    assert unlabelled["annotations"] == unlabelled["categories"] == []
    assert "neg_category_ids" not in json.dumps(unlabelled)
    known_val = load_annotations(downloads / "known_val.json").annotations
    assert [image.id for image in known_val.images] == [285, 632]


def test_the_authors_split_is_followed(downloads: Path):
    made = make_coco_half_lvis(
        downloads / "coco", downloads / "lvis", authors_split=downloads / "authors"
    )
    assert image_ids(made.labelled) == [9, 34]
    assert image_ids(made.unlabelled) == [25, 30, 139]
    assert image_ids(made.known_val) == [285]


def test_an_authors_split_of_other_images_is_refused(downloads: Path):
    path = downloads / "authors" / "coco_half_train.json"
    path.write_text('{"images": [{"id": 9}, {"id": 77}]}')
    with pytest.raises(UserError, match=r"coco_half_train\.json: 1 of its.*id 77"):
        make_coco_half_lvis(
            downloads / "coco", downloads / "lvis", authors_split=downloads / "authors"
        )


def test_cocos_two_files_must_be_of_one_kind(downloads: Path):
    path = downloads / "coco" / "annotations" / "instances_val2017.json"
    content = json.loads(path.read_text())
    content["categories"][0]["name"] = "car"
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"instances_val2017\.json: \$\.categories differ"):
        make_coco_half_lvis(downloads / "coco", downloads / "lvis")


def test_counts_are_what_the_files_hold(downloads: Path):
    counts = make_coco_half_lvis(downloads / "coco", downloads / "lvis").counts()
    found = {count.what.strip(): count.found for count in counts}
    assert found == {
        "training images": 5,
        "labelled": 2,
        "unlabelled": 3,
        "validation images": 4,
        "labelled classes": 4,
        "classes in validation": 4,
        "known": 3,
        "novel": 1,
    }
    assert not any(count.agrees for count in counts)


@pytest.mark.parametrize(
    ("found", "paper", "rounded_to", "agrees", "text"),
    [
        (100_170, 100_000, 1000, True, "100K"),
        (19_809, 20_000, 1000, True, "20K"),
        (19_499, 20_000, 1000, False, "20K"),
        (641, 641, 1, True, "641"),
        (640, 641, 1, False, "641"),
        (3367, 3367, 1, True, "3,367"),
        (5, None, 1, True, ""),
    ],
)
def test_a_rounded_figure_agrees_with_what_it_can_mean(found, paper, rounded_to, agrees, text):
    count = Count("images", found, paper, rounded_to)
    assert (count.agrees, count.paper_text) == (agrees, text)
