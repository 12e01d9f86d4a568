"""Stands in for `python -m rncdl` where only the starting of processes is tested."""

import os
import signal
import sys
import time
from pathlib import Path

rank, words = os.environ["RANK"], sys.argv[1:]
if words[0] == "note":
    names = ("RANK", "WORLD_SIZE", "OMP_NUM_THREADS", "MASTER_PORT")
    Path(words[1], rank).write_text(" ".join(os.environ[name] for name in names))
elif words[0] == "talk":
    sys.stderr.write(f"process {rank}\n")
elif words[0] == "fail":
    if words[1] in (rank, "all"):
        sys.stderr.write(f"process {rank} found a broken image\n")
        sys.exit(7)
    time.sleep(60)
elif words[0] == "die":
    if words[1] == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
elif words[0] == "lose":
    if words[1] == rank:
        sys.stderr.write(f"process {rank} found a broken image\n")
        sys.exit(7)
    sys.stderr.write(f"process {rank} lost another\n")
    sys.exit(3)
elif words[0] == "wait":
    stopped: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: stopped.append(number))
    Path(words[1], f"ready{rank}").touch()
    while not stopped:
        time.sleep(0.01)
    Path(words[1], f"saved{rank}").touch()
    sys.exit(128 + stopped[0])
