"""Signals to the whole process group, as a terminal and schedulers send them, outside training."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from rncdl.discovery.bank import MISSING, Bank
from tests.pipeline.tiny import HANGS_S, command, environment, wait_until


@pytest.mark.parametrize("processes", [1, 2])
def test_a_stop_while_the_bank_is_filled_keeps_what_is_in_it(
    trained: Path, world: Path, tmp_path: Path, processes: int
):
    run = tmp_path / "run"
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns("bank", "discoveries"))
    words = ["discover", "--run", run, "--unlabelled", world / "unlabelled.json"]
    words += ["-p", processes, "data.workers=1", "predict.batch_size=1", "discover.views=60"]
    process = subprocess.Popen(
        command(*words),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )

    def num_filled() -> int:
        exists = Bank.exists(run / "bank")
        return int((Bank(run / "bank").counts() != MISSING).sum()) if exists else 0

    wait_until(lambda: num_filled() > 0, process)
    filled = num_filled()
    os.killpg(process.pid, signal.SIGTERM)
    said, _ = process.communicate(timeout=HANGS_S)
    assert process.returncode == 128 + signal.SIGTERM, said
    assert said.splitlines()[-1] == "Stopped."
    assert said.count("Stopped") == 1
    assert "Traceback" not in said
    assert num_filled() >= filled
