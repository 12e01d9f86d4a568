import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from rncdl.data.annotations import load_annotations
from rncdl.data.records import AnnotationSet
from rncdl.errors import UserError
from rncdl.evaluation.average_precision import APResult, GroupAP, evaluate_detections
from rncdl.prediction.detections import Detections
from tests.shared_data import shared_path

from .made_up import (
    coco_verdict,
    lvis_verdict,
    make_detections,
    make_truth,
    random_case,
)

Case = tuple[AnnotationSet, Detections]
BOX = (10, 10, 60, 60)


def evaluate(truth: AnnotationSet, detections: Detections, iou_type="bbox", **options) -> APResult:
    options = {"known_category_ids": [1, 2, 3], **options}
    return evaluate_detections(truth, detections, iou_type=iou_type, **options)


def assert_same(ours: GroupAP, official: GroupAP) -> None:
    for name, value in dataclasses.asdict(official).items():
        if name == "num_classes":
            continue
        mine = getattr(ours, name)
        assert (mine is None) == (value is None), name
        assert value is None or mine == pytest.approx(value, abs=1e-6), name


def one_annotation(**options) -> AnnotationSet:
    return make_truth(
        [{"image": 0, "category": 1, "box_xyxy": BOX}], num_images=1, num_classes=3, **options
    )


def test_nothing_at_all_is_undefined():
    truth = make_truth([], num_images=0, num_classes=0)
    result = evaluate(truth, Detections.empty())
    assert dataclasses.asdict(result.all).keys() == dataclasses.asdict(result.novel).keys()
    assert all(value in (None, 0) for value in dataclasses.asdict(result.all).values())
    assert result.category_ids.shape == result.per_class.ap.shape == (0,)


@pytest.mark.parametrize("iou_type", ["bbox", "segm"])
@pytest.mark.parametrize("is_federated", [True, False])
def test_no_detections_score_zero_where_there_is_something_to_find(iou_type, is_federated):
    result = evaluate(one_annotation(is_federated=is_federated), make_detections_none(), iou_type)
    assert result.known.ap == 0.0
    assert result.known.average_recall == 0.0
    assert result.known.num_classes == 1
    assert result.novel.ap is None
    assert result.per_class.ap[0] == 0.0
    assert np.isnan(result.per_class.ap[1:]).all()


def make_detections_none() -> Detections:
    return dataclasses.replace(Detections.empty(), rles=[])


def test_a_perfect_detector_scores_one_for_every_group():
    truth, _ = random_case(0, is_federated=True)
    entries = [
        (int(truth.image_index[row]), int(truth.category_ids[row]), 0.9, truth.boxes_xyxy[row])
        for row in range(len(truth.annotation_ids))
    ]
    result = evaluate(truth, make_detections(truth, entries))
    for group in (result.all, result.known, result.novel):
        assert group.ap == group.ap50 == group.ap75 == group.average_recall == 1.0
    assert result.known.num_classes + result.novel.num_classes == result.all.num_classes == 8


