from pathlib import Path

import numpy as np
import pytest

from rncdl.data.annotations import load_annotations, load_images_or_annotations
from rncdl.data.check import find_problems
from rncdl.data.masks import to_rle
from rncdl.data.problems import ProblemKind
from rncdl.data.readers.yolo import label_file
from rncdl.data.records import AnnotationSet
from rncdl.errors import UserError
from tests.data.made_up import write_image

DATA_YAML = "train: images/train\nval: images/val\nnames: {0: cat, 2: dog}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two parts; images of 64 × 48. The last image has no labels."""
    for name in ("train/a b.png", "train/ü.png", "val/a b.png"):
        write_image(tmp_path / "images" / name)
    for name, text in {
        "train/a b.txt": "0 0.5 0.5 0.25 0.5\n2 0.25 0.25 0.75 0.25 0.75 0.75\n",
        "train/ü.txt": "",
    }.items():
        path = tmp_path / "labels" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "data.yaml").write_text(DATA_YAML)
    return tmp_path


def boxes(annotations: AnnotationSet) -> list[tuple[str, list[float]]]:
    names = {one.id: one.name for one in annotations.categories}
    return [
        (names[int(category)], box.tolist())
        for category, box in zip(annotations.category_ids, annotations.boxes_xyxy, strict=True)
    ]


def test_boxes_and_polygons_are_read_in_pixels(folder: Path):
    for path in (folder, folder / "data.yaml"):
        loaded = load_annotations(path)
        found = loaded.annotations
        assert [str(image.path.relative_to(folder)) for image in found.images] == [
            *("images/train/a b.png", "images/train/ü.png", "images/val/a b.png")
        ]
        assert [(image.height, image.width) for image in found.images] == [(48, 64)] * 3
        assert boxes(found) == [("cat", [24, 12, 40, 36]), ("dog", [16, 12, 48, 36])]
        assert found.areas.tolist() == [16 * 24, 32 * 24 / 2]
        assert found.segmentations[0] is None
        mask = to_rle(found.segmentations[1] or b"", 48, 64)
        assert mask == to_rle(b"[[16,12,48,12,48,36]]", 48, 64)
        assert loaded.notes == [
            "its parts are read together: train (2 images), val (1 images); "
            "name one's folder of images for it"
        ]
    assert find_problems(folder) == []


def test_one_part_is_named_by_its_images(folder: Path):
    loaded = load_annotations(folder / "images" / "train")
    assert len(loaded.annotations.images) == 2
    assert len(loaded.annotations.annotation_ids) == 2
    assert not loaded.notes
    unlabelled = load_images_or_annotations(folder / "images" / "val")
    assert [image.path.name for image in unlabelled.annotations.images] == ["a b.png"]


def test_plain_folders_have_a_list_of_names(folder: Path):
    (folder / "data.yaml").unlink()
    for place in ("classes.txt", "labels/classes.txt"):
        (folder / place).write_text("cat\n\ndog\n")
        found = load_annotations(folder).annotations
        assert [one.name for one in found.categories] == ["cat", "dog"]
        assert boxes(found) == [("cat", [24, 12, 40, 36]), ("dog", [16, 12, 48, 36])]
        (folder / place).unlink()


@pytest.mark.parametrize(
    "text",
    [
        "names: [cat, owl, dog]\ntrain: [images/train, images/val]\n",
        "names: [cat, owl, dog]\npath: images\ntrain: train\nval: val\n",
        "names: [cat, owl, dog]\ntrain: ../images/train\nval: ../images/val\n",
        "names: [cat, owl, dog]\npath: /nowhere/at/all\ntrain: images/train\nval: list.txt\n",
        "names: [cat, owl, dog]\ntrain: images\nval: images\n",
    ],
)
def test_descriptions_name_images_in_many_ways(folder: Path, text: str):
    (folder / "list.txt").write_text("./images/val/a b.png\n")
    (folder / "data.yaml").write_text(text)
    found = load_annotations(folder).annotations
    assert len(found.images) == 3
    assert boxes(found) == [("cat", [24, 12, 40, 36]), ("dog", [16, 12, 48, 36])]


