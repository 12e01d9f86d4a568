import json
import os
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pycocotools.coco import COCO

from rncdl.data.annotations import (
    load_annotations,
    load_image_folder,
    load_images_or_annotations,
    without_labels,
)
from rncdl.data.masks import decode_masks
from rncdl.data.problems import ProblemKind
from rncdl.errors import UserError
from tests.data.made_up import SQUARE, annotation_entry, image_entry, write_coco, write_image
from tests.shared_data import shared_path


@pytest.fixture
def json_path(tmp_path):
    return tmp_path / "labels.json"


def test_a_file_without_annotations(json_path):
    loaded = load_annotations(write_coco(json_path))
    assert len(loaded.annotations.images) == 1
    assert len(loaded.annotations.annotation_ids) == 0
    assert loaded.annotations.boxes_xyxy.shape == (0, 4)
    assert not loaded.annotations.has_masks
    assert not loaded.annotations.is_federated
    assert not loaded.problems


def test_a_file_that_only_lists_images(json_path):
    json_path.write_text(json.dumps({"images": [image_entry()]}))
    assert load_annotations(json_path).annotations.categories == ()


def test_a_file_without_images(json_path):
    write_coco(json_path, images=[], annotations=[annotation_entry()])
    loaded = load_annotations(json_path)
    assert len(loaded.annotations.annotation_ids) == 0
    assert loaded.problems[ProblemKind.UNKNOWN_IMAGE] == 1


def test_columns_hold_what_the_file_says_sorted_by_image(json_path):
    write_coco(
        json_path,
        images=[image_entry(5), image_entry(3)],
        annotations=[
            annotation_entry(100, image_id=3, bbox=[1, 2, 3, 4], area=..., segmentation=...),
            annotation_entry(101, image_id=5, category_id=90, iscrowd=1),
            annotation_entry(102, image_id=3),
        ],
    )
    found = load_annotations(json_path).annotations
    assert [image.id for image in found.images] == [5, 3]
    assert found.images[0].path == json_path.parent / "5.png"
    assert (found.images[0].height, found.images[0].width) == (48, 64)
    assert [(c.id, c.name) for c in found.categories] == [(7, "cat"), (90, "dog")]
    assert found.annotation_ids.tolist() == [101, 100, 102]
    assert found.image_index.tolist() == [0, 1, 1]
    assert found.category_ids.tolist() == [90, 7, 7]
    assert found.boxes_xyxy.tolist() == [[10, 10, 30, 30], [1, 2, 4, 6], [10, 10, 30, 30]]
    assert found.areas.tolist() == [390.5, 12, 390.5]
    assert found.is_crowd.tolist() == [True, False, False]
    assert found.segmentations[1] is None
    assert json.loads(found.segmentations[2] or b"") == SQUARE
    assert not found.has_masks
    assert found.rows_of_image(1) == slice(1, 3)


def test_masks_are_there_when_every_annotation_has_one(json_path):
    write_coco(json_path, annotations=[annotation_entry(1), annotation_entry(2)])
    assert load_annotations(json_path).annotations.has_masks


def test_crowds_and_run_lengths(json_path):
    counts = [5 * 48 + 3, 10, 64 * 48 - 5 * 48 - 13]
    write_coco(
        json_path,
        annotations=[
            annotation_entry(iscrowd=1, segmentation={"size": [48, 64], "counts": counts})
        ],
    )
    found = load_annotations(json_path).annotations
    mask = decode_masks([found.segmentations[0] or b""], 48, 64)[0]
    assert np.argwhere(mask).tolist() == [[row, 5] for row in range(3, 13)]


def test_lvis_fields(tmp_path, json_path):
    write_image(tmp_path / "images" / "val2017" / "8.png")
    write_image(tmp_path / "flat" / "8.png")
    url = "http://images.cocodataset.org/val2017/8.png"
    lists = {"neg_category_ids": [90], "not_exhaustive_category_ids": [7]}
    write_coco(
        json_path,
        images=[image_entry(8, file_name=..., coco_url=url, **lists)],
        annotations=[annotation_entry(image_id=8, iscrowd=...)],
        categories=[{"id": 7, "name": "cat", "synset": "cat.n.01", "frequency": "f"}],
    )
    found = load_annotations(json_path, tmp_path / "images").annotations
    assert found.is_federated
    assert found.images[0].neg_category_ids == (90,)
    assert found.images[0].not_exhaustive_category_ids == (7,)
    assert found.images[0].path == tmp_path / "images" / "val2017" / "8.png"
    assert (found.categories[0].synset, found.categories[0].frequency) == ("cat.n.01", "f")
    assert not found.is_crowd.any()
    flat = load_annotations(json_path, tmp_path / "flat").annotations
    assert flat.images[0].path == tmp_path / "flat" / "8.png"


