"""Which classes a world has, how frequent each is, and which of them are known."""

from dataclasses import dataclass

import numpy as np

from rncdl.data.shapes.silhouettes import SILHOUETTES
from rncdl.data.shapes.surfaces import PALETTES, PATTERNS

MAX_CLASSES = 1000

_KNOWN_SHARE_IN_FREQUENT_HALF = 0.75


@dataclass(frozen=True)
class ObjectClass:
    """A silhouette with a surface, such as "striped star"."""

    silhouette: str
    pattern: str
    palette_index: int

    @property
    def name(self) -> str:
        """The class's name, unique in every world."""
        return f"{self.pattern} {self.silhouette}"


def list_classes(num_classes: int) -> list[ObjectClass]:
    """The first `num_classes` classes: all silhouettes once, then again with the next pattern.

    Neighbours differ in silhouette, pattern and palette; no (silhouette, pattern) comes twice.
    """
    silhouettes, patterns = list(SILHOUETTES), list(PATTERNS)
    classes = []
    for index in range(num_classes):
        lap, place = divmod(index, len(silhouettes))
        classes.append(
            ObjectClass(
                silhouette=silhouettes[place],
                pattern=patterns[(place + lap) % len(patterns)],
                palette_index=(place + 3 * lap) % len(PALETTES),
            )
        )
    return classes


def long_tail_shares(num_classes: int, imbalance: float) -> np.ndarray:
    """(C,) shares of all objects by rank, summing to 1, falling by a constant factor.

    `imbalance` is how many times more frequent the first rank is than the last.
    """
    rank = np.arange(num_classes) / max(1, num_classes - 1)
    weights = imbalance**-rank
    return weights / weights.sum()


def divide_objects(shares: np.ndarray, num_objects: int) -> np.ndarray:
    """(C,) whole numbers of objects, summing to `num_objects`, as close to `shares` as can be.

    Every class gets at least one object when there are enough.
    """
    spare = num_objects - len(shares)
    if spare < 0:
        return (np.argsort(np.argsort(-shares, kind="stable")) < num_objects).astype(np.int64)
    wanted = np.maximum(shares * num_objects - 1, 0)
    wanted *= spare / max(wanted.sum(), 1e-12)
    counts = np.floor(wanted).astype(np.int64)
    rest = np.argsort(counts - wanted, kind="stable")[: spare - counts.sum()]
    counts[rest] += 1
    return counts + 1


def choose_known_ranks(num_classes: int, num_known: int, *, rng: np.random.Generator) -> np.ndarray:
    """(K,) frequency ranks of the known classes, ascending.

    Three quarters come from the frequent half, the others from the rest; a novel class stays in
    each half wherever the numbers allow it.
    """
    half = (num_classes + 1) // 2
    wanted = round(_KNOWN_SHARE_IN_FREQUENT_HALF * num_known)
    num_novel = num_classes - num_known
    keep_novel = 1 if num_novel > 1 else 0
    num_frequent = min(wanted, half - keep_novel)
    num_frequent = max(num_frequent, num_known - (num_classes - half))
    frequent = rng.choice(half, num_frequent, replace=False)
    others = half + rng.choice(num_classes - half, num_known - num_frequent, replace=False)
    return np.sort(np.concatenate([frequent, others]))


def frequency_letter(num_images: int, mean_num_images: float) -> str:
    """LVIS's letter for a class found in `num_images` training images: r, c or f.

    LVIS cuts at 10 and 100 of its 100,000 images. Here the cuts are 0.4 and 0.8 of the mean over
    the classes: the default tail fills all three groups whatever the size of the world, and in a
    balanced world every class is "f".
    """
    if num_images < 0.4 * mean_num_images:
        return "r"
    return "c" if num_images < 0.8 * mean_num_images else "f"
