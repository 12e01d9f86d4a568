import numpy as np

from rncdl.partitions import adjusted_rand_index, contingency


def test_contingency_counts_pairs_of_used_labels():
    counts = contingency(np.array([3, 3, 9, 9]), np.array([0, 1, 1, 1]))
    assert counts.tolist() == [[1, 1], [0, 2]]


def test_rand_index_by_counting_pairs():
    """Against the definition: agreement over all pairs, less what chance would give."""
    random = np.random.default_rng(0)
    first, second = random.integers(0, 3, 30), random.integers(0, 4, 30)
    same_first = first[:, None] == first
    same_second = second[:, None] == second
    rows, columns = np.triu_indices(30, 1)
    a, b = same_first[rows, columns], same_second[rows, columns]
    expected = a.sum() * b.sum() / len(a)
    index = ((a & b).sum() - expected) / ((a.sum() + b.sum()) / 2 - expected)
    assert np.isclose(adjusted_rand_index(contingency(first, second)), index)
    assert adjusted_rand_index(contingency(first, (first + 1) % 3)) == 1
