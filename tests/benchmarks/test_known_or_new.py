"""The arithmetic of `benchmarks/known_or_new.py`: what is known scores higher than what is new."""

import numpy as np
import pytest
import torch
from known_or_new import classes_to_leave_out, leave_out
from known_scores import (
    SHRINKAGE,
    KnownClasses,
    agreement_scores,
    logit_scores,
    measure,
    share_called_known,
)
from scipy.spatial.distance import mahalanobis


def test_scores_that_separate_everything():
    found = measure(np.array([2.0, 3.0, 4.0]), np.array([0.0, 1.0]))
    assert (found.auc, found.called_known) == (1.0, 0.0)


def test_a_score_that_says_nothing():
    found = measure(np.zeros(40), np.zeros(30))
    assert (found.auc, found.called_known) == (0.5, 1.0)


def test_the_area_is_the_share_of_pairs_in_order_and_the_threshold_loses_one_in_twenty():
    rng = np.random.default_rng(0)
    known, new = rng.integers(2, 12, 60).astype(float), rng.integers(0, 9, 45).astype(float)
    above = (known[:, None] > new).mean() + (known[:, None] == new).mean() / 2
    found = measure(known, new)
    assert found.auc == pytest.approx(above)
    allowed = [t for t in np.unique(known) if (known < t).mean() <= 0.05]
    assert found.called_known == (new >= max(allowed)).mean()


@pytest.mark.parametrize(("lost_share", "expected"), [(0, 0.8), (0.25, 0.6), (0.74, 0.4), (1, 0.2)])
def test_the_threshold_lies_on_a_known_box(lost_share: float, expected: float):
    known, new = np.array([4.0, 2.0, 3.0, 1.0]), np.array([0.5, 1.5, 2.5, 3.5, 4.5])
    assert share_called_known(known, new, lost_share=lost_share) == expected


def test_logit_scores_of_one_box():
    found = logit_scores(torch.tensor([[2.0, 1.0, 0.0, -1.0]]))
    known, total = np.exp([2.0, 1.0, 0.0]), np.exp([2.0, 1.0, 0.0, -1.0]).sum()
    expected = {
        "highest probability": known[0] / total,
        "the same without background": known[0] / known.sum(),
        "highest logit": 2.0,
        "logit margin, best - second": 1.0,
        "energy": np.log(known.sum()),
        "energy - background logit": np.log(known.sum()) + 1,
        "highest - background logit": 3.0,
    }
    assert {name: value.item() for name, value in found.items()} == pytest.approx(expected)


def test_views_that_agree_and_views_that_do_not():
    logits = torch.tensor([[[4.0, 0.0, 0.0], [4.0, 0.0, 0.0]], [[4.0, 0.0, 0.0], [0.0, 4.0, 0.0]]])
    features = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[2.0, 0.0], [0.0, 3.0]]])
    found = agreement_scores(logits, features)
    first, second = (one.softmax(0).double().numpy() for one in logits[:, 1])
    divergence = (first * np.log(first / second) + second * np.log(second / first)).sum()
    assert found["two views: same output"].tolist() == [1, 0]
    assert found["two views: - symmetric KL"].tolist() == pytest.approx([0, -divergence])
    assert found["two views: cosine of features"].tolist() == pytest.approx([1, 0])


def test_distances_to_the_class_means_are_scipys():
    rng = np.random.default_rng(0)
    features, classes = rng.normal(size=(50, 4)) * [1, 2, 3, 4], np.arange(50) % 3
    boxes = rng.normal(size=(6, 4))
    means = np.stack([features[classes == one].mean(0) for one in range(3)])
    covariance = np.cov((features - means[classes]).T, bias=True)
    mixed = (1 - SHRINKAGE) * covariance + SHRINKAGE * np.trace(covariance) / 4 * np.eye(4)
    nearest = [min(mahalanobis(box, m, np.linalg.inv(mixed)) for m in means) for box in boxes]
    lengths = np.linalg.norm(boxes, axis=1)[:, None] * np.linalg.norm(means, axis=1)
    known = KnownClasses.of(torch.from_numpy(features), torch.from_numpy(classes))
    found = known.scores(torch.from_numpy(boxes))
    assert (-found["- Mahalanobis distance to it"]).tolist() == pytest.approx(nearest)
    cosines = (boxes @ means.T / lengths).max(1)
    assert found["cosine to the nearest class mean"].tolist() == pytest.approx(cosines.tolist())


def test_left_out_are_neither_the_most_nor_the_least_frequent_classes():
    counts = {name: 10 * rank for rank, name in enumerate("abcdefgh", 1)}
    assert classes_to_leave_out(counts, 2) == ["f", "c"]


def test_labels_of_left_out_classes_and_of_later_images_vanish_and_images_stay():
    labels = {
        "images": [{"id": 7}, {"id": 8}, {"id": 9}],
        "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
        "annotations": [
            {"id": number, "image_id": image, "category_id": category}
            for number, (image, category) in enumerate([(7, 1), (7, 2), (8, 2), (9, 1)])
        ],
    }
    kept = leave_out(labels, ["dog"], 2)
    assert [one["id"] for one in kept["images"]] == [7, 8]
    assert [one["name"] for one in kept["categories"]] == ["cat"]
    assert [one["id"] for one in kept["annotations"]] == [0]
