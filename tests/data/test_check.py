import pytest

from rncdl.data.check import find_problems
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
        ],
    )
    found = {problem.kind: problem for problem in find_problems(json_path)}
    assert set(found) == set(ProblemKind)
    assert len(find_problems(json_path)) == len(ProblemKind)
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
