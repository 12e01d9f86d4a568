"""Progress on the screen: a live bar in a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

console = Console(stderr=True, highlight=False, emoji=False)  # a path may hold :smile:

T = TypeVar("T")


def say(text: str) -> None:
    """Print one message as it is, however long, beside any progress bar."""
    console.print(text, soft_wrap=True, markup=False)


def warn(text: str) -> None:
    """Print a warning."""
    console.print("[bold yellow]warning[/]: ", end="")
    say(text)


_SECONDS_BETWEEN_LINES = 10.0


class ProgressLine:
    """Counts up to `total` and shows figures beside the count.

    In a terminal a bar that updates in place; otherwise a line now and then. A silent one
    (`shown=False`, for all processes but the first) prints nothing.
    """

    def __init__(
        self, title: str, total: int, *, unit: str, start: int = 0, shown: bool = True
    ) -> None:
        self._title, self._total, self._unit = title, total, unit
        self._done = self._start = start
        self._shown = shown
        self._figures = ""
        self._began = self._last_line = time.monotonic()
        self._bar: Progress | None = None
        if shown and console.is_terminal:
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("[bold]{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[figures]}"),
                console=console,
            )

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task(
                self._title, total=self._total, completed=self._start, figures=""
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._shown and kind is None:
            self._print_line()

    @property
    def done(self) -> int:
        """How far it has counted."""
        return self._done

    def advance(self, amount: int = 1, figures: Mapping[str, float | str] | None = None) -> None:
        """Count `amount` more and, where given, show new figures."""
        self._done += amount
        if figures is not None:
            self._figures = "  ".join(f"{name} {_short(value)}" for name, value in figures.items())
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, figures=self._figures)
        elif self._shown and time.monotonic() - self._last_line > _SECONDS_BETWEEN_LINES:
            self._print_line()

    def advance_to(self, done: int) -> None:
        """Count up to `done` in all."""
        self.advance(done - self._done)

    def _print_line(self) -> None:
        self._last_line = time.monotonic()
        elapsed = self._last_line - self._began
        rate = (self._done - self._start) / elapsed if elapsed else 0.0
        left = f"{(self._total - self._done) / rate:.0f} s left" if rate else "starting"
        line = f"{self._title}: {self._done}/{self._total} {self._unit}, {elapsed:.0f} s, {left}"
        say(f"{line}  {self._figures}".rstrip())


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"
