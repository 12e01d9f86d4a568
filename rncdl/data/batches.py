"""Which images make up which batch, decided by a seed alone."""

from collections.abc import Iterator, Sequence

import numpy as np

from rncdl.classes import KnownLabels
from rncdl.data.datasets import ItemKey
from rncdl.data.records import ImageRecord
from rncdl.errors import UserError
from rncdl.training.processes import Processes


class TrainingBatches:
    """An endless sequence of batches of item keys: this process's part of each global batch.

    The global batches depend on nothing but the images, their repeats, the seed and the batch
    size; starting later, or with another number of processes, changes none of them.
    """

    def __init__(
        self,
        images: Sequence[ImageRecord],
        *,
        batch_size: int,
        seed: int,
        processes: Processes | None = None,
        start_step: int = 0,
        group_by_aspect: bool = True,
        repeats: np.ndarray | None = None,
    ) -> None:
        """batch_size: images of one step over all processes, a multiple of their number.
        processes: this one among them, which gets its share of each batch; None: it is alone.

        group_by_aspect: no batch mixes wide images with tall ones.
        repeats: (I,) how often an epoch shows each image, on average; 0 leaves it out.
        """
        self._rank, self._world_size = (processes.rank, processes.count) if processes else (0, 1)
        if batch_size % self._world_size:
            raise UserError(
                f"A batch of {batch_size} images cannot be shared equally by {self._world_size} "
                "processes. Choose a multiple."
            )
        self._repeats = np.ones(len(images)) if repeats is None else repeats
        if not (self._repeats > 0).any():
            raise UserError("There are no images to train on (none has a usable annotation).")
        is_wide = [group_by_aspect and image.width > image.height for image in images]
        self._group = np.array(is_wide, dtype=np.int64)
        self._batch_size = batch_size
        self._seed = seed
        self._start_step = start_step

    def __iter__(self) -> Iterator[list[ItemKey]]:
        steps_to_skip = self._start_step
        waiting = np.zeros((0, 2), dtype=np.int64)
        epoch = 0
        while True:
            batches, waiting = self._fill_batches(waiting, self._draw_epoch(epoch))
            for batch in batches[steps_to_skip:]:
                part = batch[self._rank :: self._world_size]
                yield [(index, seed) for index, seed in part.tolist()]
            steps_to_skip = max(0, steps_to_skip - len(batches))
            epoch += 1

    def _draw_epoch(self, epoch: int) -> np.ndarray:
        """(n, 2) int64 item keys of an epoch, shuffled.

        An image that is to be shown 2.3 times on average is shown 2 or 3 times.
        """
        rng = np.random.default_rng([self._seed, epoch])
        whole = np.floor(self._repeats)
        counts = whole + (rng.random(len(whole)) < self._repeats - whole)
        index = rng.permutation(np.repeat(np.arange(len(counts)), counts.astype(np.int64)))
        return np.stack([index, rng.integers(2**63 - 1, size=len(index))], axis=1)

    def _fill_batches(
        self, waiting: np.ndarray, arriving: np.ndarray
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """The batches that fill up, in the order in which they do, and the keys left waiting.

        Each group fills its own batches. waiting, arriving: (n, 2) item keys in order.
        """
        keys = np.concatenate([waiting, arriving])
        group = self._group[keys[:, 0]]
        filled: list[tuple[int, np.ndarray]] = []
        left: list[np.ndarray] = []
        for members in (np.flatnonzero(group == 0), np.flatnonzero(group == 1)):
            num_full = len(members) // self._batch_size * self._batch_size
            full = members[:num_full].reshape(-1, self._batch_size)
            filled.extend((int(batch[-1]), keys[batch]) for batch in full)
            left.append(members[num_full:])
        filled.sort(key=lambda entry: entry[0])
        return [batch for _, batch in filled], keys[np.sort(np.concatenate(left))]


class EvaluationBatches:
    """Every image once, in order: this process's part, the ranks taking turns.

    start_batch: how many batches of this process's part are left out, being done already.
    """

    def __init__(
        self,
        num_images: int,
        *,
        batch_size: int,
        processes: Processes | None = None,
        start_batch: int = 0,
    ) -> None:
        rank, world_size = (processes.rank, processes.count) if processes else (0, 1)
        self._index = range(rank, num_images, world_size)[start_batch * batch_size :]
        self._batch_size = batch_size

    def __len__(self) -> int:
        return -(-len(self._index) // self._batch_size)

    def __iter__(self) -> Iterator[list[ItemKey]]:
        for start in range(0, len(self._index), self._batch_size):
            yield [(index, 0) for index in self._index[start : start + self._batch_size]]


def repeat_factors(
    labels: KnownLabels, threshold: float, *, with_unannotated: bool = False
) -> np.ndarray:
    """(I,) float64: how often an epoch should show each image, on average.

    Repeat-factor sampling (LVIS, Gupta et al. 2019, appendix B): a class that a share f of the
    images has gets max(1, sqrt(threshold / f)), an image the largest of its classes' factors.
    Threshold 0 repeats nothing. Crowds do not count. Images without annotations get 0, or 1
    when `with_unannotated`.
    """
    annotations = labels.annotations
    num_images = len(annotations.images)
    factors = np.full(num_images, 1.0 if with_unannotated else 0.0)
    counted = ~annotations.is_crowd
    if not counted.any():
        return factors
    pairs = np.unique(
        np.stack([annotations.image_index[counted], labels.labels[counted]], axis=1), axis=0
    )
    images_with_class = np.bincount(pairs[:, 1], minlength=labels.split.num_known)
    frequency = np.maximum(images_with_class, 1) / num_images
    class_factor = np.maximum(1.0, np.sqrt(threshold / frequency))
    np.maximum.at(factors, pairs[:, 0], class_factor[pairs[:, 1]])
    return factors
