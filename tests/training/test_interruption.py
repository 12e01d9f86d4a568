import os
import pickle
import signal

import pytest

from rncdl.training.interruption import Interrupted, stop_request


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_sets_the_flag_instead_of_killing(number):
    with stop_request() as stop:
        assert not stop
        os.kill(os.getpid(), number)
        assert stop
        assert stop.exit_code == 128 + number


def test_asking_twice_leaves_at_once_and_handlers_come_back():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), stop_request():  # noqa: PT012
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interruption_can_be_told_another_process():
    told = pickle.loads(pickle.dumps(Interrupted("Stopped.", 130)))
    assert (str(told), told.exit_code) == ("Stopped.", 130)
