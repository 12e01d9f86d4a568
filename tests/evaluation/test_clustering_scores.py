import math
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rncdl.evaluation.clustering_scores import score_clustering


def scores(clusters: list[int], classes: list[int]) -> tuple[float, float, float, float]:
    result = score_clustering(np.array(clusters), np.array(classes))
    assert result is not None
    assert result.num_samples == len(clusters)
    return result.accuracy, result.nmi, result.ari, result.purity


def test_no_samples_have_no_scores():
    none = np.zeros(0, dtype=np.int64)
    assert score_clustering(none, none) is None


def test_by_hand():
    """Clusters aab, bbbc, c: of 28 pairs 1 + 3 agree, 3 + 6 share a cluster, 1 + 6 + 1 a class."""
    clusters = [0, 0, 0, 1, 1, 1, 1, 2]
    classes = [0, 0, 1, 1, 1, 1, 2, 2]
    accuracy, nmi, ari, purity = scores(clusters, classes)
    assert accuracy == pytest.approx(6 / 8)
    assert purity == pytest.approx(6 / 8)
    expected = 9 * 8 / 28
    assert ari == pytest.approx((4 - expected) / (8.5 - expected))

    def entropy(*counts: int) -> float:
        shares = np.array(counts) / 8
        return float(-(shares * np.log(shares)).sum())

    rows, columns, joint = entropy(3, 4, 1), entropy(2, 4, 2), entropy(2, 1, 3, 1, 1)
    assert nmi == pytest.approx(2 * (rows + columns - joint) / (rows + columns))


def test_accuracy_is_one_to_one_and_purity_is_not():
    accuracy, _, _, purity = scores([0, 0, 1, 1], [5, 5, 5, 5])
    assert accuracy == 0.5
    assert purity == 1.0


def test_independent_labels():
    _, nmi, ari, _ = scores([0, 0, 1, 1], [0, 1, 0, 1])
    assert nmi == pytest.approx(0)
    assert ari == pytest.approx(-0.5)


@pytest.mark.parametrize("classes", [[3], [3, 3, 3], [1, 2, 3], [1, 1, 2, 9, 9]])
def test_a_perfect_clustering_gives_one(classes):
    renamed = [100 - label for label in classes]
    assert scores(renamed, classes) == pytest.approx((1, 1, 1, 1))


labels = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=40)


@given(labels, st.permutations(range(5)))
@settings(max_examples=50)
def test_renaming_clusters_changes_nothing(pairs, names):
    clusters, classes = (list(column) for column in zip(*pairs, strict=True))
    renamed = [names[cluster] for cluster in clusters]
    assert scores(renamed, classes) == pytest.approx(scores(clusters, classes))


def rand_index_by_pairs(clusters: list[int], classes: list[int]) -> float:
    """Adjusted Rand index from every pair of samples; 1 where chance leaves nothing to adjust."""
    pairs = list(combinations(range(len(classes)), 2))
    together = [(clusters[i] == clusters[j], classes[i] == classes[j]) for i, j in pairs]
    both = sum(a and b for a, b in together)
    in_cluster, in_class = (
        (sum(column) for column in zip(*together, strict=True)) if pairs else (0, 0)
    )
    chance = in_cluster * in_class / max(1, len(pairs))
    most = (in_cluster + in_class) / 2
    return 1.0 if most == chance else (both - chance) / (most - chance)


def mutual_information_by_counting(clusters: list[int], classes: list[int]) -> float:
    """Mutual information over the mean entropy; 1 where both are a single group."""
    total, joint = len(classes), Counter(zip(clusters, classes, strict=True))
    a, b = Counter(clusters), Counter(classes)
    shared = sum(n / total * math.log(n * total / (a[i] * b[j])) for (i, j), n in joint.items())
    entropies = [-sum(n / total * math.log(n / total) for n in c.values()) for c in (a, b)]
    return 1.0 if sum(entropies) == 0 else 2 * shared / sum(entropies)


@given(labels)
@settings(max_examples=50)
def test_as_counted_by_hand(pairs):
    clusters, classes = (list(column) for column in zip(*pairs, strict=True))
    _, nmi, ari, _ = scores(clusters, classes)
    assert nmi == pytest.approx(mutual_information_by_counting(clusters, classes), abs=1e-9)
    assert ari == pytest.approx(rand_index_by_pairs(clusters, classes), abs=1e-9)
