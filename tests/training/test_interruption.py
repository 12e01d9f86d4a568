import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rncdl.training import interruption
from rncdl.training.interruption import (
    STOP_SIGNALS,
    Interrupted,
    interrupt_on_signals,
    sparing_children,
    stop_request,
)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_sets_the_flag_instead_of_killing(number):
    with stop_request() as stop:
        assert not stop
        os.kill(os.getpid(), number)
        assert stop
        assert stop.exit_code == 128 + number


def test_asking_twice_leaves_at_once_and_handlers_come_back(monkeypatch):
    monkeypatch.setattr(interruption, "_SAME_REQUEST_S", -1.0)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted) as stopped, stop_request():  # noqa: PT012
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
    assert stopped.value.exit_code == 128 + signal.SIGINT
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interruption_can_be_told_another_process():
    told = pickle.loads(pickle.dumps(Interrupted("Stopped.", 130)))
    assert (str(told), told.exit_code) == ("Stopped.", 130)


def test_one_request_may_come_twice(monkeypatch):
    """`timeout` sends SIGTERM to the process and to its group; slurm to launcher and processes."""
    monkeypatch.setattr(interruption, "_SAME_REQUEST_S", 1e9)
    with stop_request() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop
    interrupt_on_signals()
    with pytest.raises(Interrupted):
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)


def test_what_nohup_ignores_is_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupt_on_signals()
    with stop_request() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert not stop


def test_work_in_another_thread_goes_on_without_a_handler():
    """Only the main thread may set one."""
    heard: list[bool] = []

    def work() -> None:
        with stop_request() as stop:
            heard.append(bool(stop))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert heard == [False]
    assert signal.getsignal(signal.SIGINT) is before


def test_other_work_ends_where_it_is_and_nothing_passes_over_it():
    interrupt_on_signals()
    with pytest.raises(Interrupted) as stopped, contextlib.suppress(Exception):
        os.kill(os.getpid(), signal.SIGTERM)  # in code that passes over broken images
    assert stopped.value.exit_code == 128 + signal.SIGTERM


def test_while_modules_load_the_process_ends_whatever_they_catch(tmp_path: Path):
    module = "try:\n    import os, signal; os.kill(os.getpid(), signal.SIGTERM)\nexcept: pass\n"
    (tmp_path / "catching.py").write_text(module)
    code = (
        "from rncdl.training.interruption import interrupt_on_signals\n"
        "interrupt_on_signals()\n"
        "import catching\n"
    )
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 128 + signal.SIGTERM
    assert done.stderr == "Stopped.\n"


def test_children_hear_nothing_and_this_process_hears_it_afterwards():
    with stop_request() as stop:
        with sparing_children():
            ask = "import os, signal; [os.kill(os.getpid(), n) for n in (1, 2, 15)]"
            assert subprocess.run([sys.executable, "-c", ask], check=False).returncode == 0
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
            assert not stop
        assert stop