def test_images_are_found_below_the_named_folder_first_then_beside_the_file(tmp_path, json_path):
    write_coco(json_path, images=[image_entry(1, file_name="sub/1.png")])
    beside = write_image(tmp_path / "sub" / "1.png")
    (tmp_path / "elsewhere").mkdir()
    assert load_annotations(json_path).annotations.images[0].path == beside
    named = load_annotations(json_path, tmp_path / "elsewhere").annotations.images[0].path
    assert named == beside
    elsewhere = write_image(tmp_path / "elsewhere" / "sub" / "1.png")
    named = load_annotations(json_path, tmp_path / "elsewhere").annotations.images[0].path
    assert named == elsewhere


def test_an_image_that_is_nowhere_is_expected_in_the_named_folder(tmp_path, json_path):
    (tmp_path / "images").mkdir()
    found = load_annotations(write_coco(json_path), tmp_path / "images").annotations
    assert found.images[0].path == tmp_path / "images" / "1.png"


def test_a_named_folder_does_not_hide_the_one_above_it(tmp_path, json_path):
    """Each folder is listed once, under its own name."""
    names = ["1.png", "sub/1.png", "sub/2.png"]
    for name in names:
        write_image(tmp_path / "beside" / name)
    (tmp_path / "empty").mkdir()
    path = tmp_path / "beside" / "labels.json"
    write_coco(path, images=[image_entry(i, file_name=n) for i, n in enumerate(names)])
    found = load_annotations(path, tmp_path / "empty").annotations
    assert [image.path for image in found.images] == [tmp_path / "beside" / n for n in names]


def test_absolute_file_names(tmp_path, json_path):
    path = write_image(tmp_path / "far" / "away.png")
    write_coco(json_path, images=[image_entry(1, file_name=str(path))])
    assert load_annotations(json_path).annotations.images[0].path == path


def test_sizes_missing_from_the_file_are_read_from_the_images(tmp_path, json_path):
    write_image(tmp_path / "1.png", height=33, width=55)
    write_coco(json_path, images=[image_entry(1, height=..., width=...)])
    image = load_annotations(json_path).annotations.images[0]
    assert (image.height, image.width) == (33, 55)


def test_sizes_missing_everywhere(json_path):
    write_coco(json_path, images=[image_entry(1, height=...)])
    with pytest.raises(UserError, match=r"labels\.json: image 1 has no `height`.*1\.png"):
        load_annotations(json_path)


def test_unusable_annotations_are_dropped_and_counted(json_path):
    good = annotation_entry(1)
    write_coco(
        json_path,
        annotations=[
            good,
            annotation_entry(2, bbox=[-5, 10, 20, 20]),
            annotation_entry(3, bbox=[100, 10, 20, 20]),
            annotation_entry(4, bbox=[10, 10, 0, 20]),
            annotation_entry(5, bbox=[float("nan"), 10, 5, 20]),
            annotation_entry(6, bbox=[1, 10, float("inf"), 20]),
            annotation_entry(7, category_id=8),
            annotation_entry(8, image_id=2),
            good,
        ],
    )
    loaded = load_annotations(json_path)
    assert loaded.annotations.annotation_ids.tolist() == [1, 2, 1]
    assert loaded.annotations.boxes_xyxy[1].tolist() == [0, 10, 15, 30]
    assert loaded.problems.counts == {
        ProblemKind.CLIPPED_BOX: 1,
        ProblemKind.BOX_OUTSIDE: 1,
        ProblemKind.BOX_WITHOUT_AREA: 1,
        ProblemKind.BOX_NOT_FINITE: 2,
        ProblemKind.UNKNOWN_CATEGORY: 1,
        ProblemKind.UNKNOWN_IMAGE: 1,
        ProblemKind.DUPLICATE_ANNOTATION_ID: 1,
    }
    example = loaded.problems.examples[ProblemKind.BOX_NOT_FINITE][0]
    assert example.where == "annotations[4] (id 5, image 1)"
    assert example.value == "bbox [NaN, 10, 5, 20]"
    assert any("unknown category id (dropped)" in line for line in loaded.problems.lines())


