"""The `rncdl` command."""

import os
import sys

# Threads that wait for one another asleep instead of spinning: on a machine that does other work
# too, spinning made training ten times slower. To be set before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from rncdl.cli import app
from rncdl.errors import UserError
from rncdl.training.interruption import Interrupted
from rncdl.training.launching import LOST_ANOTHER, has_lost_another
from rncdl.training.progress import console, say


def main() -> None:
    """Run the command line; problems the user can mend are one message and exit code 2."""
    sys.exit(_run())


def _run() -> int:
    # The code is returned rather than raised, so that what the error holds (files, workers) is
    # let go before the interpreter ends.
    try:
        app(standalone_mode=True)
    except UserError as error:
        console.print("[bold red]error[/]: ", end="")
        say(str(error))
        return 2
    except Interrupted as stop:
        say(str(stop))
        return stop.exit_code
    except KeyboardInterrupt:
        say("Stopped.")
        return 130
    except RuntimeError as error:
        if not has_lost_another(error):
            raise
        say("Stopped, because another process of this job did.")
        return LOST_ANOTHER
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else 0
    return 0


if __name__ == "__main__":
    main()
