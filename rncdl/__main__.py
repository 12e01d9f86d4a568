"""The `rncdl` command."""

import os
import sys
import time
import traceback

# Threads that wait for one another asleep instead of spinning: on a machine that does other work
# too, spinning made training ten times slower. To be set before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from rncdl.cli import app
from rncdl.errors import UserError
from rncdl.training.interruption import Interrupted, interrupt_on_signals
from rncdl.training.launching import is_one_of_many
from rncdl.training.progress import console, say

_ECHO_S = 5.0
"""How long a process waits to be ended by the launcher before it takes an error for its own."""


def main() -> None:
    """Run the command line; problems the user can mend are one message and exit code 2."""
    interrupt_on_signals()
    try:
        code = _run()
    except Interrupted as stop:
        say(str(stop))
        code = stop.exit_code
        _leave_others(code)
    # Out here, so that what the error holds (files, workers) has been let go.
    sys.exit(code)


def _run() -> int:
    try:
        app(standalone_mode=True)
    except UserError as error:
        console.print("[bold red]error[/]: ", end="")
        say(str(error))
        _leave_others(2)
        return 2
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else 0
    except Exception:
        if is_one_of_many():
            time.sleep(_ECHO_S)  # it may be no more than the loss of one that has failed
        traceback.print_exc()
        _leave_others(1)
        return 1
    return 0


def _leave_others(code: int) -> None:
    """End at once if this is one of many: tidying up, NCCL would wait for the others."""
    if is_one_of_many():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
