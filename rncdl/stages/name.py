"""`rncdl name`: a local page on which people name what was found."""

import secrets
import socket
import webbrowser
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from rncdl.config import Settings, change
from rncdl.data.datasets import PlainImages
from rncdl.data.viewed_images import Pool
from rncdl.detector.model import Detector
from rncdl.discovery.bank import Bank
from rncdl.discovery.filling import require_origin
from rncdl.errors import UserError
from rncdl.inputs import load_pool
from rncdl.models import load_detector, load_heads
from rncdl.naming.board import Board
from rncdl.naming.carrying import Earlier, carry_over
from rncdl.naming.membership import ChosenHead, Membership, open_membership, read_membership
from rncdl.naming.pictures import Outliner, Pictures
from rncdl.naming.server import Served, build_app
from rncdl.naming.store import DecisionStore, read_decisions, read_heads
from rncdl.origins import digest
from rncdl.prediction.classifier import discovery_classifier
from rncdl.run_folder import DiscoveryFolder, RunFolder
from rncdl.training.processes import choose_device
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
    name = run.choose_discovery(discovery)
    if name is None:
        raise UserError(f"{run_path}: no finished discovery to name; run `rncdl discover`.")
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
    folder = run.discovery(name)
    settings = change(folder.settings(), data={"workers": 0})
    pool, bank = _open_pool(run, folder, settings)
    if not 0 <= head < len(settings.discover.heads):
        raise UserError(
            f"--head {head}: this discovery has heads 0 to {len(settings.discover.heads) - 1}."
        )

    def open_detector() -> Detector:
        detector = load_detector(run, settings, run.split(), discovery=name)
        return detector.to(choose_device(settings.device)).eval()

    def open_head() -> ChosenHead:
        detector, known = open_detector(), run.split().known
        heads = load_heads(run, detector, name)
        predict = settings.predict
        classifier = discovery_classifier(detector, heads, known, head=head, predict=predict)
        return ChosenHead(heads, head, classifier.known)

    membership = open_membership(
        folder.membership_dir(head),
        bank,
        images=pool.images,
        origin={
            "heads": digest(folder.heads_file.read_bytes()),
            "head": head,
            "known": run.split().num_known,
            "known_by": settings.predict.known,
            "bank": bank.origin,
            "regions": digest(bank.counts().tobytes()),
        },
        open_head=open_head,
    )
    plain = PlainImages(
        pool.images,
        short_side_px=settings.data.eval_short_side_px,
        long_side_px=settings.data.long_side_px,
    )
    outliner = Outliner(open_detector, plain) if run.has_masks() else None
    board = _open_board(run, folder.decisions_file(head), membership, names_from=names_from)
    title = f"Discovery “{name}” of {run.path.resolve().name}"
    return Served(board, Pictures(bank, pool.images, outliner), title)


def _open_pool(run: RunFolder, folder: DiscoveryFolder, settings: Settings) -> tuple[Pool, Bank]:
    """The images of a discovery, and the bank of their regions."""
    inputs = folder.inputs()
    if inputs is None:
        raise UserError(f"{folder.path}: did not note its images, so there is nothing to show.")
    if not Bank.exists(run.bank_dir):
        raise UserError(
            f"{run.path}: no bank, as discovered with --online; discover without it to name."
        )
    pool = load_pool(run, inputs, settings=settings, shown=True)
    bank = Bank(run.bank_dir)
    require_origin(bank, run, pool, settings)
    return pool, bank


def _open_board(
    run: RunFolder, decisions_file: Path, membership: Membership, *, names_from: Path | None
) -> Board:
    """The clusters with what was decided about them, and about others before."""
    store = DecisionStore(
        decisions_file, num_clusters=membership.num_clusters, heads=membership.origin["heads"]
    )
    earlier = [*_earlier_decisions(run, but=decisions_file)]
    if names_from is not None:
        earlier += _earlier_decisions(RunFolder(names_from))
    return Board(membership, store, run.split().known, carry_over(membership, earlier))


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
