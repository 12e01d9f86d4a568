"""Ctrl-C and SIGTERM ask a loop to finish its step, save and leave."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Becomes true when the user or the machine asks the process to end."""

    def __init__(self) -> None:
        self._signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self._signal is not None

    @property
    def exit_code(self) -> int:
        """The shell's convention: 128 plus the signal."""
        return 128 + self._signal if self._signal else 0

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None:
            raise KeyboardInterrupt  # asked twice: leave at once
        self._signal = signal.Signals(number)


class Interrupted(Exception):
    """A loop ended early because it was asked to, with everything saved."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[type["Interrupted"], tuple[str, int]]:
        """How to pickle it: by default the exit code would be lost on the way to a process."""
        return Interrupted, (str(self), self.exit_code)


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """A flag that SIGINT and SIGTERM set instead of killing the process."""
    request = StopRequest()
    before = {s: signal.signal(s, request._receive) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
