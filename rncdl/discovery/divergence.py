"""Whether a discovery went wrong, from the figures that it keeps a journal of."""

import math

COLLAPSED_SHARE = 0.1
"""Fewer clusters in use than this share of N, after the warm-up, is called a collapse."""
EXPLODED_FACTOR = 10.0
"""A loss this many times that of guessing is called a divergence."""


def has_collapsed(clusters_in_use: float, num_clusters: float) -> bool:
    """Whether hardly any of the N clusters is in use."""
    return clusters_in_use < COLLAPSED_SHARE * num_clusters


def has_exploded(cross_entropy: float, num_outputs: int) -> bool:
    """Whether a cross-entropy is not finite, or far above log C, which is that of guessing."""
    # Written so that a loss that is not a number counts as well.
    return not cross_entropy <= EXPLODED_FACTOR * math.log(max(num_outputs, 2))
