"""Several processes of one command, on this machine or on several."""

import os
import sys
from collections.abc import Sequence

_COMMAND = (sys.executable, "-m", "rncdl")
_HERE = "127.0.0.1:0"


def is_one_of_many() -> bool:
    """Whether this process was started as one of several, by this module or by torchrun."""
    return "WORLD_SIZE" in os.environ


def one_gpu_or_two_processes() -> int:
    """How many processes a small job takes: two, whatever the number of cores; one for one GPU."""
    import torch  # not above: `rncdl --help` need not wait for it

    return 1 if torch.cuda.device_count() == 1 else 2


def run_in_processes(
    count: int, arguments: Sequence[str], *, nodes: int = 1, rendezvous: str | None = None
) -> int:
    """Run `rncdl arguments` in `count` processes that share the work, and wait for them.

    nodes, rendezvous: how many machines do the same, and HOST:PORT of one of them, where they
    meet. Returns the exit code, as `launch` does.
    """
    # The cores are shared out evenly.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, _num_cores() // count)))
    # Torch's sockets warn of every name that has no address of one of two kinds.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from rncdl.training.agent import launch  # loads torch, as above

    command = [*map(str, _COMMAND), *arguments]
    return launch(command, processes=count, nodes=nodes, rendezvous=rendezvous or _HERE)


def _num_cores() -> int:
    """Those this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
