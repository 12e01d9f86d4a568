import contextlib
import io

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from rncdl.data.records import AnnotationSet
from rncdl.evaluation.recall import measure_recall

from .made_up import dataset_json, make_truth, random_case

KNOWN = [1, 2, 3]


def official_recall(
    proposals: list[np.ndarray], truth: AnnotationSet, *, rows: np.ndarray, limits: list[int]
) -> np.ndarray:
    """(limits, T) recall of the chosen annotations by pycocotools without categories."""
    dataset = dataset_json(truth)
    dataset["annotations"] = [dataset["annotations"][row] for row in rows]
    entries = []
    for image, boxes in zip(truth.images, proposals, strict=True):
        for rank, (x1, y1, x2, y2) in enumerate(boxes.tolist()):
            box = [x1, y1, x2 - x1, y2 - y1]
            score = 1 - rank / 1e6
            entries.append({"image_id": image.id, "category_id": 1, "score": score, "bbox": box})
    with contextlib.redirect_stdout(io.StringIO()):
        official = COCO()
        official.dataset = dataset
        official.createIndex()
        evaluation = COCOeval(official, official.loadRes(entries), "bbox")
        evaluation.params.useCats = 0
        evaluation.params.maxDets = limits
        evaluation.evaluate()
        evaluation.accumulate()
    return evaluation.eval["recall"][:, 0, 0, :].T


def random_proposals(seed: int) -> tuple[AnnotationSet, list[np.ndarray]]:
    truth, detections = random_case(seed, num_images=6, detections_per_image=90)
    proposals = [detections.boxes_xyxy[detections.image_ids == image.id] for image in truth.images]
    proposals[2] = proposals[2][:0]
    return truth, proposals


def test_no_images_and_no_annotations():
    result = measure_recall([], make_truth([], num_images=0, num_classes=0), known_category_ids=[])
    assert result.all.average == {}
    truth = make_truth([], num_images=2, num_classes=1)
    result = measure_recall([np.zeros((0, 4))] * 2, truth, known_category_ids=[])
    assert result.all.num_annotations == 0


@pytest.mark.parametrize("seed", range(3))
def test_as_pycocotools_without_categories(seed):
    truth, proposals = random_proposals(seed)
    limits = [5, 20, 60, 1000]
    result = measure_recall(proposals, truth, known_category_ids=KNOWN, limits=limits)
    is_known = np.isin(truth.category_ids, KNOWN)
    groups = {"all": is_known | True, "known": is_known, "novel": ~is_known}
    for name, is_member in groups.items():
        rows = np.flatnonzero(is_member & ~truth.is_crowd)
        expected = official_recall(proposals, truth, rows=rows, limits=limits)
        found = getattr(result, name)
        assert found.num_annotations == len(rows)
        assert list(found.average) == list(found.at_iou_50) == limits
        np.testing.assert_allclose(list(found.average.values()), expected.mean(axis=1))
        np.testing.assert_allclose(list(found.at_iou_50.values()), expected[:, 0])


def test_one_proposal_finds_one_annotation():
    box = (10, 10, 60, 60)
    annotations = [{"image": 0, "category": c, "box_xyxy": box} for c in (1, 4)]
    truth = make_truth(annotations, num_images=1, num_classes=4)
    result = measure_recall([np.array([box])], truth, known_category_ids=KNOWN)
    assert result.all.at_iou_50[50] == 0.5
    assert result.known.at_iou_50[50] == result.novel.average[1000] == 1.0


def test_images_are_read_as_they_come(monkeypatch):
    monkeypatch.setattr("rncdl.evaluation.recall._CHUNK_IMAGES", 2)
    truth, proposals = random_proposals(0)
    in_chunks = measure_recall(iter(proposals), truth, known_category_ids=KNOWN)
    monkeypatch.setattr("rncdl.evaluation.recall._CHUNK_IMAGES", 100)
    assert in_chunks == measure_recall(proposals, truth, known_category_ids=KNOWN)


def test_missing_images_are_noticed():
    truth, proposals = random_proposals(0)
    with pytest.raises(ValueError, match="5 images for 6"):
        measure_recall(proposals[:-1], truth, known_category_ids=KNOWN)
