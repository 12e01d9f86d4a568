import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rncdl.training import launching
from rncdl.training.launching import (
    has_lost_another,
    one_gpu_or_two_processes,
    run_in_processes,
)

PRETEND = Path(__file__).with_name("pretend_rncdl.py")


@pytest.fixture(autouse=True)
def pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a few lines that need no torch instead of `rncdl`."""
    monkeypatch.setattr(launching, "_COMMAND", (sys.executable, PRETEND))
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def test_a_small_job_takes_two_processes_unless_there_is_one_gpu(monkeypatch: pytest.MonkeyPatch):
    for num_gpus, expected in ((0, 2), (1, 1), (4, 2)):
        monkeypatch.setattr("torch.cuda.device_count", lambda count=num_gpus: count)
        assert one_gpu_or_two_processes() == expected


def test_every_process_knows_its_place_and_shares_the_cores(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(launching, "_num_cores", lambda: 7)
    assert run_in_processes(3, ["note", str(tmp_path)]) == 0
    notes = [(tmp_path / str(rank)).read_text().split() for rank in range(3)]
    assert [note[:3] for note in notes] == [[str(rank), "3", "2"] for rank in range(3)]
    assert len({note[3] for note in notes}) == 1  # one port, where they meet


def test_threads_that_were_asked_for_are_left_alone(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert run_in_processes(1, ["note", str(tmp_path)]) == 0
    assert (tmp_path / "0").read_text().split()[2] == "5"


def test_only_the_first_process_talks(capfd):
    assert run_in_processes(2, ["talk"]) == 0
    assert capfd.readouterr().err == "process 0\n"


def test_one_that_fails_ends_the_others_and_says_why(capfd, monkeypatch):
    monkeypatch.setattr(launching, "_GRACE_S", 0.2)
    began = time.monotonic()
    assert run_in_processes(3, ["fail", "2"]) == 7
    assert time.monotonic() - began < 20
    assert "process 2 found a broken image" in capfd.readouterr().err


def test_one_that_goes_because_another_has_gone_is_not_to_blame(capfd):
    assert run_in_processes(2, ["lose", "1"]) == 7
    assert capfd.readouterr().err == "process 0 lost another\nprocess 1 found a broken image\n"


def test_one_that_was_killed_is_named(capfd, monkeypatch):
    monkeypatch.setattr(launching, "_GRACE_S", 0.2)
    assert run_in_processes(2, ["die", "1"]) == 128 + signal.SIGKILL
    assert "Process 1 of 2 was ended by SIGKILL." in capfd.readouterr().err


def test_what_all_say_is_shown_once(capfd):
    assert run_in_processes(2, ["fail", "all"]) == 7
    assert capfd.readouterr().err.count("found a broken image") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_every_process(tmp_path: Path, number: signal.Signals):
    code = (
        "import sys; from rncdl.training import launching;"
        f"launching._COMMAND = (sys.executable, {str(PRETEND)!r});"
        f"sys.exit(launching.run_in_processes(2, ['wait', {str(tmp_path)!r}]))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 60
    while not all((tmp_path / f"ready{rank}").exists() for rank in range(2)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    parent.send_signal(number)
    assert parent.wait(timeout=30) == 128 + number
    assert all((tmp_path / f"saved{rank}").exists() for rank in range(2))


def test_a_lost_connection_counts_only_among_several(monkeypatch):
    lost = RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]")
    assert not has_lost_another(lost)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert has_lost_another(lost)
    assert not has_lost_another(RuntimeError("out of memory"))
