"""`rncdl name`: a local page on which people name what was found."""

import secrets
import socket
import webbrowser
from pathlib import Path

import uvicorn

from rncdl.errors import UserError
from rncdl.naming.board import Board
from rncdl.naming.membership import open_membership
from rncdl.naming.pictures import Pictures
from rncdl.naming.server import Served, build_app
from rncdl.naming.store import DecisionStore
from rncdl.origins import digest
from rncdl.run_folder import RunFolder
from rncdl.stages.opening import open_discovery, require_discovery
from rncdl.training.progress import say


def name_clusters(
    run_path: Path, *, discovery: str | None, head: int, port: int, browser: bool
) -> None:
    """Serve the page until Ctrl-C. `port` 0: any free one."""
    run = RunFolder(run_path)
    served = open_served(run, require_discovery(run, discovery), head)
    token = secrets.token_urlsafe(24)
    listening = _listen(port)
    address = f"http://127.0.0.1:{listening.getsockname()[1]}/{token}/"
    say(f"Name the clusters at {address}\nEvery decision is saved at once; Ctrl-C ends.")
    if browser:
        webbrowser.open(address)
    config = uvicorn.Config(
        build_app(served, token=token), log_level="warning", access_log=False, lifespan="off"
    )
    try:
        uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        served.board.store.close()


def open_served(run: RunFolder, name: str, head: int) -> Served:
    """The clusters of one head of a discovery, with what people have decided so far."""
    opened = open_discovery(run, name, head)
    folder, bank = opened.folder, opened.bank
    fingerprint = digest(folder.heads_file.read_bytes())
    membership = open_membership(
        folder.membership_dir(head),
        bank,
        opened.heads,
        head=head,
        known=opened.classifier.known,
        origin={
            "heads": fingerprint,
            "bank": bank.origin,
            "regions": digest(bank.counts().tobytes()),
            "known_by": opened.settings.predict.known,
        },
    )
    store = DecisionStore(
        folder.decisions_file(head), num_clusters=membership.num_clusters, heads=fingerprint
    )
    title = f"Discovery “{name}” of {run.path.resolve().name}"
    return Served(
        Board(membership, store, run.split().known), Pictures(bank, opened.pool.images), title
    )


def _listen(port: int) -> socket.socket:
    """A socket on this machine alone."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
    except OSError as error:
        listening.close()
        raise UserError(
            f"--port {port}: cannot be used ({error.strerror}); leave it out for a free one."
        ) from error
    return listening