def test_nan_inside_a_name_stays_a_name(json_path):
    write_coco(
        json_path,
        annotations=[annotation_entry(bbox=[float("nan"), 1, 1, 1])],
        categories=[{"id": 7, "name": 'NaN, "NaN" bread'}],
    )
    loaded = load_annotations(json_path)
    assert loaded.annotations.categories[0].name == 'NaN, "NaN" bread'
    assert loaded.problems[ProblemKind.BOX_NOT_FINITE] == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a JSON file"),
        ('{"images": [', "not a JSON file"),
        ("[]", "none of its 0 tasks"),
        ('[{"image_id": 1}]', r"missing required field `data` - at `\$\[0\]`.*Label Studio"),
        ("{}", "missing required field `images`"),
        ('{"images": [{"id": "1"}]}', r"Expected `int`, got `str` - at `\$.images\[0\].id`"),
        ('{"images": [{"id": 1, "width": 4, "height": 4}]}', r"images\[0\].*`file_name`"),
    ],
)
def test_broken_files_name_file_and_field(json_path, text, words):
    json_path.write_text(text)
    with pytest.raises(UserError, match=f"labels.json: .*{words}"):
        load_annotations(json_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bbox": ...}, r"missing required field `bbox` - at `\$.annotations\[1\]`"),
        ({"bbox": [1, 2, 3]}, r"\$.annotations\[1\].bbox"),
        ({"bbox": [1, 2, 3, "4"]}, r"\$.annotations\[1\].bbox\[3\]"),
        ({"category_id": None}, r"\$.annotations\[1\].category_id"),
    ],
)
def test_broken_annotations_name_the_field(json_path, change, words):
    write_coco(json_path, annotations=[annotation_entry(1), annotation_entry(2, **change)])
    with pytest.raises(UserError, match=words):
        load_annotations(json_path)


def test_missing_file_and_folder(tmp_path, json_path):
    with pytest.raises(UserError, match=r"labels\.json: cannot read .*No such file"):
        load_annotations(json_path)
    with pytest.raises(UserError, match="nowhere: no such folder"):
        load_annotations(write_coco(json_path), tmp_path / "nowhere")


def test_ambiguous_ids_are_refused(json_path):
    write_coco(json_path, images=[image_entry(4), image_entry(4)])
    with pytest.raises(UserError, match=r"`images` uses 1 id\(s\) more than once: 4"):
        load_annotations(json_path)
    write_coco(json_path, categories=[{"id": 7, "name": "a"}, {"id": 7, "name": "b"}])
    with pytest.raises(UserError, match=r"`categories` uses 1 id\(s\) more than once: 7"):
        load_annotations(json_path)


def test_a_byte_order_mark_is_passed_over(json_path):
    write_coco(json_path)
    json_path.write_bytes(b"\xef\xbb\xbf" + json_path.read_bytes())
    assert len(load_annotations(json_path).annotations.images) == 1


@pytest.mark.parametrize("spacing", [1, 2, 10**12])
def test_images_are_known_by_their_ids_dense_or_sparse(json_path, spacing):
    ids = [spacing * i for i in (3, -2, 5)]
    unknown = [ids[1] - 1, ids[2] + 1, spacing * 4, 2**63 - 1, -(2**63)]
    write_coco(
        json_path,
        images=[image_entry(i) for i in ids],
        annotations=[annotation_entry(row, image_id=i) for row, i in enumerate([*ids, *unknown])],
    )
    loaded = load_annotations(json_path)
    assert loaded.annotations.annotation_ids.tolist() == [0, 1, 2]
    assert loaded.annotations.image_index.tolist() == [0, 1, 2]
    assert loaded.problems[ProblemKind.UNKNOWN_IMAGE] == len(unknown)


def test_a_file_that_comes_through_a_pipe(tmp_path, json_path):
    write_coco(json_path, annotations=[annotation_entry()])
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=[json_path.read_bytes()])
    writer.start()
    assert len(load_annotations(pipe).annotations.annotation_ids) == 1
    writer.join()


