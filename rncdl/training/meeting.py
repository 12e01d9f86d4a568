"""Where the machines of a job meet: torch's rendezvous, at a host and port that were given."""

import socket
import time

from torch.distributed.elastic.rendezvous import (
    RendezvousError,
    RendezvousHandler,
    RendezvousParameters,
)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from rncdl.errors import UserError
from rncdl.training.progress import say

JOIN_S = 900
"""How long machines wait for one another."""
_PORT = 29400
_RETRY_S = 1.0


def open_meeting(place: str, *, nodes: int) -> tuple[RendezvousHandler, str]:
    """The rendezvous of `nodes` machines at HOST:PORT, and the address others reach this one by.

    The machine that has that address hosts it; the others wait for it, here rather than in torch,
    which would not heed Ctrl-C.
    """
    try:
        host, port = parse_rendezvous_endpoint(place, default_port=_PORT)
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (ValueError, OSError) as error:
        raise UserError(
            f"--rendezvous {place}: no HOST:PORT of a known machine ({error})."
        ) from error
    if nodes > 1:
        say(f"Waiting for {nodes} machines to meet at {place}.")
    if _can_listen(family, address):
        try:
            return _join(host, port, nodes=nodes, own_address=host, is_host=True), host
        except RendezvousError:
            pass  # another launcher of this machine was faster
    own_address = _wait_for_host(place, family, address)
    return _join(host, port, nodes=nodes, own_address=own_address, is_host=False), own_address


def _join(
    host: str, port: int, *, nodes: int, own_address: str, is_host: bool
) -> RendezvousHandler:
    return get_rendezvous_handler(
        RendezvousParameters(
            "c10d",
            f"{host}:{port}",
            run_id="rncdl",
            min_nodes=nodes,
            max_nodes=nodes,
            local_addr=own_address,
            is_host=is_host,
            join_timeout=JOIN_S,
        )
    )


def _can_listen(family: socket.AddressFamily, address: tuple) -> bool:
    """Whether the address is this machine's and its port free."""
    try:
        with socket.create_server(address[:2], family=family):
            return True
    except OSError:
        return False


def _wait_for_host(place: str, family: socket.AddressFamily, address: tuple) -> str:
    """Wait until someone listens there; returns this machine's address on the way to it."""
    deadline = time.monotonic() + JOIN_S
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(address[:2], timeout=_RETRY_S) as connection:
                return str(connection.getsockname()[0])
        except OSError:
            time.sleep(_RETRY_S)
    raise UserError(
        f"--rendezvous {place}: nobody was there in {JOIN_S // 60} minutes. Give the same command "
        "on each machine; HOST must be one of them, under a name that the others reach."
    )
