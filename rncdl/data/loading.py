"""Samples loaded by worker processes, batch by batch."""

import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from rncdl.data.datasets import BadImage, ItemKey
from rncdl.errors import UserError

Item = TypeVar("Item")
"""What a dataset gives for an image it can read: a Sample, a ViewedImage."""


@dataclass
class Batch(Generic[Item]):
    """The samples of a step, and the images that were passed over because they cannot be read."""

    samples: list[Item] = field(default_factory=list)
    bad_images: list[BadImage] = field(default_factory=list)


class BatchLoader(Generic[Item]):
    """Batches in the order asked for, loaded ahead by worker processes (0: in this process).

    A UserError of a worker is raised here.
    """

    def __init__(
        self,
        dataset: Dataset[Item | BadImage],
        batches: Iterable[list[ItemKey]],
        *,
        workers: int,
    ) -> None:
        # A generator of its own, or starting workers would draw from the global one and the
        # random numbers after a resume would not be those of an uninterrupted run.
        self._loader: DataLoader = DataLoader(
            _ErrorsAsItems(dataset),
            batch_sampler=batches,
            num_workers=workers,
            collate_fn=_collate,
            worker_init_fn=_start_worker,
            persistent_workers=workers > 0,
            generator=torch.Generator().manual_seed(0),
        )

    def __iter__(self) -> Iterator[Batch[Item]]:
        for batch in self._loader:
            if isinstance(batch, UserError):
                raise batch
            yield batch


class _ErrorsAsItems(Dataset, Generic[Item]):
    """Hands a UserError over as an item: raised in a worker, torch would bury it in a traceback."""

    def __init__(self, dataset: Dataset[Item | BadImage]) -> None:
        self._dataset = dataset

    def __getitem__(self, key: ItemKey) -> Item | BadImage | UserError:
        try:
            return self._dataset[key]
        except UserError as error:
            return UserError(str(error))


def _collate(items: list[Item | BadImage | UserError]) -> Batch[Item] | UserError:
    batch: Batch[Item] = Batch()
    for item in items:
        if isinstance(item, UserError):
            return item
        if isinstance(item, BadImage):
            batch.bad_images.append(item)
        else:
            batch.samples.append(item)
    return batch


def _start_worker(worker_index: int) -> None:
    """Ctrl-C and a scheduler's SIGTERM reach every process: the main one decides when workers end.

    A worker that is told to end leaves it half a minute for that.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(30))
    torch.set_num_threads(1)
