import os
import signal
import socket
import threading
from collections.abc import Iterator

import pytest

from rncdl.errors import UserError
from rncdl.training import meeting
from rncdl.training.interruption import Interrupted, stop_request
from rncdl.training.meeting import open_meeting


@pytest.fixture
def reserved() -> Iterator[socket.socket]:
    """A place of this machine that is taken, but where nobody listens yet."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken


def place_of(taken: socket.socket) -> str:
    return "{}:{}".format(*taken.getsockname())


@pytest.mark.parametrize("place", ["host:port", "127.0.0.1:99999", "two words:29400"])
def test_a_place_that_is_none_is_refused(place):
    with pytest.raises(UserError, match=f"--rendezvous {place}"):
        open_meeting(place, nodes=2)


def test_whoever_has_the_address_hosts_the_meeting():
    handler, address = open_meeting("127.0.0.1:0", nodes=1)
    assert address == "127.0.0.1"
    assert handler.next_rendezvous().world_size == 1
    handler.shutdown()


def test_the_others_wait_for_the_host(reserved, monkeypatch):
    tries: list[float] = []

    def listen_at_the_third(seconds: float) -> None:
        tries.append(seconds)
        if len(tries) == 3:
            reserved.listen()

    monkeypatch.setattr(meeting.time, "sleep", listen_at_the_third)
    family, address = reserved.family, reserved.getsockname()
    assert meeting._wait_for_host(place_of(reserved), family, address) == "127.0.0.1"
    assert len(tries) == 3


def test_a_host_that_never_comes_is_told(reserved, monkeypatch):
    monkeypatch.setattr(meeting, "JOIN_S", 0)
    with pytest.raises(UserError, match="nobody was there"):
        open_meeting(place_of(reserved), nodes=2)


def test_the_waiting_heeds_signals(reserved, monkeypatch):
    monkeypatch.setattr("rncdl.training.interruption._SAME_REQUEST_S", -1.0)  # the first one counts
    sender = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
    with stop_request():
        sender.start()
        with pytest.raises(Interrupted):
            open_meeting(place_of(reserved), nodes=2)
    sender.join()
