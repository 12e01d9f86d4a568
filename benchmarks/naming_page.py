"""How fast and how safe the naming page is with 3,000 clusters and 500,000 regions.

`OMP_NUM_THREADS=1 python benchmarks/naming_page.py`: makes up a run (a ResNet-50 detector of 80
known classes, 10,000 images, F = 1024), serves it with `rncdl name` and measures as a browser and
as a program; then serves the same clusters 200 times and kills the server while it is being told
decisions. Goals: first page 1 s, a cluster's page 0.5 s, a decision 50 ms, 1 GB of memory, nothing
lost.
"""

import argparse
import http.client
import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch
import uvicorn
from PIL import Image
from torch.nn import functional

from rncdl.classes import ClassSplit
from rncdl.config import Settings, change
from rncdl.detector.model import Detector
from rncdl.discovery.bank import Bank, BankShape
from rncdl.discovery.filling import bank_origin
from rncdl.inputs import load_pool
from rncdl.models import build_heads
from rncdl.naming.board import Board
from rncdl.naming.membership import Membership, read_membership
from rncdl.naming.pictures import Pictures
from rncdl.naming.server import Served, build_app
from rncdl.naming.store import DecisionStore
from rncdl.run_folder import DiscoveryInputs, RunFolder

NUM_IMAGES, REGIONS_PER_IMAGE = 10_000, 50
NUM_KNOWN, NUM_CLUSTERS = 80, 3000
WIDTH, HEIGHT = 640, 480
KNOWN_SHARE = 0.1
NUM_DRAWN = 100
"""Different images; the others are links to them."""
SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "data": {"workers": 0},
    "discover": {"heads": (NUM_CLUSTERS,), "projection": False, "views": 2},
}


def make_run(folder: Path) -> RunFolder:
    """A run with one discovery, whose regions belong to its clusters in a long tail."""
    torch.manual_seed(0)
    settings = change(Settings(), **SETTINGS)
    names = [f"class {k}" for k in range(NUM_KNOWN)]
    inputs = _write_inputs(folder, names)
    run = RunFolder(folder / "run")
    run.begin(settings, None, ClassSplit(tuple(names)))
    detector = Detector(settings.detector, NUM_KNOWN, masks=True)
    known = functional.normalize(torch.randn(NUM_KNOWN, settings.detector.box_head_width))
    with torch.no_grad():
        detector.known_head.weight[:-1] = 12 * known
    run.save_detector(detector.state_dict(), has_masks=True)
    heads = build_heads(detector, settings.discover)
    discovery = run.discovery("main")
    discovery.begin(settings, inputs)
    discovery.save_heads(heads.state_dict())
    pool = load_pool(run, inputs, settings=settings, shown=False)
    centres = torch.cat([known, heads.novel[0].prototypes.detach()])
    shape = BankShape(NUM_IMAGES, 1, 2, REGIONS_PER_IMAGE, 128, settings.detector.box_head_width)
    Bank.create(run.bank_dir, shape, bank_origin(run, pool, settings))
    _fill_bank(run.bank_dir, centres)
    return run


def _write_inputs(folder: Path, names: list[str]) -> DiscoveryInputs:
    """Two annotation files, of one labelled image and of all the others."""
    _draw_images(folder / "images")
    images = [
        {"id": i, "file_name": f"{i:05d}.jpg", "width": WIDTH, "height": HEIGHT}
        for i in range(NUM_IMAGES)
    ]
    categories = [{"id": k + 1, "name": name} for k, name in enumerate(names)]
    annotation = {"id": 1, "image_id": 0, "category_id": 1, "bbox": [9, 9, 90, 90], "iscrowd": 0}
    corners = [9, 9, 99, 9, 99, 99, 9, 99]
    annotation |= {"area": 8100, "segmentation": [corners]}
    parts = {"labelled": (images[:1], [annotation]), "unlabelled": (images[1:], [])}
    for part, (its_images, annotations) in parts.items():
        content = {"images": its_images, "annotations": annotations, "categories": categories}
        (folder / f"{part}.json").write_text(json.dumps(content))
    where = str(folder / "images")
    labelled, unlabelled = str(folder / "labelled.json"), str(folder / "unlabelled.json")
    return DiscoveryInputs(labelled, where, (unlabelled,), where)


