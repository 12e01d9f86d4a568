import json
from pathlib import Path

import msgspec
import pytest

from rncdl.data.annotation_file import FileAnnotation, FileImage
from rncdl.data.annotations import load_annotations
from rncdl.data.public.formats import (
    MadeFile,
    NamedClass,
    Place,
    find_file,
    link_image_folders,
    place_in_url,
    places_by_id,
)
from rncdl.errors import UserError


def test_an_empty_file_is_written_and_read(tmp_path: Path):
    MadeFile([]).write(tmp_path / "empty.json")
    assert json.loads((tmp_path / "empty.json").read_text()) == {
        "images": [],
        "annotations": [],
        "categories": [],
    }
    assert load_annotations(tmp_path / "empty.json").annotations.images == ()


def test_what_is_written_is_what_the_loader_reads(tmp_path: Path):
    polygon = b"[[0, 0, 4, 0, 4, 4.50]]"
    made = MadeFile(
        [Place(7, "train2017/7.jpg", 48, 64, [1], [])],
        [
            FileAnnotation(1, 7, 3, (1.0, 2.0, 3.0, 4.0), 9.5, 0, msgspec.Raw(polygon)),
            FileAnnotation(2, 7, 3, (1.0, 2.0, 3.0, 4.0)),
        ],
        [NamedClass(3, "couch", "sofa.n.01", "f")],
    )
    made.write(tmp_path / "made.json")

    loaded = load_annotations(tmp_path / "made.json").annotations

    assert loaded.images[0].path == tmp_path / "train2017" / "7.jpg"
    assert loaded.images[0].neg_category_ids == (1,)
    assert loaded.is_federated
    assert list(loaded.segmentations) == [polygon, None]
    assert loaded.areas.tolist() == [9.5, 12.0]
    assert (loaded.categories[0].synset, loaded.categories[0].frequency) == ("sofa.n.01", "f")


def test_images_without_labels_say_nothing_of_classes():
    place = Place(7, "train2017/7.jpg", 48, 64, [1], [2]).without_labels()
    assert b"category" not in msgspec.json.encode(place)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        (
            "http://images.cocodataset.org/train2017/000000000009.jpg",
            "train2017/000000000009.jpg",
        ),
        ("https://cs.stanford.edu/people/rak248/VG_100K_2/1.jpg", "VG_100K_2/1.jpg"),
        (None, None),
        ("", None),
        ("1.jpg", None),
        ("http://x/../1.jpg", None),
        ("http://x/train2017/..", None),
        ("http://[/1.jpg", None),
    ],
)
def test_the_end_of_a_url_is_the_place_on_disk(url: str | None, place: str | None):
    assert place_in_url(url) == place


def test_an_image_without_url_or_with_anothers_id_is_named():
    url = "http://x/val2017/1.jpg"
    with pytest.raises(UserError, match=r"a\.json: \$\.images\[1\]\.coco_url"):
        places_by_id([FileImage(1, coco_url=url), FileImage(2)], Path("a.json"))
    with pytest.raises(UserError, match=r"a\.json: \$\.images\[1\]\.id 1"):
        places_by_id([FileImage(1, coco_url=url)] * 2, Path("a.json"))


def test_files_are_found_where_the_archives_put_them(tmp_path: Path):
    with pytest.raises(UserError, match=r"a\.json: no such file.*annotations/a\.json"):
        find_file(tmp_path, "a.json")
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "a.json").touch()
    assert find_file(tmp_path, "a.json") == tmp_path / "annotations" / "a.json"


def test_links_lead_to_the_image_folders_and_can_be_made_again(tmp_path: Path):
    places = [Place(1, "train2017/1.jpg"), Place(2, "VG_100K/2.jpg")]
    for folder in ("old/train2017", "coco/train2017", "vg/images/VG_100K"):
        (tmp_path / folder).mkdir(parents=True)
    out = tmp_path / "out"
    link_image_folders(out, places[:1], [tmp_path / "old"])
    for _ in range(2):
        link_image_folders(out, places, [tmp_path / "vg", tmp_path / "coco"])
    assert (out / "train2017").resolve() == (tmp_path / "coco" / "train2017").resolve()
    assert (out / "VG_100K").resolve() == (tmp_path / "vg" / "images" / "VG_100K").resolve()


def test_a_missing_image_folder_and_one_in_the_way_are_named(tmp_path: Path):
    with pytest.raises(UserError, match=r"No folder train2017.*coco/images/train2017"):
        link_image_folders(tmp_path, [Place(1, "train2017/1.jpg")], [tmp_path / "coco"])
    (tmp_path / "coco" / "train2017").mkdir(parents=True)
    (tmp_path / "train2017").mkdir()
    with pytest.raises(UserError, match="train2017: cannot be made a link"):
        link_image_folders(tmp_path, [Place(1, "train2017/1.jpg")], [tmp_path / "coco"])
    link_image_folders(tmp_path / "coco", [Place(1, "train2017/1.jpg")], [tmp_path / "coco"])
