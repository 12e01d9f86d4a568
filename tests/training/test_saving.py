import os
import signal

import pytest
import torch

from rncdl.training.checkpoints import list_checkpoints, load_checkpoint
from rncdl.training.interruption import Interrupted, StopRequest, stop_request
from rncdl.training.processes import Processes
from rncdl.training.saving import Saving, save_or_stop

ALONE = Processes(rank=0, count=1, device=torch.device("cpu"))


def finish_step(step, folder, *, stop=None, num_steps=7, every=3):
    save_or_stop(
        step,
        Saving(num_steps, every=every, folder=folder, how_to_continue="Say it again."),
        state=lambda: {"step": step},
        stop=stop or StopRequest(),
        processes=ALONE,
    )


def saved_steps(folder):
    return [load_checkpoint(path)["step"] for path in list_checkpoints(folder)]


def test_checkpoints_come_at_intervals_and_after_the_last_step(tmp_path):
    written = []
    for step in range(1, 8):
        finish_step(step, tmp_path)
        written += [found for found in saved_steps(tmp_path) if found not in written]
    assert written == [3, 6, 7]


def test_only_the_newest_are_kept(tmp_path):
    for step in range(1, 8):
        finish_step(step, tmp_path, every=1)
    assert saved_steps(tmp_path) == [6, 7]


def test_a_stop_saves_first_and_says_how_to_go_on(tmp_path):
    with stop_request() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted, match=r"step 2 of 7; everything is saved. Say it") as found:
            finish_step(2, tmp_path, stop=stop)
    assert found.value.exit_code == 128 + signal.SIGTERM
    assert saved_steps(tmp_path) == [2]


def test_a_process_without_a_folder_stops_without_saving(tmp_path):
    finish_step(3, None)
    with stop_request() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Interrupted):
            finish_step(6, None, stop=stop)
    assert list(tmp_path.iterdir()) == []