def _draw_images(folder: Path) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for index in range(NUM_IMAGES):
        path = folder / f"{index:05d}.jpg"
        if index < NUM_DRAWN:
            small = rng.integers(0, 255, (12, 16, 3), dtype=np.uint8)
            Image.fromarray(small).resize((WIDTH, HEIGHT)).save(path, quality=90)
        else:
            os.link(folder / f"{index % NUM_DRAWN:05d}.jpg", path)


def _fill_bank(folder: Path, centres: torch.Tensor) -> None:
    """Features near the centres of the outputs, written as whole files."""
    rng = np.random.default_rng(1)
    tail = 1 / (np.arange(NUM_CLUSTERS) + 20)
    shares = np.concatenate(
        [np.full(NUM_KNOWN, KNOWN_SHARE / NUM_KNOWN), (1 - KNOWN_SHARE) * tail / tail.sum()]
    )
    size = (NUM_IMAGES, REGIONS_PER_IMAGE)
    outputs = rng.choice(len(centres), size=size, p=shares)
    features = np.memmap(
        folder / "features.f16", np.float16, "r+", shape=(NUM_IMAGES, 2, *size[1:], len(centres[0]))
    )
    noise = 0.02 * rng.standard_normal((REGIONS_PER_IMAGE, len(centres[0])), dtype=np.float32)
    for image in range(NUM_IMAGES):
        spread = rng.uniform(0.5, 2.5, (REGIONS_PER_IMAGE, 1)).astype(np.float32)
        features[image, 0] = centres.numpy()[outputs[image]] + spread * noise[rng.permutation(50)]
    features.flush()
    corners = rng.uniform(0, [WIDTH - 100, HEIGHT - 100], (*size, 2))
    sides = rng.uniform(20, 100, (*size, 2))
    boxes = np.concatenate([corners, corners + sides], 2).astype(np.float32)
    (folder / "boxes.f32").write_bytes(boxes.tobytes())
    counts = np.full(NUM_IMAGES, REGIONS_PER_IMAGE, dtype=np.int32)
    (folder / "counts.i32").write_bytes(counts.tobytes())


@dataclass(frozen=True)
class Server:
    """`rncdl name` as a process of its own."""

    process: subprocess.Popen
    address: str
    start_s: float

    def memory_gb(self) -> tuple[float, float]:
        """What it takes now, and the most it has taken."""
        status = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        of = {line.split(":")[0]: line.split()[1] for line in status if line.startswith("Vm")}
        return int(of["VmRSS"]) / 1e6, int(of["VmHWM"]) / 1e6


