"""Runs the command in a process that is killed as soon as a function has returned so many times.

usage: killed.py FUNCTION TIMES WORD...
"""

import os
import signal
import sys
from itertools import count
from pkgutil import resolve_name
from typing import Any

from rncdl.__main__ import main

place, times = sys.argv[1], int(sys.argv[2])
owner_name, _, name = place.rpartition(".")
owner = resolve_name(owner_name)
work, calls = getattr(owner, name), count(1)


def work_and_be_killed(*words: Any, **options: Any) -> Any:
    result = work(*words, **options)
    if next(calls) == times:
        os.kill(os.getpid(), signal.SIGKILL)
    return result


if __name__ == "__main__":
    setattr(owner, name, work_and_be_killed)
    del sys.argv[1:3]
    main()
