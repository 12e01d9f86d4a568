"""Work that a thread does beside the main one: the disk's before it, the CPU's behind it."""

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar, cast

T = TypeVar("T")
Made = TypeVar("Made")
_WAIT_S = 0.1


def prefetch(items: Iterator[T], *, ahead: int = 2) -> Generator[T, None, None]:
    """The items in their order, at most `ahead` of them made before they are asked for.

    An error of theirs is raised here, in its place. The thread ends with this iterator.
    """
    made: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(maxsize=ahead)
    is_over = threading.Event()

    def put(item: T | None, error: BaseException | None) -> None:
        while not is_over.is_set():
            try:
                made.put((item, error), timeout=_WAIT_S)
            except queue.Full:
                continue
            return

    def work() -> None:
        try:
            for item in items:
                put(item, None)
                if is_over.is_set():
                    return
            put(None, StopIteration())
        except BaseException as error:  # whatever it is, it belongs to whoever asked
            put(None, error)

    thread = threading.Thread(target=work, name="prefetch", daemon=True)
    thread.start()
    try:
        while True:
            item, error = made.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield cast("T", item)
    finally:
        is_over.set()
        thread.join()


def map_behind(change: Callable[[T], Made], items: Iterator[T]) -> Generator[Made, None, None]:
    """Each item changed by a thread while the next one is made: `map`, one item behind."""
    with ThreadPoolExecutor(1) as thread:
        before: Future[Made] | None = None
        for item in items:
            now = thread.submit(change, item)
            if before is not None:
                yield before.result()
            before = now
        if before is not None:
            yield before.result()
