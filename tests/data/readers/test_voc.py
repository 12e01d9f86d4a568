from pathlib import Path

import pytest

from rncdl.data.annotations import load_annotations, load_images_or_annotations
from rncdl.data.check import find_problems
from rncdl.data.problems import ProblemKind
from rncdl.errors import UserError
from tests.data.made_up import write_image
from tests.data.readers.test_yolo import boxes

BOX = "<bndbox><xmin>1</xmin><ymin>3</ymin><xmax>20</xmax><ymax>12.5</ymax></bndbox>"
SIZE = "<size><width>64</width><height>48</height><depth>3</depth></size>"


def write_xml(path: Path, filename: str = "", *, size: str = SIZE, objects: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"<annotation><filename>{filename}</filename>{size}{objects}</annotation>", "utf-8"
    )
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for stem in ("1", "ü"):
        write_image(tmp_path / "JPEGImages" / f"{stem}.png")
    objects = f"<object><name>cat &amp; dog</name>{BOX}</object>"
    write_xml(tmp_path / "Annotations" / "1.xml", "1.png", objects=objects)
    write_xml(tmp_path / "Annotations" / "ü.xml", "other.jpg", size="")
    (tmp_path / "ImageSets" / "Main").mkdir(parents=True)
    (tmp_path / "ImageSets" / "Main" / "val.txt").write_text("ü  1\n\n")
    write_image(tmp_path / "SegmentationClass" / "1.png")
    return tmp_path


def test_boxes_are_read_in_pixels_from_the_first_to_the_last(folder: Path):
    found = load_annotations(folder).annotations
    assert [image.path.name for image in found.images] == ["1.png", "ü.png"]
    assert [(image.height, image.width) for image in found.images] == [(48, 64)] * 2
    assert boxes(found) == [("cat & dog", [0, 2, 20, 12.5])]
    assert find_problems(folder) == []


def test_as_unlabelled_images_only_the_images_count(folder: Path):
    found = load_images_or_annotations(folder).annotations
    assert [image.path.parent.name for image in found.images] == ["JPEGImages"] * 2


def test_a_list_names_a_part(folder: Path):
    found = load_annotations(folder / "ImageSets" / "Main" / "val.txt").annotations
    assert [image.path.name for image in found.images] == ["ü.png"]
    (folder / "ImageSets" / "Main" / "val.txt").write_text("1\n7\n")
    with pytest.raises(UserError, match=r"val.txt, line 2: no 7.xml"):
        load_annotations(folder / "ImageSets" / "Main" / "val.txt")


def test_files_beside_their_images_are_read_too(folder: Path):
    flat = folder / "JPEGImages"
    for path in (folder / "Annotations").iterdir():
        path.rename(flat / path.name)
    found = load_annotations(flat).annotations
    assert [image.path for image in found.images] == [flat / "1.png", flat / "ü.png"]
    assert len(found.annotation_ids) == 1


def test_folders_in_folders_and_images_elsewhere(tmp_path: Path):
    for part in "ab":
        write_image(tmp_path / "images" / part / "1.png")
        write_image(tmp_path / "elsewhere" / f"{part}.png")
        write_xml(tmp_path / "set" / "annotations" / f"{part}.xml", f"{part}.png")
        write_xml(tmp_path / "annotations" / part / "1.xml", "1.png")
    found = load_annotations(tmp_path).annotations
    assert [str(image.path.relative_to(tmp_path)) for image in found.images] == [
        *("images/a/1.png", "images/b/1.png")
    ]
    found = load_annotations(tmp_path / "set", tmp_path / "elsewhere").annotations
    assert [str(image.path.relative_to(tmp_path)) for image in found.images] == [
        *("elsewhere/a.png", "elsewhere/b.png")
    ]


def test_boxes_of_tools_that_count_from_0_stay_inside(folder: Path):
    zero = BOX.replace("<xmin>1<", "<xmin>0<")
    write_xml(
        folder / "Annotations" / "1.xml",
        "1.png",
        objects=f"<object><name>cat</name>{zero}</object>",
    )
    assert boxes(load_annotations(folder).annotations) == [("cat", [0, 2, 20, 12.5])]
    assert find_problems(folder) == []


def test_problems_are_told_with_file_and_object(folder: Path):
    objects = f"<object><name>cat</name>{BOX.replace('>20<', '>200<')}</object>"
    path = write_xml(folder / "Annotations" / "1.xml", "1.png", objects=objects)
    (problem,) = find_problems(folder)
    assert (problem.kind, problem.where) == (ProblemKind.CLIPPED_BOX, f"{path}, object 1")
    (folder / "JPEGImages" / "1.png").unlink()
    assert find_problems(folder)[0].kind is ProblemKind.MISSING_IMAGE


@pytest.mark.parametrize(
    ("objects", "words"),
    [
        (f"<object>{BOX}</object>", r"1.xml, object 1: no `name`"),
        ("<object><name>cat</name></object>", r"1: `bndbox/xmin` is missing; a number"),
        (
            f"<object><name>cat</name>{BOX.replace('12.5', 'wide')}</object>",
            r"1.xml, object 1: `bndbox/ymax` is 'wide'; a number is expected",
        ),
        ("<object>", r"1.xml: not XML: mismatched tag"),
    ],
)
def test_bad_files_are_told_with_file_field_and_value(folder: Path, objects: str, words: str):
    write_xml(folder / "Annotations" / "1.xml", "1.png", objects=objects)
    with pytest.raises(UserError, match=words):
        load_annotations(folder)


def test_one_file_alone_is_no_dataset(folder: Path):
    with pytest.raises(UserError, match=r"1.xml: one image's labels.*Give the folder"):
        load_annotations(folder / "Annotations" / "1.xml")


def test_a_list_of_no_dataset_is_told(tmp_path: Path):
    (tmp_path / "lost.txt").write_text("1\n")
    with pytest.raises(UserError, match=r"lost.txt: a list of a PASCAL VOC dataset"):
        load_annotations(tmp_path / "lost.txt")
