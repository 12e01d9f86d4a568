import numpy as np

from rncdl.evaluation.average_precision import evaluate_detections
from rncdl.evaluation.perfect_clustering import name_perfectly

from .made_up import make_detections, make_truth

# Output 0 is the known class 1; clusters 1 and 2 stand for class 2 and for nothing.
CATEGORY_IDS = np.array([1, 2, -1])
IS_CLUSTER = np.array([False, True, True])
LEFT, RIGHT = (10.0, 10.0, 50.0, 50.0), (100.0, 10.0, 140.0, 50.0)
TRUTH = make_truth(
    [
        {"image": 0, "category": 2, "box_xyxy": LEFT},
        {"image": 0, "category": 3, "box_xyxy": RIGHT},
        {"image": 1, "category": 1, "box_xyxy": LEFT},
    ],
    num_images=2,
    num_classes=3,
    is_federated=False,
)


def named(*entries: tuple[int, int, float, tuple[float, ...]]) -> list[tuple[int, float]]:
    """Category and score of what is left of detections (image, output, score, box)."""
    found = name_perfectly(
        make_detections(TRUTH, entries),
        TRUTH,
        category_ids=CATEGORY_IDS,
        is_cluster=IS_CLUSTER,
        nms=0.5,
    )
    return list(zip(found.category_ids.tolist(), found.scores.tolist(), strict=True))


def test_nothing_found_stays_nothing():
    assert named() == []


def test_without_annotations_detections_stay_in_their_clusters():
    nothing = make_truth([], num_images=1, num_classes=3)
    found = make_detections(nothing, [(0, 1, 0.5, LEFT), (0, 2, 0.4, RIGHT)])
    kept = name_perfectly(found, nothing, category_ids=CATEGORY_IDS, is_cluster=IS_CLUSTER, nms=0.5)
    assert kept.category_ids.tolist() == [2]


def test_a_cluster_s_detection_takes_the_class_of_its_object():
    # The second stands for nothing, and the first for another class than its object's.
    assert named((0, 1, 0.9, RIGHT), (0, 2, 0.3, LEFT)) == [(3, 0.9), (2, 0.3)]


def test_the_object_is_the_one_that_is_overlapped_most():
    crowded = make_truth(
        [
            {"image": 0, "category": 2, "box_xyxy": (10.0, 10.0, 50.0, 40.0)},
            {"image": 0, "category": 3, "box_xyxy": LEFT},
        ],
        num_images=1,
        num_classes=3,
        is_federated=False,
    )
    found = make_detections(crowded, [(0, 1, 0.9, (10.0, 10.0, 50.0, 48.0))])
    kept = name_perfectly(found, crowded, category_ids=CATEGORY_IDS, is_cluster=IS_CLUSTER, nms=0.5)
    assert kept.category_ids.tolist() == [3]


def test_known_outputs_and_known_objects_are_left_alone():
    # A novel object called known stays known; a known object in a cluster stays in it.
    assert named((0, 0, 0.9, LEFT), (1, 1, 0.8, LEFT)) == [(1, 0.9), (2, 0.8)]


def test_background_in_a_cluster_without_a_class_is_dropped():
    assert named((0, 2, 0.9, (150.0, 100.0, 190.0, 140.0))) == []


def test_two_clusters_that_share_an_object_count_once():
    assert named((0, 1, 0.2, LEFT), (0, 2, 0.7, LEFT)) == [(2, 0.7)]


def test_the_bound_is_reached_by_objects_that_rank_before_the_background():
    background = (150.0, 100.0, 190.0, 140.0)
    for score, bound in ((0.1, 1.0), (0.95, 0.75)):
        entries = [(0, 2, 0.9, LEFT), (0, 2, 0.8, RIGHT), (0, 1, score, background)]
        found = name_perfectly(
            make_detections(TRUTH, entries),
            TRUTH,
            category_ids=CATEGORY_IDS,
            is_cluster=IS_CLUSTER,
            nms=0.5,
        )
        result = evaluate_detections(
            TRUTH, found, iou_type="bbox", known_category_ids=[1], max_detections=10
        )
        # Class 2 has a false positive first: half of its precision; class 3 is perfect.
        assert result.novel.ap is not None
        assert abs(result.novel.ap - bound) < 1e-6