@pytest.mark.parametrize("iou_type", ["bbox", "segm"])
@pytest.mark.parametrize("tied_scores", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_federated_random_data_as_the_lvis_package(seed, tied_scores, iou_type):
    truth, detections = random_case(seed, tied_scores=tied_scores)
    official = lvis_verdict(truth, detections, iou_type=iou_type)
    assert official.ap is not None
    assert 0.05 < official.ap < 0.95
    assert_same(evaluate(truth, detections, iou_type).all, official)


@pytest.mark.parametrize("iou_type", ["bbox", "segm"])
@pytest.mark.parametrize("tied_scores", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_plain_random_data_as_pycocotools(seed, tied_scores, iou_type):
    truth, detections = random_case(seed, tied_scores=tied_scores, is_federated=False)
    official = coco_verdict(truth, detections, iou_type=iou_type)
    assert_same(evaluate(truth, detections, iou_type).all, official)


def only_negative() -> Case:
    truth = one_annotation(negative={0: (2, 3)})
    return truth, make_detections(truth, [(0, 2, 0.9, BOX), (0, 3, 0.8, BOX), (0, 1, 0.7, BOX)])


def no_annotations() -> Case:
    truth = make_truth([], num_images=2, num_classes=3, negative={0: (1,)})
    return truth, make_detections(truth, [(0, 1, 0.9, BOX), (1, 2, 0.9, BOX)])


def nothing_judged() -> Case:
    truth = one_annotation()
    return truth, make_detections(truth, [(0, 2, 0.9, BOX)])


def foreign_category() -> Case:
    truth = one_annotation()
    return truth, make_detections(truth, [(0, 99, 0.9, BOX), (0, 1, 0.8, BOX)])


def not_exhaustive() -> Case:
    truth = one_annotation(partial={0: (1,)})
    far = (100, 100, 150, 150)
    return truth, make_detections(truth, [(0, 1, 0.9, far), (0, 1, 0.8, BOX), (0, 1, 0.7, far)])


def more_than_300(num_classes: int, tied_scores: bool) -> Case:
    return random_case(
        7,
        num_images=2,
        num_classes=num_classes,
        detections_per_image=500,
        tied_scores=tied_scores,
    )


def crowds() -> Case:
    boxes = [BOX, BOX, (12, 12, 60, 60)]
    annotations = [
        {"image": 0, "category": 1, "box_xyxy": box, "crowd": crowd}
        for box, crowd in zip(boxes, [True, False, False], strict=True)
    ]
    truth = make_truth(annotations, num_images=1, num_classes=1)
    inside = (20, 20, 50, 50)
    entries = [(0, 1, 0.9, BOX), (0, 1, 0.8, inside), (0, 1, 0.7, inside), (0, 1, 0.6, BOX)]
    return truth, make_detections(truth, entries)


def twins() -> Case:
    """Equal overlaps: of two alike annotations one has another size group, so the choice shows."""
    annotations = [
        {"image": 0, "category": 1, "box_xyxy": BOX, "area": area} for area in (900, 2500, 900)
    ]
    truth = make_truth(annotations, num_images=1, num_classes=1)
    near = (12, 10, 62, 60)
    return truth, make_detections(truth, [(0, 1, 0.5, BOX), (0, 1, 0.5, near), (0, 1, 0.5, near)])


def equal_overlap() -> Case:
    """The first detection lies midway between two annotations, the second near the later one."""
    boxes = [(10, 10, 60, 60), (20, 10, 70, 60)]
    annotations = [{"image": 0, "category": 1, "box_xyxy": box} for box in boxes]
    truth = make_truth(annotations, num_images=1, num_classes=1)
    entries = [(0, 1, 0.9, (15, 10, 65, 60)), (0, 1, 0.8, (24, 10, 74, 60))]
    return truth, make_detections(truth, entries)


def area_edges() -> Case:
    """Areas exactly 32 x 32 and 96 x 96, beside them, and none."""
    sides = (31, 32, 33, 95, 96, 97)
    annotations = [
        {"image": 0, "category": 1, "box_xyxy": (0, 0, side, side), "area": side**2 + extra}
        for side in sides
        for extra in (0, -1e-9, 1e-9)
    ]
    annotations.append({"image": 0, "category": 2, "box_xyxy": BOX, "area": 0})
    truth = make_truth(annotations, num_images=1, num_classes=2)
    entries = [(0, 1, 0.9 - side / 200, (0, 0, side, side)) for side in sides]
    entries += [(0, 1, 0.95 - side / 200, (60, 60, 60 + side, 60 + side)) for side in sides]
    entries += [(0, 2, 0.9, BOX), (0, 1, 0.99, (5, 5, 5, 9))]
    return truth, make_detections(truth, entries)


def overlap_at_thresholds() -> Case:
    """IoU exactly 0.5, 0.75 and 0.9."""
    truth = make_truth(
        [
            {"image": 0, "category": category, "box_xyxy": (0, 0, 100, 100)}
            for category in (1, 2, 3)
        ],
        num_images=1,
        num_classes=3,
    )
    heights = {1: 50, 2: 75, 3: 90}
    return truth, make_detections(truth, [(0, c, 0.9, (0, 0, 100, h)) for c, h in heights.items()])


HARD_CASES: dict[str, Callable[[], Case]] = {
    "classes only negative": only_negative,
    "no annotations": no_annotations,
    "no detection judged": nothing_judged,
    "detections of a foreign category": foreign_category,
    "classes not exhaustive": not_exhaustive,
    "more than 300 detections": lambda: more_than_300(8, False),
    "more than 300 detections, ties": lambda: more_than_300(8, True),
    "more than 300 detections of a class": lambda: more_than_300(2, True),
    "crowds": crowds,
    "alike annotations": twins,
    "equal overlap": equal_overlap,
    "areas at the edges": area_edges,
    "overlap at the thresholds": overlap_at_thresholds,
}


@pytest.mark.parametrize("iou_type", ["bbox", "segm"])
@pytest.mark.parametrize("name", HARD_CASES)
def test_hard_federated_cases_as_the_lvis_package(name, iou_type):
    truth, detections = HARD_CASES[name]()
    official = lvis_verdict(truth, detections, iou_type=iou_type)
    assert_same(evaluate(truth, detections, iou_type).all, official)


@pytest.mark.parametrize("iou_type", ["bbox", "segm"])
@pytest.mark.parametrize("name", HARD_CASES)
def test_hard_plain_cases_as_pycocotools(name, iou_type):
    truth, detections = HARD_CASES[name]()
    truth = dataclasses.replace(truth, is_federated=False)
    official = coco_verdict(truth, detections, iou_type=iou_type)
    assert_same(evaluate(truth, detections, iou_type).all, official)


@pytest.mark.parametrize("iou_type", ["bbox", "segm"])
def test_real_lvis_labels_as_the_lvis_package(iou_type):
    """Real polygons, sizes and federated lists; detections are annotations of the image, moved."""
    truth = load_annotations(shared_path("lvis", "lvis_val_100.json")).annotations
    shown = [category for category in truth.categories if category.id in truth.category_ids]
    truth = dataclasses.replace(truth, categories=tuple(shown[::4]))
    rng = np.random.default_rng(0)
    rows = np.repeat(np.arange(len(truth.annotation_ids)), 3)
    image_index = truth.image_index[rows]
    moved = truth.boxes_xyxy[rows] + rng.integers(-4, 5, size=(len(rows), 4))
    moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 1)
    sizes = [(truth.images[i].height, truth.images[i].width) for i in image_index]
    corners = moved[:, [0, 1, 0, 3, 2, 3, 2, 1]].tolist()
    ids = np.array([category.id for category in truth.categories])
    is_wrong = rng.random(len(rows)) < 0.2
    detections = Detections(
        image_ids=np.array([truth.images[i].id for i in image_index]),
        category_ids=np.where(is_wrong, rng.choice(ids, len(rows)), truth.category_ids[rows]),
        scores=rng.random(len(rows)),
        boxes_xyxy=moved,
        rles=[
            coco_mask.frPyObjects([polygon], *size)[0]
            for polygon, size in zip(corners, sizes, strict=True)
        ],
    )
    official = lvis_verdict(truth, detections, iou_type=iou_type)
    assert official.ap is not None
    assert official.ap > 0.1
    assert_same(evaluate(truth, detections, iou_type).all, official)


def test_known_and_novel_are_means_of_their_classes():
    truth, detections = random_case(1)
    result = evaluate(truth, detections, known_category_ids=[2, 5, 999])
    ap = result.per_class.ap
    assert result.category_ids[result.is_known].tolist() == [2, 5]
    assert result.known.ap == pytest.approx(ap[[1, 4]].mean())
    assert result.novel.ap == pytest.approx(ap[[0, 2, 3, 5, 6, 7]].mean())
    assert result.known.ap_common == pytest.approx(ap[[1, 4]].mean())
    assert result.known.ap_rare is None


def test_given_frequencies_replace_the_categories_own():
    truth, detections = random_case(1)
    result = evaluate(truth, detections, frequencies={1: "f", 4: "f"})
    assert result.all.ap_frequent == pytest.approx(result.per_class.ap[[0, 3]].mean())
    assert result.all.ap_rare is None


def test_one_false_positive_above_the_hit_halves_precision():
    """Detections far, right, far: precision is 1/2 at every recall, at the thresholds reached."""
    truth = one_annotation()
    far, near = (100, 100, 150, 150), (10, 10, 60, 52)  # IoU with the annotation 0.84
    entries = [(0, 1, 0.9, far), (0, 1, 0.8, near), (0, 1, 0.7, far)]
    result = evaluate(truth, make_detections(truth, entries))
    assert result.all.ap50 == result.all.ap75 == 0.5
    assert result.all.ap == pytest.approx(0.5 * 7 / 10)
    assert result.all.average_recall == pytest.approx(7 / 10)


def test_float32_columns_give_the_same_answer():
    truth, detections = random_case(2, tied_scores=True)
    single = dataclasses.replace(
        detections,
        scores=detections.scores.astype(np.float32),
        boxes_xyxy=detections.boxes_xyxy.astype(np.float32),
    )
    assert evaluate(truth, single).all == evaluate(truth, detections).all


def test_detection_of_a_foreign_image_is_refused():
    truth = one_annotation()
    detections = make_detections(truth, [(0, 1, 0.9, BOX)])
    moved = dataclasses.replace(detections, image_ids=detections.image_ids + 1)
    with pytest.raises(ValueError, match="12"):
        evaluate(truth, moved)


def test_mask_ap_without_truth_masks_names_the_annotation():
    truth = dataclasses.replace(one_annotation(), segmentations=[None])
    with pytest.raises(UserError, match="Annotation 1 has no segmentation"):
        evaluate(truth, make_detections(truth, [(0, 1, 0.9, BOX)]), "segm")


def test_undefined_class_values_are_nan():
    truth, detections = only_negative()
    result = evaluate(truth, detections)
    assert [math.isnan(value) for value in result.per_class.ap] == [False, True, True]
    assert result.per_class.num_annotations.tolist() == [1, 0, 0]
