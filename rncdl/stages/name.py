"""`rncdl name`: a local page on which people name what was found."""

import secrets
import socket
import webbrowser
from pathlib import Path

import uvicorn

from rncdl.config import change
from rncdl.discovery.bank import Bank
from rncdl.discovery.filling import require_origin
from rncdl.errors import UserError
from rncdl.inputs import load_pool
from rncdl.models import load_detector, load_heads
from rncdl.naming.board import Board
from rncdl.naming.membership import open_membership
from rncdl.naming.pictures import Pictures
from rncdl.naming.server import Served, build_app
from rncdl.naming.store import DecisionStore
from rncdl.origins import digest
from rncdl.prediction.classifier import discovery_classifier
from rncdl.run_folder import RunFolder
from rncdl.training.processes import choose_device
from rncdl.training.progress import say


def name_clusters(
    run_path: Path, *, discovery: str | None, head: int, port: int, browser: bool
) -> None:
    """Serve the page until Ctrl-C. `port` 0: any free one."""
    run = RunFolder(run_path)
    name = run.choose_discovery(discovery)
    if name is None:
        raise UserError(f"{run_path}: no finished discovery to name; run `rncdl discover`.")
    served = open_served(run, name, head)
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
    folder = run.discovery(name)
    settings = change(folder.settings(), data={"workers": 0})
    known = run.split().known
    inputs = folder.inputs()
    if inputs is None:
        raise UserError(f"{folder.path}: did not note its images, so there is nothing to show.")
    if not Bank.exists(run.bank_dir):
        raise UserError(
            f"{run.path}: no bank, as discovered with --online; discover without it to name."
        )
    detector = load_detector(run, settings, run.split(), discovery=name)
    detector = detector.to(choose_device(settings.device)).eval()
    heads = load_heads(run, detector, name)
    if not 0 <= head < len(heads.num_clusters):
        raise UserError(
            f"--head {head}: this discovery has heads 0 to {len(heads.num_clusters) - 1}."
        )
    pool = load_pool(run, inputs, settings=settings, shown=True)
    bank = Bank(run.bank_dir)
    require_origin(bank, run, pool, settings)
    classifier = discovery_classifier(detector, heads, known, head=head, predict=settings.predict)
    fingerprint = digest(folder.heads_file.read_bytes())
    membership = open_membership(
        folder.membership_dir(head),
        bank,
        heads,
        head=head,
        known=classifier.known,
        origin={
            "heads": fingerprint,
            "bank": bank.origin,
            "regions": digest(bank.counts().tobytes()),
            "known_by": settings.predict.known,
        },
    )
    store = DecisionStore(
        folder.decisions_file(head), num_clusters=membership.num_clusters, heads=fingerprint
    )
    title = f"Discovery “{name}” of {run.path.resolve().name}"
    return Served(Board(membership, store, tuple(known)), Pictures(bank, pool.images), title)


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
