import shutil

import numpy as np
import pytest
from PIL import Image

from rncdl.data.check import find_problems, find_shared_images, image_paths
from rncdl.data.problems import ProblemKind
from rncdl.errors import UserError
from tests.data.made_up import annotation_entry, image_entry, write_coco, write_image
from tests.shared_data import shared_path


@pytest.fixture
def json_path(tmp_path):
    write_image(tmp_path / "1.png")
    return tmp_path / "labels.json"


def kinds(problems):
    return [problem.kind for problem in problems]


def test_nothing_wrong(json_path):
    assert find_problems(write_coco(json_path, annotations=[annotation_entry()])) == []


def test_every_problem_is_listed_with_its_place(tmp_path, json_path):
    write_image(tmp_path / "2.png", height=10, width=20)
    (tmp_path / "3.png").write_bytes(b"broken")
    write_coco(
        json_path,
        images=[image_entry(1), image_entry(2), image_entry(3), image_entry(4), image_entry(1)],
        annotations=[
            annotation_entry(1, bbox=[-5, 0, 10, 10]),
            annotation_entry(2, bbox=[500, 0, 10, 10]),
            annotation_entry(3, bbox=[5, 0, 0, 10]),
            annotation_entry(4, bbox=[float("nan"), 0, 10, 10]),
            annotation_entry(5, category_id=1),
            annotation_entry(6, image_id=77),
            annotation_entry(6),
            annotation_entry(8, segmentation=[[1, 2, 3, 4, 5, 6, 7]]),
        ],
        categories=[
            {"id": 7, "name": "cat"},
            {"id": 7, "name": "dog"},
            {"id": 8, "name": "cat"},
            {"id": 9, "name": "Cat "},
        ],
    )
    found = {problem.kind: problem for problem in find_problems(json_path)}
    of_many_images = {
        ProblemKind.REPEATED_IMAGE,
        ProblemKind.ALIKE_IMAGES,
        ProblemKind.SHARED_IMAGE,
    }
    assert set(found) == set(ProblemKind) - of_many_images
    assert len(find_problems(json_path)) == len(found)
    assert found[ProblemKind.SIMILAR_CATEGORY_NAME].value == "'Cat ' beside 'cat'"
    assert found[ProblemKind.DUPLICATE_IMAGE_ID].where == "images[4]"
    assert found[ProblemKind.DUPLICATE_CATEGORY_ID].where == "categories[1]"
    assert found[ProblemKind.DUPLICATE_CATEGORY_NAME].value == "'cat'"
    assert found[ProblemKind.WRONG_SIZE].where == str(tmp_path / "2.png")
    assert found[ProblemKind.WRONG_SIZE].value == "20 × 10, not 64 × 48 (width × height)"
    assert found[ProblemKind.BROKEN_IMAGE].where == str(tmp_path / "3.png")
    assert found[ProblemKind.MISSING_IMAGE].where == str(tmp_path / "4.png")
    assert found[ProblemKind.CLIPPED_BOX].where == "annotations[0] (id 1, image 1)"
    assert found[ProblemKind.CLIPPED_BOX].value == "bbox [-5, 0, 10, 10]"
    assert found[ProblemKind.UNKNOWN_CATEGORY].value == "category_id 1"
    assert found[ProblemKind.UNKNOWN_IMAGE].value == "image_id 77"
    assert found[ProblemKind.DUPLICATE_ANNOTATION_ID].where.startswith("annotations[6]")
    assert "odd number" in found[ProblemKind.BROKEN_MASK].value
    assert all(problem.consequence for problem in found.values())


def test_more_problems_of_a_kind_than_examples_are_all_listed(json_path):
    write_coco(json_path, annotations=[annotation_entry(i, category_id=1) for i in range(20)])
    assert kinds(find_problems(json_path)) == [ProblemKind.UNKNOWN_CATEGORY] * 20


def test_images_without_recorded_size_are_judged_by_their_own(json_path):
    write_coco(
        json_path,
        images=[image_entry(1, height=..., width=...), image_entry(2, height=..., width=...)],
        annotations=[annotation_entry(1, bbox=[60, 0, 10, 10]), annotation_entry(2, image_id=2)],
    )
    assert kinds(find_problems(json_path)) == [ProblemKind.MISSING_IMAGE, ProblemKind.CLIPPED_BOX]


def test_a_folder_lists_its_broken_images(tmp_path, json_path):
    assert find_problems(tmp_path) == []
    for i in range(5):
        (tmp_path / f"broken{i}.jpg").write_bytes(b"")
    assert kinds(find_problems(tmp_path)) == [ProblemKind.BROKEN_IMAGE] * 5


def test_a_file_that_is_no_annotation_file(json_path):
    json_path.write_text("{")
    with pytest.raises(UserError, match="not a JSON file"):
        find_problems(json_path)


def test_real_labels_are_clean():
    assert find_problems(shared_path("coco256", "val.json")) == []


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["car", "cart"], []),
        (["Car", "car "], ["'car ' beside 'Car'"]),
        (["traffic light", "traffic_light", "Traffic-Light"], ["'traffic_light'", "'Traffic-L"]),
        (["car", "car"], []),  # the same name is another problem
    ],
)
def test_classes_named_twice_are_found_however_they_are_written(json_path, names, found):
    categories = [{"id": number, "name": name} for number, name in enumerate(names)]
    problems = find_problems(write_coco(json_path, categories=categories))
    similar = [one.value for one in problems if one.kind is ProblemKind.SIMILAR_CATEGORY_NAME]
    assert [value.startswith(start) for value, start in zip(similar, found, strict=True)] == [
        True
    ] * len(found)


def test_images_of_both_sets_are_found_whatever_their_names(tmp_path):
    photograph(tmp_path / "train" / "a.png", seed=0)
    photograph(tmp_path / "train" / "b.png", seed=1)
    photograph(tmp_path / "val" / "c.png", seed=2)
    trained_on = image_paths(tmp_path / "train")
    assert find_shared_images(tmp_path / "val", None, trained_on=trained_on) == []
    shutil.copy(tmp_path / "train" / "b.png", tmp_path / "val" / "d.png")
    (shared,) = find_shared_images(tmp_path / "val", None, trained_on=trained_on)
    assert shared.kind is ProblemKind.SHARED_IMAGE
    assert shared.where == str(tmp_path / "val" / "d.png")
    assert shared.value == f"the same as {tmp_path / 'train' / 'b.png'}"


def test_an_image_that_is_there_twice_is_found_once(tmp_path):
    for name, seed in (("a.png", 0), ("b.png", 1), ("c.png", 0)):
        photograph(tmp_path / name, seed=seed)
    (problem,) = find_problems(tmp_path)
    assert problem.kind is ProblemKind.REPEATED_IMAGE
    assert problem.where == str(tmp_path / "c.png")


def test_a_still_scene_is_told_from_photographs(tmp_path):
    for number in range(10):
        photograph(tmp_path / "changing" / f"{number}.png", seed=number)
        photograph(tmp_path / "still" / f"{number}.png", seed=0, noise=number)
    assert find_problems(tmp_path / "changing") == []
    assert kinds(find_problems(tmp_path / "still")) == [ProblemKind.ALIKE_IMAGES]


def photograph(path, *, seed, noise=0):
    """Areas of their own brightness; `noise`: one grey value more or less."""
    draw = np.random.default_rng(seed)
    areas = np.kron(draw.integers(20, 235, (4, 4)), np.ones((12, 16)))
    grain = np.random.default_rng(noise).integers(-1, 2, areas.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((areas + grain).astype(np.uint8)).save(path)