def test_a_part_that_is_not_there_is_told(folder: Path):
    (folder / "data.yaml").write_text(DATA_YAML + "test: images/test\n")
    assert load_annotations(folder).notes[0].endswith("images/test is not there and was left out")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1 0.5 0.5 0.1 0.1", r"ü.txt, line 2: class '1' is not in .*data.yaml"),
        ("cat 0.5 0.5 0.1 0.1", r"ü.txt, line 2: class 'cat' is not in .*numbers 0 to 2"),
        ("0 0.5 x 0.1 0.1", r"ü.txt, line 2: number 2 is 'x'; a number"),
        ("0 0.5 0.5 0.1", r"ü.txt, line 2: 3 numbers follow the class; a box has 4"),
        ("0 0.5 0.5 0.1 0.1 0.9", r"ü.txt, line 2: 5 numbers follow"),
        ("0 32 24 10 10", r"ü.txt, line 2: 32 is no share of the image's side"),
    ],
)
def test_bad_lines_are_told_with_file_line_and_value(folder: Path, line: str, words: str):
    (folder / "labels" / "train" / "ü.txt").write_text(f"0 0.5 0.5 0.1 0.1\n{line}\n")
    with pytest.raises(UserError, match=words):
        load_annotations(folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("names: 3\ntrain: images", r"data.yaml: `names` is 3; give a list"),
        ("names: [cat", r"data.yaml: not YAML"),
        ("names: [cat]\ntrain: nowhere\n", r"data.yaml: no images in `train`.*Correct"),
    ],
)
def test_bad_descriptions_are_told_with_file_and_field(folder: Path, text: str, words: str):
    (folder / "data.yaml").write_text(text)
    with pytest.raises(UserError, match=words):
        load_annotations(folder)


def test_a_description_without_names_is_none(folder: Path):
    (folder / "data.yaml").write_text("train: images\n")
    with pytest.raises(UserError, match=r"data.yaml: no `names`"):
        load_annotations(folder / "data.yaml")
    with pytest.raises(UserError, match="a folder without labels"):
        load_annotations(folder)
    assert len(load_images_or_annotations(folder).annotations.images) == 3


def test_a_box_outside_is_clipped_and_told_with_its_line(folder: Path):
    (folder / "labels" / "train" / "ü.txt").write_text("\n0 1.0 0.5 0.5 0.5\n")
    (problem,) = find_problems(folder)
    assert problem.kind is ProblemKind.CLIPPED_BOX
    assert problem.where == f"{folder / 'labels' / 'train' / 'ü.txt'}, line 2"
    box = boxes(load_annotations(folder).annotations)[2][1]
    assert np.allclose(box, [48, 12, 64, 36])


def test_a_broken_image_and_images_without_any_labels_are_told(folder: Path):
    (folder / "images" / "val" / "a b.png").write_bytes(b"broken")
    assert [one.kind for one in find_problems(folder)] == [ProblemKind.BROKEN_IMAGE]
    with pytest.raises(UserError, match=r"a b.png: broken or unsupported"):
        load_annotations(folder)
    with pytest.raises(UserError, match=r"Leave --images out"):
        load_annotations(folder, folder / "images")
    for path in (folder / "labels").rglob("*.txt"):
        path.unlink()
    with pytest.raises(UserError, match=r"none of its 3 images has labels.*labels/train/a b.txt"):
        load_annotations(folder)


def test_labels_lie_below_labels_or_beside_the_image(tmp_path: Path):
    image = tmp_path / "images" / "x" / "images" / "train" / "1.jpg"
    swapped = tmp_path / "images" / "x" / "labels" / "train" / "1.txt"
    assert label_file(image) == swapped
    image.parent.mkdir(parents=True)
    image.with_suffix(".txt").touch()
    assert label_file(image) == image.with_suffix(".txt")
    swapped.parent.mkdir(parents=True)
    swapped.touch()
    assert label_file(image) == swapped
