"""How every training loop ends a step: a checkpoint where due, an orderly stop when asked."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rncdl.training.checkpoints import save_checkpoint
from rncdl.training.interruption import Interrupted, StopRequest
from rncdl.training.processes import Processes


def save_or_stop(
    step: int,
    num_steps: int,
    *,
    folder: Path | None,
    state: Callable[[], Mapping[str, Any]],
    every: int,
    stop: StopRequest,
    processes: Processes,
    how_to_continue: str,
    check: Callable[[], object] = lambda: None,
) -> None:
    """Save a checkpoint after each `every` steps, the last one, and when asked to stop.

    `folder`: where this process's checkpoints are, the newest of them; None for a process
    that writes none. `state`: makes what is saved. `check`: called by every process before that,
    to raise where it is not worth keeping. Raises `Interrupted`, in all processes, when
    one of them was asked to stop; its message ends with `how_to_continue`.
    """
    stopping = processes.any_true(bool(stop))
    is_due = step % every == 0 or step == num_steps
    if stopping or is_due:
        check()
        if folder is not None:
            save_checkpoint(folder, step, state())
    if stopping:
        raise Interrupted(
            f"Stopped after step {step} of {num_steps}; everything is saved. {how_to_continue}",
            # Gathered once all have saved, since the first to leave ends the others; and those of
            # another machine may not have been asked.
            max(processes.gather(stop.exit_code)),
        )
