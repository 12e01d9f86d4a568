"""The page, served for tests on a free port from a small bank."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import uvicorn
from PIL import Image

from rncdl.data.records import ImageRecord
from rncdl.discovery.bank import Bank
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.naming.board import Board
from rncdl.naming.carrying import CarriedOver
from rncdl.naming.membership import ChosenHead, open_membership
from rncdl.naming.pictures import Outliner, Pictures
from rncdl.naming.server import Served, build_app
from rncdl.naming.store import DecisionStore

TOKEN = "the-token"
KNOWN = ("car", "dog", "tree")
IMAGE_WIDTH = 48
ORIGIN = {"heads": "h", "bank": "b", "regions": "r", "known": len(KNOWN)}


@dataclass(frozen=True)
class Site:
    """A server that runs."""

    port: int
    board: Board

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        return f"http://{self.host}/{TOKEN}/"

    def send(
        self, method: str, path: str, *, body: bytes | None = None, **headers: str
    ) -> tuple[int, bytes]:
        """Status and body; headers with underscores for dashes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, body=body, headers=named)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """What the page would be told."""
        status, body = self.send("GET", f"/{TOKEN}/{path}")
        assert status == 200, body
        return json.loads(body)

    def decide(self, kind: str, **decision: Any) -> tuple[int, Any]:
        """A decision as the page sends it, made on what is there now."""
        decision = {"seen": self.get("api/changes?since=0")["version"], **decision}
        status, body = self.send(
            "POST",
            f"/{TOKEN}/api/decide/{kind}",
            body=json.dumps(decision).encode(),
            Origin=f"http://{self.host}",
            Content_Type="application/json",
        )
        return status, json.loads(body)


@dataclass(frozen=True)
class _Boxes:
    """Masks that fill their boxes, as there is no detector to draw them."""

    images: list[ImageRecord]

    def outline(self, image: int, box_xyxy: list[float]) -> np.ndarray:
        record = self.images[image]
        mask = np.zeros((record.height, record.width), dtype=bool)
        x0, y0, x1, y1 = (round(side) for side in box_xyxy)
        mask[y0:y1, x0:x1] = True
        return mask


@contextmanager
def serve(
    folder: Path,
    bank: Bank,
    heads: DiscoveryHeads,
    *,
    carried: CarriedOver | None = None,
    known: tuple[str, ...] = KNOWN,
) -> Iterator[Site]:
    """The page of the bank's regions, decisions in `folder`; three known classes."""
    images = draw_images(folder / "images", len(bank.counts()))
    membership = open_membership(
        folder / "membership",
        bank,
        images=images,
        origin=ORIGIN,
        open_head=lambda: ChosenHead(heads, 0, None),
    )
    store = DecisionStore(
        folder / "decisions.sqlite", num_clusters=membership.num_clusters, heads="h"
    )
    board = Board(membership, store, known, carried)
    pictures = Pictures(bank, images, cast(Outliner, _Boxes(images)))
    app = build_app(Served(board, pictures, "A made-up discovery"), token=TOKEN)
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield Site(listening.getsockname()[1], board)
    server.should_exit = True
    thread.join()
    store.close()


def image_height(index: int) -> int:
    """Every second image is tall."""
    return 40 if index % 2 else 200


def draw_images(folder: Path, number: int) -> list[ImageRecord]:
    """Images of coloured noise, wide and tall ones in turn."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    records = []
    for index in range(number):
        path = folder / f"{index}.png"
        small = rng.integers(0, 255, (6, 6, 3), dtype=np.uint8)
        height = image_height(index)
        Image.fromarray(small).resize((IMAGE_WIDTH, height)).save(path)
        records.append(ImageRecord(index, path, height, IMAGE_WIDTH))
    return records