IDS = st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=6, unique=True)


@settings(max_examples=40)
@given(IDS, IDS, st.data())
def test_any_ids_in_any_order(tmp_path_factory, image_ids, category_ids, data):
    pairs = data.draw(
        st.lists(st.tuples(st.sampled_from(image_ids), st.sampled_from(category_ids)))
    )
    path = write_coco(
        tmp_path_factory.mktemp("ids") / "labels.json",
        images=[image_entry(i) for i in image_ids],
        annotations=[
            annotation_entry(row, image_id=image, category_id=category)
            for row, (image, category) in enumerate(pairs)
        ],
        categories=[{"id": i, "name": str(i)} for i in category_ids],
    )
    found = load_annotations(path).annotations
    assert (np.diff(found.image_index) >= 0).all()
    columns = zip(found.annotation_ids, found.image_index, found.category_ids, strict=True)
    for row, index, category in columns:
        assert (found.images[index].id, category) == pairs[row]
    assert sorted(found.annotation_ids) == list(range(len(pairs)))


def test_a_folder_of_images(tmp_path):
    for name in ("b.png", "a/z.JPG", "a/c.webp"):
        write_image(tmp_path / name, height=20, width=30)
    (tmp_path / "notes.txt").write_text("not an image")
    (tmp_path / "._b.png").write_text("what some systems leave beside an image")
    found = load_images_or_annotations(tmp_path).annotations
    names = [image.path.relative_to(tmp_path).as_posix() for image in found.images]
    assert names == ["a/c.webp", "a/z.JPG", "b.png"]
    assert [(image.id, image.height, image.width) for image in found.images] == [
        (1, 20, 30),
        (2, 20, 30),
        (3, 20, 30),
    ]
    assert found.categories == ()
    assert len(found.annotation_ids) == 0


def test_a_folder_without_images(tmp_path):
    with pytest.raises(UserError, match="no images in this folder"):
        load_image_folder(tmp_path)


def test_a_folder_with_a_broken_image(tmp_path):
    write_image(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"b\.png"):
        load_image_folder(tmp_path)
    loaded = load_image_folder(tmp_path, on_bad_image="skip")
    assert [image.path.name for image in loaded.annotations.images] == ["a.png"]
    assert loaded.problems[ProblemKind.BROKEN_IMAGE] == 1


def test_a_rotated_image_in_a_folder_has_its_upright_size(tmp_path):
    tags = Image.Exif()
    tags[0x0112] = 8
    Image.new("RGB", (30, 20)).save(tmp_path / "a.jpg", exif=tags)
    image = load_image_folder(tmp_path).annotations.images[0]
    assert (image.height, image.width) == (30, 20)


def test_without_labels_only_images_remain(json_path):
    write_coco(
        json_path,
        images=[image_entry(1, neg_category_ids=[7], not_exhaustive_category_ids=[90])],
        annotations=[annotation_entry()],
    )
    found = without_labels(load_annotations(json_path).annotations)
    assert [image.id for image in found.images] == [1]
    assert found.images[0].neg_category_ids == found.images[0].not_exhaustive_category_ids == ()
    assert found.categories == ()
    assert not found.is_federated
    columns = (found.annotation_ids, found.category_ids, found.boxes_xyxy, found.segmentations)
    assert all(len(column) == 0 for column in columns)


def test_real_labels_agree_with_pycocotools():
    path = shared_path("coco256", "val.json")
    reference = COCO(str(path))
    loaded = load_annotations(path)
    found = loaded.annotations
    assert len(found.annotation_ids) + sum(
        loaded.problems[kind] for kind in (ProblemKind.BOX_WITHOUT_AREA, ProblemKind.BOX_OUTSIDE)
    ) == len(reference.anns)
    for row in range(0, len(found.annotation_ids), 97):
        entry = reference.anns[int(found.annotation_ids[row])]
        x, y, width, height = entry["bbox"]
        assert found.images[found.image_index[row]].id == entry["image_id"]
        assert found.category_ids[row] == entry["category_id"]
        np.testing.assert_allclose(found.boxes_xyxy[row], [x, y, x + width, y + height], atol=0.02)
    assert all(image.path.is_file() for image in found.images)
