"""Workers that load images, when the job is asked to stop and when one of them is killed."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch.utils.data import Dataset

from rncdl.data import batch_loader
from rncdl.data.batch_loader import BatchLoader
from rncdl.data.datasets import ItemKey
from rncdl.errors import UserError
from rncdl.training.interruption import STOP_SIGNALS


class WorkerIds(Dataset):
    """Each item is the id of the process that loads it; image 9 is broken."""

    def __getitem__(self, key: ItemKey) -> int:
        if key[0] == 9:
            raise UserError("image 9 is broken")
        return os.getpid()


def open_loader(*, num_batches: int = 9) -> BatchLoader[int]:
    return BatchLoader(WorkerIds(), [[(i, 0)] for i in range(num_batches)], workers=1)


def test_workers_do_not_hear_the_stop_signals_even_while_they_start(monkeypatch):
    """They reach the whole group; a worker that died of one would end the job unsaved."""
    start = batch_loader._start_worker

    def start_amid_signals(worker_index: int) -> None:
        for number in STOP_SIGNALS:
            os.kill(os.getpid(), number)
        start(worker_index)

    monkeypatch.setattr(batch_loader, "_start_worker", start_amid_signals)
    batches = iter(open_loader())
    [worker] = next(batches).samples
    for number in STOP_SIGNALS:
        os.kill(worker, number)
    assert {pid for batch in batches for pid in batch.samples} == {worker}


def test_a_killed_worker_is_a_matter_for_the_user_where_its_batch_is_missed():
    batches = iter(open_loader())
    [worker] = next(batches).samples
    os.kill(worker, signal.SIGKILL)
    time.sleep(0.5)  # torch would raise here, or wherever this process is just then
    with pytest.raises(UserError, match=r"killed.*lower data\.workers, data\.cache_mb"):
        list(batches)


def test_workers_have_ended_when_an_error_is_raised():
    """Even while someone holds the error, and with it all that its traceback leads to."""
    with pytest.raises(UserError) as held:
        list(open_loader(num_batches=12))
    assert str(held.value) == "image 9 is broken"
    assert multiprocessing.active_children() == []


def test_a_loader_left_in_the_middle_does_not_keep_the_process_from_ending(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(
        "from tests.data.test_batch_loader import open_loader\n"
        "if __name__ == '__main__':\n"
        "    batches = iter(open_loader())\n"
        "    next(batches)\n"
        "    import sys; sys.keep = batches\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, script], env=environment, timeout=900, check=True)
