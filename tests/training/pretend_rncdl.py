"""Stands in for `python -m rncdl` where only the starting of processes is tested."""

import os
import signal
import sys
import time
from pathlib import Path

rank, words = os.environ["RANK"], sys.argv[1:]
if words[0] == "note":
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS")
    noted = [*(os.environ[name] for name in (*names, "MASTER_PORT")), *words[2:]]
    Path(words[1], rank).write_text("\n".join(noted))
elif words[0] == "talk":
    sys.stderr.write(f"process {rank}\n")
elif words[0] == "fail":
    if words[1] in (rank, "all"):
        sys.stderr.write(f"process {rank} found a broken image\n")
        sys.exit(7)
    # As one that waits for the others in C++ code, and does not end when it is asked to.
    signal.signal(signal.SIGTERM, lambda *_: Path(words[2], f"asked{rank}").touch())
    time.sleep(300)
elif words[0] == "die":
    if words[1] == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(300)
elif words[0] == "wait":
    heard: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: heard.append(number))
    Path(words[1], f"ready{rank}").touch()
    while not heard or words[2:] == ["for", "ever"]:
        time.sleep(0.01)
        if heard:
            Path(words[1], f"heard{rank}").touch()
    Path(words[1], f"saved{rank}").touch()
    sys.exit(128 + heard[0])
