from pathlib import Path

import numpy as np
import pytest

from rncdl.data.annotations import load_annotations
from rncdl.data.check import find_problems
from rncdl.data.masks import encode_rle, to_rle
from rncdl.data.problems import ProblemKind
from rncdl.errors import UserError
from tests.data.made_up import write_image
from tests.data.readers.test_yolo import boxes

META = "<meta><task><labels><label><name>owl</name></label></labels></task></meta>"


def write_cvat(folder: Path, shapes: str, *, name: str = "1.png", meta: str = META) -> Path:
    path = folder / "annotations.xml"
    path.write_text(
        f"<?xml version='1.0'?><annotations><version>1.1</version>{meta}"
        f'<image id="0" name="{name}" width="64" height="48">{shapes}</image></annotations>'
    )
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_image(tmp_path / "images" / "1.png")
    return tmp_path


def test_no_shapes_are_an_image_without_objects(folder: Path):
    found = load_annotations(write_cvat(folder, "")).annotations
    assert [image.path for image in found.images] == [folder / "images" / "1.png"]
    assert [one.name for one in found.categories] == ["owl"]
    assert len(found.annotation_ids) == 0
    assert find_problems(folder) == []


def test_boxes_polygons_and_masks_are_read(folder: Path):
    write_cvat(
        folder,
        '<box label="cat" xtl="1.5" ytl="2" xbr="11.5" ybr="12"/>'
        '<polygon label="owl" points="0,0;10.5,0;10,20"/>'
        '<mask label="cat" rle="1, 2, 3" left="4" top="5" width="3" height="2"/>',
    )
    found = load_annotations(folder).annotations
    assert boxes(found) == [
        ("cat", [1.5, 2, 11.5, 12]),
        ("owl", [0, 0, 10.5, 20]),
        ("cat", [5, 5, 7, 6]),
    ]
    assert found.areas.tolist() == [100, 105, 2]
    mask = np.zeros((48, 64), dtype=bool)
    mask[5, 5:7] = True
    assert to_rle(found.segmentations[2] or b"", 48, 64) == encode_rle(mask)


def test_turned_boxes_become_upright_and_ellipses_polygons(folder: Path):
    write_cvat(
        folder,
        '<box label="cat" xtl="10" ytl="20" xbr="30" ybr="24" rotation="90"/>'
        '<ellipse label="cat" cx="30" cy="20" rx="10" ry="5" rotation="90"/>',
    )
    found = load_annotations(folder).annotations
    assert np.allclose(found.boxes_xyxy[0], [18, 12, 22, 32])
    assert np.allclose(found.boxes_xyxy[1], [25, 10, 35, 30], atol=0.05)
    assert np.allclose(found.areas[1], np.pi * 50)


def test_what_is_no_region_is_told(folder: Path):
    write_cvat(folder, '<tag label="cat"/><points label="cat" points="1,1"/><tag label="a"/>')
    loaded = load_annotations(folder)
    assert loaded.notes == [
        "2 × <tag> is no region and was left out",
        "1 × <points> is no region and was left out",
    ]


def test_images_of_a_project_lie_in_folders_of_its_subsets(tmp_path: Path):
    write_image(tmp_path / "images" / "default" / "1.png")
    found = load_annotations(write_cvat(tmp_path, "")).annotations
    assert found.images[0].path == tmp_path / "images" / "default" / "1.png"


def test_problems_are_told_with_image_and_shape(folder: Path):
    write_cvat(folder, '<box label="cat" xtl="-5" ytl="0" xbr="9" ybr="9"/>')
    (problem,) = find_problems(folder)
    assert problem.kind is ProblemKind.CLIPPED_BOX
    assert problem.where == f"{folder / 'annotations.xml'}, image '1.png', <box> 1"


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ('<box xtl="1" ytl="1" xbr="9" ybr="9"/>', r"<box> 1: no `label`"),
        ('<box label="a" xtl="x" ytl="1" xbr="9" ybr="9"/>', r"<box> 1: `xtl` is 'x'; a number"),
        ('<box label="a" ytl="1" xbr="9" ybr="9"/>', r"<box> 1: `xtl` is missing"),
        ('<polygon label="a" points="1,1;2,2"/>', r"`points` is '1,1;2,2'; a polygon has three"),
        (
            '<mask label="a" rle="1,2" left="0" top="0" width="2" height="2"/>',
            r"<mask> 1: a mask's run lengths cover 3 pixels, its box has 2 × 2",
        ),
        ("<box", r"annotations.xml: not XML"),
    ],
)
def test_bad_shapes_are_told_with_image_field_and_value(folder: Path, shape: str, words: str):
    with pytest.raises(UserError, match=words):
        load_annotations(write_cvat(folder, shape))


def test_other_xml_and_archives_are_told_what_to_do(tmp_path: Path):
    path = tmp_path / "some.xml"
    for text, words in {
        "<annotations><track/></annotations>": "CVAT for video.*CVAT for images 1.1",
        "<html></html>": "<html> is neither",
        "<annotations><image/></annotations>": "no `name`",
    }.items():
        path.write_text(text)
        with pytest.raises(UserError, match=words):
            load_annotations(path)
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(UserError, match=r"an archive. Unpack it"):
        load_annotations(path)