@contextmanager
def serving(run: RunFolder) -> Iterator[Server]:
    began = time.perf_counter()
    words = [sys.executable, "-m", "rncdl", "name", "--run", str(run.path), "--no-browser"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if "http://" in line:
            break
    else:
        raise SystemExit("".join(said))
    address = "http://" + line.split("http://")[1].strip()
    try:
        yield Server(process, address, time.perf_counter() - began)
    finally:
        process.terminate()
        process.wait()


def measure_pages(server: Server, membership: Membership) -> None:
    """In chromium: until clusters or regions are drawn, and until their visible pictures are."""
    from playwright.sync_api import sync_playwright

    sizes = [len(membership.rows_of_cluster(c)) for c in range(NUM_CLUSTERS)]
    draw = random.Random(0)
    places = [int(np.argmax(sizes)), *draw.sample(range(NUM_CLUSTERS), 9)]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"))
        firsts, members = [], []
        for _ in range(6):
            page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
            began = time.perf_counter()
            page.goto(server.address)
            firsts.append(_drawn(page, "#cards .card", began))
        for place in places:
            began = time.perf_counter()
            page.goto(f"{server.address}#/place/{place}")
            members.append(_drawn(page, f'main[data-shown="#/place/{place}"] .member', began))
        browser.close()
    print(f"first page, first time: {firsts[0][0]:.2f} s, with pictures {firsts[0][1]:.2f} s")
    _report("first page, later", firsts[1:])
    _report(f"a cluster's page ({sizes[places[0]]:,} regions and fewer)", members)


def _drawn(page: Any, selector: str, began: float) -> tuple[float, float]:
    page.wait_for_selector(selector)
    drawn = time.perf_counter() - began
    page.evaluate(
        """() => Promise.allSettled([...document.images]
        .filter((image) => image.getBoundingClientRect().top < innerHeight)
        .map((image) => image.decode()))"""
    )
    return drawn, time.perf_counter() - began


def _report(what: str, times: list[tuple[float, float]]) -> None:
    drawn, pictured = zip(*times, strict=True)
    print(
        f"{what}: median {statistics.median(drawn):.2f} s, at most {max(drawn):.2f} s; "
        f"with pictures {statistics.median(pictured):.2f} s, at most {max(pictured):.2f} s"
    )


class Client:
    """Makes decisions as the page does."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._path, self._origin = parts.path, f"http://{parts.netloc}"
        self._connection = http.client.HTTPConnection(parts.netloc, timeout=30)
        self.seen = 0

    def decide(self, kind: str, **decision: Any) -> dict[str, Any]:
        """What the server answers; a lost connection is an error."""
        body = json.dumps({"seen": self.seen, **decision})
        headers = {"Origin": self._origin, "Content-Type": "application/json"}
        self._connection.request("POST", f"{self._path}api/decide/{kind}", body, headers)
        answer = self._connection.getresponse()
        content = json.loads(answer.read())
        if answer.status != 200:
            raise SystemExit(f"{kind} {decision}: {content}")
        self.seen = content["version"]
        return content

    def close(self) -> None:
        self._connection.close()


def random_decision(draw: random.Random, step: int) -> tuple[str, dict[str, Any]]:
    """A kind of decision and what it is about."""
    cluster = draw.randrange(NUM_CLUSTERS)
    image = draw.randrange(NUM_IMAGES)
    regions = [[image, region] for region in range(REGIONS_PER_IMAGE)]
    kinds: list[Callable[[], tuple[str, dict[str, Any]]]] = [
        lambda: ("name", {"clusters": [cluster], "name": f"name {step}"}),
        lambda: ("ignore", {"clusters": [cluster]}),
        lambda: ("skip", {"cluster": cluster}),
        lambda: ("merge", {"cluster": cluster, "into": -2 - draw.randrange(NUM_KNOWN)}),
        lambda: ("move", {"regions": regions, "into": -1}),
        lambda: ("move_to_name", {"regions": regions, "name": f"name {step}"}),
        lambda: ("undo", {}),
    ]
    return draw.choice(kinds)()


def decide_something(client: Client, draw: random.Random, step: int) -> dict[str, Any]:
    """The answer to a random decision; one that makes no sense just now is drawn again."""
    while True:
        kind, decision = random_decision(draw, step)
        try:
            return client.decide(kind, **decision)
        except SystemExit as refused:
            if "one class already" not in str(refused):
                raise


def measure_decisions(server: Server, number: int = 500) -> None:
    with closing(Client(server.address)) as client:
        draw = random.Random(0)
        times = []
        for step in range(number):
            began = time.perf_counter()
            decide_something(client, draw, step)
            times.append(1000 * (time.perf_counter() - began))
    ordered = sorted(times)
    print(
        f"a decision ({number}): median {ordered[number // 2]:.1f} ms, "
        f"95 % within {ordered[number * 95 // 100]:.1f} ms, at most {ordered[-1]:.1f} ms"
    )


def kill_servers(run: RunFolder, membership: Membership, number: int) -> None:
    """Decide until the server is killed, again and again; everything answered for must be there."""
    path = run.path / "killed.sqlite"
    draw = random.Random(1)
    answered: dict[int, str] = {}
    num_decisions = num_unanswered = version = 0
    for round_number in range(number):
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        pid = os.fork()
        if pid == 0:
            _serve(path, membership, run, listening)
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/token/"
        listening.close()
        told = _decide_until_killed(address, pid, draw, first_step=10_000 * round_number)
        answered |= told.lines
        now = _require_all(path, answered)
        assert now in (told.version, told.version + 1)
        num_decisions += told.version - version
        num_unanswered += now - told.version
        version = now
    print(
        f"{number} times kill -9: {num_decisions:,} decisions answered for, none lost; "
        f"{num_unanswered} more were written before their answer was sent"
    )


def _serve(path: Path, membership: Membership, run: RunFolder, listening: socket.socket) -> None:
    store = DecisionStore(path, num_clusters=NUM_CLUSTERS, heads="h")
    board = Board(membership, store, tuple(run.split().known))
    app = build_app(Served(board, Pictures(Bank(run.bank_dir), []), "killed"), token="token")
    uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off")).run([listening])
    os._exit(0)


@dataclass(frozen=True)
class Told:
    """What the server has answered before it was killed."""

    lines: dict[int, str]
    """line of the log -> what it said"""
    version: int


def _decide_until_killed(address: str, pid: int, draw: random.Random, *, first_step: int) -> Told:
    lines: dict[int, str] = {}
    client = _connect(address)
    killer = threading.Timer(draw.uniform(0.02, 0.4), os.kill, (pid, signal.SIGKILL))
    killer.start()
    try:
        for step in range(first_step, first_step + 10_000):
            line = decide_something(client, draw, step)["undo"]
            if line is not None:
                lines[line["id"]] = line["said"]
    except (OSError, http.client.HTTPException):
        pass
    finally:
        client.close()
        killer.join()
        os.waitpid(pid, 0)
    return Told(lines, client.seen)


def _connect(address: str) -> Client:
    """A client that knows the version, once the server answers."""
    while True:
        try:
            with closing(http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)) as asked:
                asked.request("GET", f"{urlsplit(address).path}api/changes?since={2**40}")
                version = json.loads(asked.getresponse().read())["version"]
        except OSError:
            time.sleep(0.01)
            continue
        client = Client(address)
        client.seen = version
        return client


def _require_all(path: Path, answered: dict[int, str]) -> int:
    """The version, once all lines are found and the tables are what the log leads to."""
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        log = {row[0]: row[1:] for row in db.execute("SELECT id, said, status, changes FROM log")}
        clusters = dict(db.execute("SELECT cluster, name FROM clusters"))
        moved = db.execute("SELECT image, region, cluster FROM regions")
        regions = {(image, region): cluster for image, region, cluster in moved}
        version = db.execute("SELECT value FROM facts WHERE key = 'version'").fetchone()[0]
    assert all(log[line][0] == said for line, said in answered.items())
    expected_clusters: dict[int, str | None] = dict.fromkeys(clusters)
    expected_regions: dict[tuple[int, int], int | None] = dict.fromkeys(regions)
    for _, status, content in (log[line] for line in sorted(log)):
        if status == "done":
            changes = json.loads(content)
            expected_clusters |= {one[0]: one[-1]["name"] for one in changes["clusters"]}
            expected_regions |= {(one[0], one[1]): one[-1] for one in changes["regions"]}
    assert clusters == expected_clusters
    assert regions == expected_regions
    return version


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--folder", type=Path, help="keep the made-up run here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        run = RunFolder(folder / "run") if (folder / "run").exists() else make_run(folder)
        discovery = run.discovery("main")
        shutil.rmtree(discovery.membership_dir(0), ignore_errors=True)
        with serving(run) as server:
            print(
                f"first start, sorting 500,000 regions: {server.start_s:.0f} s, "
                f"at most {server.memory_gb()[1]:.2f} GB"
            )
        membership = read_membership(discovery.membership_dir(0))
        assert membership is not None
        with serving(run) as server:
            print(f"later starts: {server.start_s:.1f} s")
            measure_pages(server, membership)
            measure_decisions(server)
            print("memory: {:.2f} GB, at most {:.2f} GB".format(*server.memory_gb()))
        kill_servers(run, membership, arguments.kills)


if __name__ == "__main__":
    main()
