"""How every training loop ends a step: a checkpoint where due, an orderly stop when asked."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rncdl.training.checkpoints import save_checkpoint
from rncdl.training.interruption import Interrupted, StopRequest
from rncdl.training.processes import Processes


@dataclass(frozen=True)
class Saving:
    """When and where a training keeps what it has."""

    num_steps: int
    """of the whole training"""
    every: int
    """steps from one checkpoint to the next"""
    folder: Path | None
    """of this process's checkpoints, the newest of them; None for a process that writes none"""
    how_to_continue: str
    """what somebody who stops it is told"""


def save_or_stop(
    step: int,
    saving: Saving,
    *,
    state: Callable[[], Mapping[str, Any]],
    stop: StopRequest,
    processes: Processes,
    check: Callable[[], object] = lambda: None,
) -> None:
    """Save a checkpoint where one is due, after the last step, and when asked to stop.

    `state`: makes what is saved. `check`: called by every process before that, to raise where it
    is not worth keeping. Raises `Interrupted`, in all processes, when one of them was asked to
    stop.
    """
    stopping = processes.any_true(bool(stop))
    is_due = step % saving.every == 0 or step == saving.num_steps
    if stopping or is_due:
        check()
        if saving.folder is not None:
            save_checkpoint(saving.folder, step, state())
    if stopping:
        raise Interrupted(
            f"Stopped after step {step} of {saving.num_steps}; everything is saved. "
            f"{saving.how_to_continue}",
            # Gathered once all have saved, since the first to leave ends the others; and those of
            # another machine may not have been asked.
            max(processes.gather(stop.exit_code)),
        )
