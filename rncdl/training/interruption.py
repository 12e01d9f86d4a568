"""Ctrl-C, SIGTERM and SIGHUP: a loop finishes its step and saves, other work stops where it is."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

STOP_SIGNALS = tuple(s for s in signal.Signals if s.name in ("SIGINT", "SIGTERM", "SIGHUP"))

_SAME_REQUEST_S = 1.0
"""`timeout` and slurm send their signal to a process and to its group: both are one request."""


class Interrupted(BaseException):
    """The work ended early because it was asked to; the message says what is saved.

    No Exception, so that nothing that passes over a broken image passes over this.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[type["Interrupted"], tuple[str, int]]:
        return type(self), (str(self), self.exit_code)


class StopRequest:
    """Becomes true when the user or the machine asks the process to end."""

    def __init__(self) -> None:
        self._signal: signal.Signals | None = None
        self._since = 0.0

    def __bool__(self) -> bool:
        return self._signal is not None

    @property
    def exit_code(self) -> int:
        """The shell's convention: 128 plus the signal; 0 where nobody asked."""
        return 128 + self._signal if self._signal else 0

    def note(self, number: int) -> bool:
        """Take notice of a signal; whether it is a second request."""
        now = time.monotonic()
        if self._signal is None:
            self._signal, self._since = signal.Signals(number), now
        return now - self._since > _SAME_REQUEST_S

    def __reduce__(self) -> tuple[type["Interrupted"], tuple[str, int]]:
        """How to pickle it: by default the exit code would be lost on the way to a process."""
        return Interrupted, (str(self), self.exit_code)


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """A flag that the stop signals set; a second one raises `Interrupted`."""
    request = StopRequest()

    def receive(number: int, frame: FrameType | None) -> None:
        if request.note(number):
            raise Interrupted("Stopped at once, in the middle of the work.", request.exit_code)

    before = _handle_stop_signals(receive)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def interrupt_on_signals() -> None:
    """From now on a stop signal raises `Interrupted`; a second one ends the process at once."""
    request = StopRequest()

    def receive(number: int, frame: FrameType | None) -> None:
        is_first = not request
        if request.note(number):
            os._exit(request.exit_code)
        if is_first and _is_importing(frame):
            os.write(sys.stderr.fileno(), b"Stopped.\n")
            os._exit(request.exit_code)
        if is_first:
            raise Interrupted("Stopped.", request.exit_code)

    _handle_stop_signals(receive)


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being loaded: some swallow what is raised meanwhile, and stay half made.

    No work has begun then.
    """
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


@contextmanager
def sparing_children() -> Iterator[None]:
    """Processes started within never hear the stop signals: this one decides when they end.

    Ctrl-C and a scheduler's signals reach the whole group, children that are just starting too.
    """
    before = block_stop_signals()
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def block_stop_signals() -> set[int]:
    """Let the stop signals wait, in this thread and what it starts; returns what waited before."""
    return signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def _handle_stop_signals(
    receive: Callable[[int, FrameType | None], None],
) -> dict[signal.Signals, Any]:
    """Install the handler, but for signals that `nohup` and the like ignore; returns the former.

    Only the main thread may do so: whoever works in another one hears of no signal.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    heeded = [s for s in STOP_SIGNALS if signal.getsignal(s) is not signal.SIG_IGN]
    return {number: signal.signal(number, receive) for number in heeded}
