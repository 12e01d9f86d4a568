"""A function called in two processes that are connected as the ranks of a job are."""

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from rncdl.training.processes import Processes

WAIT_S = 60
"""A collective that one of them does not take is an error after this, and not a hang."""


def run_in_two_processes(function: Callable[..., Any], folder: Path, *arguments: Any) -> list[Any]:
    """What `function(processes, *arguments)` returns in each; an error in one is raised here.

    `folder` is theirs to meet in. The function must be one of a module.
    """
    mp.spawn(_run, args=(function, folder, arguments), nprocs=2)
    return [torch.load(folder / f"returned_{rank}", weights_only=False) for rank in range(2)]


def _run(rank: int, function: Callable[..., Any], folder: Path, arguments: tuple[Any, ...]) -> None:
    os.environ.update(WORLD_SIZE="2", RANK=str(rank), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting_point",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=WAIT_S),
    )
    processes = Processes(rank=rank, count=2, device=torch.device("cpu"))
    torch.save(function(processes, *arguments), folder / f"returned_{rank}")
    dist.barrier()
    dist.destroy_process_group()
