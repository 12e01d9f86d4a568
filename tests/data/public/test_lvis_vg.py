from pathlib import Path

import numpy as np
import pytest

from rncdl.classes import ClassSplit
from rncdl.data.annotations import load_annotations
from rncdl.data.problems import ProblemKind
from rncdl.data.public.formats import Place
from rncdl.data.public.lvis_vg import make_genome_val, make_lvis_vg
from rncdl.data.public.visual_genome import (
    NO_SYNSET,
    SEVERAL_SYNSETS,
    GenomeImage,
    GenomeObject,
    GenomeObjects,
    collect_objects,
    genome_places,
    read_genome_images,
)
from rncdl.errors import UserError
from tests.data.public.made_up import LVIS_TRAIN


def test_no_objects_give_no_classes():
    columns = collect_objects([], {})
    assert columns.boxes_xyxy.shape == (0, 4)
    val = make_genome_val(columns, [], lvis_names={})
    assert (val.images, val.annotations, val.categories) == ([], [], [])


def test_pool_is_lvis_train_and_the_other_genome_images_outside_validation(downloads: Path):
    made = make_lvis_vg(downloads / "lvis", downloads / "vg")
    assert [image.id for image in made.labelled.images] == list(LVIS_TRAIN)
    assert [image.file_name for image in made.unlabelled.images] == [
        "VG_100K_2/1.jpg",
        "VG_100K/2.jpg",
        "VG_100K_2/4.jpg",  # 3 is LVIS's image 9
    ]
    assert not made.unlabelled.annotations
    assert not made.unlabelled.categories


def test_validation_is_visual_genomes_boxes_under_lviss_names(downloads: Path):
    made = make_lvis_vg(downloads / "lvis", downloads / "vg")
    made.val.write(downloads / "val.json")
    made.labelled.write(downloads / "labelled.json")
    val = load_annotations(downloads / "val.json")
    labelled = load_annotations(downloads / "labelled.json").annotations

    assert not val.problems
    truth = val.annotations
    assert [str(image.path.relative_to(downloads)) for image in truth.images] == [
        "VG_100K/5.jpg",
        "VG_100K_2/6.jpg",
    ]
    # sky occurs in training only, unicorn in validation only
    assert [(c.name, c.synset) for c in truth.categories] == [
        ("building.n.01", "building.n.01"),
        ("person", "person.n.01"),
    ]
    split = ClassSplit.from_labelled(labelled)
    assert split.known == made.known == ("acorn", "car_(automobile)", "kite", "person")
    assert split.known_ids(truth) == {2: 3}
    assert {c.id for c in truth.categories} == {1, 2}
    assert labelled.has_masks
    assert not truth.has_masks
    assert truth.is_federated  # a class is judged where it is annotated
    assert truth.boxes_xyxy.tolist() == [
        [5, 5, 25, 35],
        [0, 0, 80, 60],
        [60, 40, 80, 60],  # clipped
        [5, 5, 25, 35],
        [0, 0, 80, 60],
    ]
    assert truth.areas.tolist() == [600, 4800, 400, 600, 4800]


def test_what_was_mended_or_left_out_is_counted(downloads: Path):
    assert make_lvis_vg(downloads / "lvis", downloads / "vg").problems == {
        ProblemKind.UNKNOWN_IMAGE: 1,
        ProblemKind.BOX_OUTSIDE: 1,
        ProblemKind.BOX_WITHOUT_AREA: 1,
        ProblemKind.CLIPPED_BOX: 1,
        NO_SYNSET: 1,
        SEVERAL_SYNSETS: 1,
    }


def test_counts_are_what_the_files_hold(downloads: Path):
    counts = make_lvis_vg(downloads / "lvis", downloads / "vg").counts()
    assert {count.what.strip(): count.found for count in counts} == {
        "labelled images (LVIS)": 5,
        "labelled classes": 4,
        "Visual Genome images": 6,
        "also in LVIS": 3,
        "training": 4,
        "validation": 2,
        "pool of discovery": 8,
        "Visual Genome synsets": 4,
        "classes in validation": 2,
        "known": 1,
        "novel": 1,
    }


@pytest.mark.parametrize(("num_images", "letter"), [(10, "r"), (11, "c"), (100, "c"), (101, "f")])
def test_frequencies_count_training_images(num_images: int, letter: str):
    """Not objects: every image shows the class twice."""
    thing = GenomeObject(0, 0, 5, 5, ["tree.n.01"])
    entries = [GenomeObjects(i, [thing, thing]) for i in range(num_images + 1)]
    columns = collect_objects(entries, dict.fromkeys(range(num_images + 1), (10, 10)))
    val = make_genome_val(columns, [Place(num_images, "VG_100K/1.jpg", 10, 10)], lvis_names={})
    assert [c.frequency for c in val.categories] == [letter]
    assert len(val.annotations) == 2


def test_numbers_that_are_not_finite_are_left_out_and_counted():
    entries = [GenomeObjects(1, [GenomeObject(None, 0, 5, 5, ["tree.n.01"])])]
    columns = collect_objects(entries, {1: (10, 10)})
    assert columns.problems == {ProblemKind.BOX_NOT_FINITE: 1}
    assert columns.image_ids.dtype == np.int64


def test_repeated_images_and_strange_urls_are_named(tmp_path: Path):
    path = tmp_path / "image_data.json"
    entry = '{"image_id": 4, "width": 5, "height": 5, "url": "x"}'
    path.write_text(f"[{entry}, {entry}]")
    with pytest.raises(UserError, match=r"image_data\.json: image_id 4 is used 2 times"):
        read_genome_images(path)
    with pytest.raises(UserError, match=r"image_data\.json: \$\[0\]\.url is 'x'"):
        genome_places([GenomeImage(4, 5, 5, "x")], path)
