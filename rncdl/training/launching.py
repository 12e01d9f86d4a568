"""Several processes of one command on this machine, as torchrun would start them."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

LOST_ANOTHER = 3
"""Exit code of a process that ends only because another one has gone."""
_COMMAND = (sys.executable, "-m", "rncdl")
_POLL_S = 0.1
_GRACE_S = 10.0
"""What the others have, once one has failed, to end by themselves and say why."""


def is_one_of_many() -> bool:
    """Whether this process was started as one of several, by this module or by torchrun."""
    return "WORLD_SIZE" in os.environ


def has_lost_another(error: RuntimeError) -> bool:
    """Whether the error says no more than that another process of the job has gone."""
    lost = ("connection closed by peer", "connection reset by peer", "broken pipe")
    return is_one_of_many() and any(words in str(error).lower() for words in lost)


def one_gpu_or_two_processes() -> int:
    """How many processes a small job takes: two, whatever the number of cores; one for one GPU."""
    import torch  # not above: whoever only starts others need not wait for it

    return 1 if torch.cuda.device_count() == 1 else 2


def run_in_processes(count: int, arguments: Sequence[str]) -> int:
    """Run `rncdl arguments` in `count` processes that share the work, and wait for them.

    Returns 0, or the exit code of the one that failed: 128 plus the signal where one ended it. The
    first process talks; what another one says is shown only where it is the one that failed.
    Signals are passed on to all.
    """
    environment = {
        # The cores are shared out evenly.
        "OMP_NUM_THREADS": str(max(1, _num_cores() // count)),
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": str(count),
    }
    with TemporaryDirectory(prefix="rncdl_") as folder:
        said = [Path(folder) / f"process_{rank}" for rank in range(count)]
        processes: list[subprocess.Popen[bytes]] = []
        with _passing_signals_on(processes):
            for rank, path in enumerate(said):
                processes.append(_start(arguments, environment, rank, path if rank else None))
            stopped = _wait(processes)
        culprit = _find_culprit(processes, stopped)
        if culprit is None:
            return 0
        if culprit > 0:
            sys.stderr.write(said[culprit].read_text("utf-8", errors="replace"))
        code = processes[culprit].returncode
        if code < 0:
            name = signal.Signals(-code).name
            sys.stderr.write(f"Process {culprit} of {count} was ended by {name}.\n")
        return code if code > 0 else 128 - code


def _start(
    arguments: Sequence[str], environment: dict[str, str], rank: int, output: Path | None
) -> subprocess.Popen[bytes]:
    stream = None if output is None else output.open("wb")
    try:
        return subprocess.Popen(
            [*_COMMAND, *arguments],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=stream,
            stderr=stream,
            # In the terminal's own session they would hear Ctrl-C twice: from it and from us.
            start_new_session=True,
        )
    finally:
        if stream is not None:
            stream.close()


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> set[int]:
    """Wait for all; once one has failed, the others get a little time, and then are stopped.

    Returns the ranks of those that were.
    """
    deadline = float("inf")
    while any(process.poll() is None for process in processes):
        if deadline == float("inf") and any(process.poll() for process in processes):
            deadline = time.monotonic() + _GRACE_S
        if time.monotonic() > deadline:
            running = {rank for rank, process in enumerate(processes) if process.poll() is None}
            for rank in running:
                processes[rank].kill()
                processes[rank].wait()
            return running
        time.sleep(_POLL_S)
    return set()


def _find_culprit(processes: Sequence[subprocess.Popen[bytes]], stopped: set[int]) -> int | None:
    """The lowest rank that failed of itself; None: none did."""
    codes = {rank: process.returncode for rank, process in enumerate(processes)}
    of_itself = [rank for rank, code in codes.items() if code and rank not in stopped]
    return min(of_itself, key=lambda rank: (codes[rank] == LOST_ANOTHER, rank), default=None)


@contextmanager
def _passing_signals_on(processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    def pass_on(number: int, frame: FrameType | None) -> None:
        for process in processes:
            process.send_signal(number)

    before = {s: signal.signal(s, pass_on) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for process in processes:
            process.kill()


def _num_cores() -> int:
    """Those this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
