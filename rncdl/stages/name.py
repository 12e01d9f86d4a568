"""`rncdl name`: a local page on which people name what was found."""

import secrets
import socket
import webbrowser
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from rncdl.data.datasets import PlainImages
from rncdl.discovery.bank import Bank
from rncdl.errors import UserError
from rncdl.naming.board import Board
from rncdl.naming.carrying import Earlier, carry_over
from rncdl.naming.membership import ChosenHead, open_membership, read_membership
from rncdl.naming.pictures import Outliner, Pictures
from rncdl.naming.server import Served, build_app
from rncdl.naming.store import DecisionStore, read_decisions, read_heads
from rncdl.origins import digest
from rncdl.run_folder import RunFolder
from rncdl.stages.opening import OpenDiscovery, open_discovery, require_discovery
from rncdl.training.progress import say, warn


@dataclass(frozen=True)
class PageAddress:
    """Where the page is to be found, and whether a browser is to open it."""

    port: int = 0
    """0: any free one"""
    browser: bool = True


def name_clusters(
    run_path: Path,
    *,
    discovery: str | None,
    head: int,
    names_from: Path | None,
    address: PageAddress,
) -> None:
    """Serve the page until Ctrl-C. `names_from`: a run whose decisions are suggested too."""
    run = RunFolder(run_path)
    name = require_discovery(run, discovery)
    if names_from is not None and not RunFolder(names_from).discovery_names():
        raise UserError(f"--names-from {names_from}: no run with a finished discovery.")
    served = open_served(run, name, head, names_from=names_from)
    token = secrets.token_urlsafe(24)
    listening = _listen(address.port)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/{token}/"
    say(f"Name the clusters at {url}\nEvery decision is saved at once; Ctrl-C ends.")
    if address.browser:
        webbrowser.open(url)
    config = uvicorn.Config(
        build_app(served, token=token), log_level="warning", access_log=False, lifespan="off"
    )
    try:
        uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        served.board.store.close()


def open_served(run: RunFolder, name: str, head: int, *, names_from: Path | None = None) -> Served:
    """The clusters of one head of a discovery, with what people have decided so far."""
    opened = open_discovery(run, name, head)
    images, data = opened.pool.images, opened.settings.data
    board = _open_board(opened, names_from)
    plain = PlainImages(
        images, short_side_px=data.eval_short_side_px, long_side_px=data.long_side_px
    )
    outliner = Outliner(lambda: opened.detector, plain) if run.has_masks() else None
    title = f"Discovery “{name}” of {run.path.resolve().name}"
    return Served(board, Pictures(opened.bank, images, outliner), title)


def _open_board(opened: OpenDiscovery, names_from: Path | None) -> Board:
    """The clusters with what was decided about them, and about others before."""
    folder, known = opened.folder, opened.run.split().known
    fingerprint = digest(folder.heads_file.read_bytes())
    membership = open_membership(
        folder.membership_dir(opened.head),
        opened.bank,
        images=opened.pool.images,
        origin={
            "heads": fingerprint,
            "head": opened.head,
            "known": len(known),
            "known_by": opened.settings.predict.known,
            "bank": opened.bank.origin,
            "regions": digest(opened.bank.counts().tobytes()),
        },
        open_head=lambda: ChosenHead(opened.heads, opened.head, opened.classifier.known),
        objects=_seen_objects(opened),
    )
    decisions_file = folder.decisions_file(opened.head)
    store = DecisionStore(decisions_file, num_clusters=membership.num_clusters, heads=fingerprint)
    earlier = [*_earlier_decisions(opened.run, but=decisions_file)]
    if names_from is not None:
        earlier += _earlier_decisions(RunFolder(names_from))
    return Board(membership, store, known, carry_over(membership, earlier))


def _seen_objects(opened: OpenDiscovery) -> Bank | None:
    """What a teacher has seen in the same images; None where there was no teacher."""
    folder = opened.run.object_bank_dir
    if opened.settings.discover.teacher == "none" or not Bank.exists(folder):
        return None
    objects = Bank(folder)
    return objects if objects.origin.get("images") == opened.bank.origin.get("images") else None


def _earlier_decisions(run: RunFolder, *, but: Path | None = None) -> Iterator[Earlier]:
    """What was decided about a run's discoveries and heads, the newest discovery first.

    but: left out.
    """
    for name in reversed(run.discovery_names()):
        folder = run.discovery(name)
        for head, path in folder.decided_heads().items():
            decisions = read_decisions(path)
            if path == but or not (decisions.names or decisions.ignored or decisions.moved):
                continue
            membership = read_membership(folder.membership_dir(head))
            if membership is None or membership.origin["heads"] != read_heads(path):
                warn(
                    f"{path}: cannot be suggested, as the regions it is about were not kept; open "
                    f"it once with `rncdl name --run {run.path} --discovery {name} --head {head}`."
                )
                continue
            title = f"“{name}” of {run.path.resolve().name}, head {head}"
            yield Earlier(title, membership, decisions)


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
