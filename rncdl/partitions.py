"""How two partitions of the same things compare: their table of counts, and how far they agree."""

import numpy as np


def contingency(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """(used labels of the first, used labels of the second) int64 counts of integer labels (n,)."""
    used_first, rows = np.unique(first, return_inverse=True)
    used_second, columns = np.unique(second, return_inverse=True)
    shape = (len(used_first), len(used_second))
    cells = np.bincount(rows * shape[1] + columns, minlength=shape[0] * shape[1])
    return cells.reshape(shape)


def adjusted_rand_index(counts: np.ndarray) -> float:
    """Pairs treated alike, corrected for chance: 1 is the same partition, 0 chance.

    1 by definition where chance cannot do better or worse (e.g. all things alone in both).
    """

    def pairs(sizes: np.ndarray) -> float:
        return float((sizes * (sizes - 1) // 2).sum())

    together = pairs(counts)
    in_first, in_second = pairs(counts.sum(axis=1)), pairs(counts.sum(axis=0))
    if together == in_first == in_second:
        return 1.0
    expected = in_first * in_second / pairs(counts.sum(keepdims=True))
    return (together - expected) / ((in_first + in_second) / 2 - expected)
