"""Samples loaded by worker processes, batch by batch."""

import atexit
import multiprocessing
import signal
import sys
import threading
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from rncdl.data.datasets import BadImage, ItemKey
from rncdl.errors import UserError
from rncdl.training.interruption import block_stop_signals, sparing_children

Item = TypeVar("Item")
"""What a dataset gives for an image it can read: a Sample, a ViewedImage."""


@dataclass
class Batch(Generic[Item]):
    """The samples of a step, and the images that were passed over because they cannot be read."""

    samples: list[Item] = field(default_factory=list)
    bad_images: list[BadImage] = field(default_factory=list)

    def pin_memory(self) -> "Batch[Item]":
        """The same in memory from which a GPU can fetch it while it computes; torch calls it."""
        return Batch([_pinned(sample) for sample in self.samples], self.bad_images)


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
            generator=torch.Generator().manual_seed(0),
            pin_memory=torch.cuda.is_available(),
        )

    def __iter__(self) -> Generator[Batch[Item], None, None]:
        batches = self._start()
        try:
            for batch in batches:
                if isinstance(batch, UserError):
                    raise batch
                yield batch
        except RuntimeError as error:
            if "DataLoader worker (pid" not in str(error):
                raise
            raise UserError(
                f"A process that loads images (data.workers={self._loader.num_workers}) was "
                "killed, most likely because memory ran out: lower data.workers, data.cache_mb or "
                "the images of a step (train.batch_size, discover.batch_images, "
                "predict.batch_size), or give a container more shared memory "
                "(docker run --shm-size=8g)."
            ) from error
        finally:
            # Ends the workers now. The garbage collector, which would find them as part of a cycle
            # through an error's traceback, frees their queues first and then waits 20 s for them.
            del batches

    def _start(self) -> Iterator[Batch[Item] | UserError]:
        """The loader's batches; its workers are running and do not hear the stop signals.

        When one of them dies, torch would raise wherever this process is just then, in the middle
        of saving for instance; without its handler it does so where the batch is waited for.
        """
        before = signal.getsignal(signal.SIGCHLD)
        with sparing_children():
            batches = iter(self._loader)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCHLD, before)
        return batches


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


def _pinned(item: Any) -> Any:
    """A tensor, or a record or sequence of them, with its tensors in pinned memory."""
    if isinstance(item, torch.Tensor):
        return item.pin_memory()
    if isinstance(item, list | tuple):
        return type(item)(map(_pinned, item))
    if is_dataclass(item) and not isinstance(item, type):
        return replace(item, **{one.name: _pinned(getattr(item, one.name)) for one in fields(item)})
    return item


def _start_worker(worker_index: int) -> None:
    block_stop_signals()  # not inherited by workers that a server starts
    # Python's thread that hands tensors over would print that the receiver was interrupted. Errors
    # of the worker itself take another way.
    sys.excepthook = lambda *_: None


@atexit.register
def _end_workers() -> None:
    """Python would end them by SIGTERM, which they do not hear, and wait."""
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()
