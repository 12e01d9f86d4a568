import os

import pytest
import torch

from rncdl.errors import UserError
from rncdl.files import write_atomically
from rncdl.training.checkpoints import list_checkpoints, load_checkpoint, save_checkpoint
from rncdl.training.interruption import Interrupted


def test_an_absent_folder_has_no_checkpoints(tmp_path):
    assert list_checkpoints(tmp_path / "nowhere") == []


def test_only_the_newest_are_kept_and_come_back_equal(tmp_path):
    for step in (1, 2, 10):
        save_checkpoint(tmp_path, step, {"w": torch.full((2,), float(step)), "step": step})
    assert [p.name for p in list_checkpoints(tmp_path)] == ["step_00000002.pt", "step_00000010.pt"]
    state = load_checkpoint(list_checkpoints(tmp_path)[-1])
    assert state["step"] == 10
    assert state["w"].tolist() == [10.0, 10.0]


def test_a_write_that_fails_leaves_the_old_checkpoint_alone(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, 1, {"step": 1})

    def disk_full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(UserError, match="disk full"):
        save_checkpoint(tmp_path, 2, {"step": 2})
    with pytest.raises(UserError, match="No space left"):
        write_atomically(tmp_path / "step_00000001.pt", b"half")
    assert [p.name for p in tmp_path.iterdir()] == ["step_00000001.pt"]
    assert load_checkpoint(tmp_path / "step_00000001.pt") == {"step": 1}


def test_a_damaged_checkpoint_is_named(tmp_path):
    path = tmp_path / "step_00000001.pt"
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(UserError, match=r"step_00000001\.pt"):
        load_checkpoint(path)


class _Payload:
    ran = False

    def __reduce__(self):
        return (setattr, (_Payload, "ran", True))


def test_checkpoints_cannot_run_code(tmp_path):
    path = tmp_path / "step_00000001.pt"
    torch.save({"evil": _Payload()}, path)
    with pytest.raises(UserError):
        load_checkpoint(path)
    assert not _Payload.ran


def test_a_stop_in_the_middle_of_saving_is_a_stop_and_leaves_nothing_behind(tmp_path):
    class Stopping:
        def __reduce__(self):
            raise Interrupted("Stopped at once.", 130)

    with pytest.raises(Interrupted):
        save_checkpoint(tmp_path, 1, {"w": torch.zeros(9), "x": Stopping()})
    assert list(tmp_path.iterdir()) == []
