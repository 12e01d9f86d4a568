import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from rncdl.training import agent, interruption, launching
from rncdl.training.launching import one_gpu_or_two_processes, run_in_processes

PRETEND = Path(__file__).with_name("pretend_rncdl.py")


@pytest.fixture(autouse=True)
def pretend(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run a few lines that need no torch instead of `rncdl`."""
    monkeypatch.setattr(launching, "_COMMAND", (sys.executable, PRETEND))
    monkeypatch.setattr(agent, "_GRACE_S", 0.3)
    with mock.patch.dict(os.environ):
        os.environ.pop("WORLD_SIZE", None)
        os.environ.pop("OMP_NUM_THREADS", None)
        yield


def test_a_small_job_takes_two_processes_unless_there_is_one_gpu(monkeypatch: pytest.MonkeyPatch):
    for num_gpus, expected in ((0, 2), (1, 1), (4, 2)):
        monkeypatch.setattr("torch.cuda.device_count", lambda count=num_gpus: count)
        assert one_gpu_or_two_processes() == expected


def test_every_process_knows_its_place_and_shares_the_cores(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(launching, "_num_cores", lambda: 7)
    words = ["$HOME", "a$$b", "${local_rank}", "two words"]
    assert run_in_processes(3, ["note", str(tmp_path), *words]) == 0
    notes = [(tmp_path / str(rank)).read_text().split("\n") for rank in range(3)]
    assert [note[:5] for note in notes] == [[str(r), "3", str(r), "3", "2"] for r in range(3)]
    assert len({note[5] for note in notes}) == 1  # one port, where they meet
    assert [note[6:] for note in notes] == [words] * 3


def test_threads_that_were_asked_for_are_left_alone(tmp_path: Path):
    os.environ["OMP_NUM_THREADS"] = "5"
    assert run_in_processes(1, ["note", str(tmp_path)]) == 0
    assert (tmp_path / "0").read_text().split("\n")[4] == "5"


def test_only_the_first_process_talks(capfd):
    assert run_in_processes(2, ["talk"]) == 0
    assert capfd.readouterr().err == "process 0\n"


def test_one_that_fails_ends_those_that_wait_for_it_and_says_why(tmp_path: Path, capfd):
    assert run_in_processes(3, ["fail", "2", str(tmp_path)]) == 7
    # Torch alone would ask the others to end and wait for 30 s; they cannot.
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr().err == "process 2 found a broken image\n"


def test_one_that_was_killed_is_named(capfd):
    assert run_in_processes(2, ["die", "1"]) == 128 + signal.SIGKILL
    assert capfd.readouterr().err == "Process 1 was ended by SIGKILL (out of memory?).\n"


def test_what_all_say_is_shown_once(capfd, monkeypatch):
    monkeypatch.setattr(agent, "_GRACE_S", 60)
    assert run_in_processes(2, ["fail", "all"]) == 7
    assert capfd.readouterr().err == "process 0 found a broken image\n"


@pytest.mark.parametrize(("kind", "code"), [("user", 2), ("bug", 1)])
def test_an_error_in_one_is_all_that_is_said_while_another_waits_for_it(
    kind: str, code: int, capfd, monkeypatch
):
    """Process 0 waits in a collective, loses process 1 and must not speak of that."""
    job = Path(__file__).with_name("failing_rank.py")
    monkeypatch.setattr(launching, "_COMMAND", (sys.executable, job))
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    assert run_in_processes(2, [kind]) == code
    said = capfd.readouterr().err
    if kind == "user":
        assert said == "error: process 1 found a broken image\n"
    else:
        assert said.count("Traceback") == 1
        assert said.endswith("ZeroDivisionError: process 1 divided by zero\n")


def send_when(paths: list[Path], number: signal.Signals) -> threading.Thread:
    """Send this process the signal as soon as all the files are there."""

    def send() -> None:
        deadline = time.monotonic() + 900
        while not all(path.exists() for path in paths) and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.mark.parametrize("number", interruption.STOP_SIGNALS)
def test_signals_reach_every_process(tmp_path: Path, number: signal.Signals, capfd):
    before = signal.getsignal(number)
    sender = send_when([tmp_path / "ready0", tmp_path / "ready1"], number)
    assert run_in_processes(2, ["wait", str(tmp_path)]) == 128 + number
    sender.join()
    assert all((tmp_path / f"saved{rank}").exists() for rank in range(2))
    assert capfd.readouterr().err == ""
    assert signal.getsignal(number) is before


def test_a_second_signal_ends_those_that_do_not_heed_the_first(tmp_path: Path, monkeypatch, capfd):
    monkeypatch.setattr(interruption, "_SAME_REQUEST_S", 0.0)
    first = send_when([tmp_path / "ready0", tmp_path / "ready1"], signal.SIGTERM)
    second = send_when([tmp_path / "heard0", tmp_path / "heard1"], signal.SIGTERM)
    assert run_in_processes(2, ["wait", str(tmp_path), "for", "ever"]) == 128 + signal.SIGTERM
    first.join()
    second.join()
    assert "at once" in capfd.readouterr().err
