"""The `rncdl` command with a job in which process 1 fails while process 0 waits for it."""

import sys

import rncdl.__main__ as command
from rncdl.errors import UserError
from rncdl.training.processes import join_processes


def job(**_: object) -> None:
    with join_processes("cpu") as processes:
        if processes.rank == 1:
            if sys.argv[1] == "user":
                raise UserError("process 1 found a broken image")
            raise ZeroDivisionError("process 1 divided by zero")
        processes.wait_for_all()


command.app = job  # type: ignore[assignment]
command.main()
