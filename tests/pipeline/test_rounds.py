"""The commands of docs/naming.md, one after another: discover, name, promote, train, again."""

import csv
import http.client
import json
import re
import secrets
import shutil
import socket
import threading
import time
import webbrowser
from pathlib import Path

import pytest
import uvicorn

from rncdl.classes import is_found_name
from rncdl.gallery.findings import read_classes, round_row
from rncdl.run_folder import RunFolder
from tests.pipeline.tiny import run_rncdl
from tests.test_docs import REPOSITORY, commands_on

TOKEN = "the-token"
SMALLER = {"train.steps=200": "train.steps=4"}
MORE = {"promote": ("--min-score", 0, "--min-per-class", 1)}
"""What a detector that has hardly learned needs."""


@pytest.fixture
def at_home(
    trained: Path, discovered: Path, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The folder that the page speaks of: two runs, more photographs, a labelled file."""
    shutil.copytree(trained, tmp_path / "runs" / "one")
    shutil.copytree(discovered, tmp_path / "runs" / "first")
    shutil.copy(world / "val.json", tmp_path)
    (tmp_path / "images").symlink_to(world / "images")
    (tmp_path / "more_photos").mkdir()
    for image in json.loads((world / "unlabelled.json").read_text())["images"]:
        path = world / image["file_name"]
        (tmp_path / "more_photos" / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def given_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names that somebody gives to all clusters at each `rncdl name`, before pressing Ctrl-C."""
    names: list[str] = []
    serve = uvicorn.Server.run

    def serve_for_a_while(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
        thread = threading.Thread(target=serve, args=(server, sockets))
        thread.start()
        while not server.started:
            time.sleep(0.01)
        _name_all(sockets[0].getsockname()[1], names.pop(0))
        server.should_exit = True
        thread.join()

    monkeypatch.setattr(uvicorn.Server, "run", serve_for_a_while)
    monkeypatch.setattr(secrets, "token_urlsafe", lambda nbytes: TOKEN)
    monkeypatch.setattr(webbrowser, "open", lambda url: True)
    return names


def _name_all(port: int, name: str) -> None:
    """Send what the page sends."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    decision = {"seen": 0, "clusters": list(range(8)), "name": name}
    headers = {"Origin": f"http://127.0.0.1:{port}", "Content-Type": "application/json"}
    connection.request("POST", f"/{TOKEN}/api/decide/name", json.dumps(decision), headers)
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    connection.close()


def run_commands(runs: set[str]) -> tuple[list[str], dict[str, str]]:
    """Run the page's commands about these runs: which they are, and what the last of each says."""
    commands, said = [], {}
    for words in commands_on(REPOSITORY / "docs" / "naming.md"):
        if runs & set(words):
            commands.append(words[0])
            words = [SMALLER.get(word, word) for word in words]
            said[words[0]] = run_rncdl(*words, *MORE.get(words[0], ()))
    return commands, said


def test_a_round_goes_as_the_page_says(at_home: Path, given_names: list[str]):
    given_names += ["cup", "vase"]
    commands, said = run_commands({"runs/one", "runs/two"})
    assert commands == [
        *("discover", "name", "promote", "train", "discover", "name"),
        *("evaluate", "evaluate", "evaluate", "rounds", "report"),
    ]
    assert given_names == []
    second = RunFolder(at_home / "runs" / "two")
    assert second.split().known[-1] == "cup"
    assert set(second.discovery("main").decisions(0).names.values()) == {"vase"}
    rows = ["1. one: discovered", "2. two: detector of 4", "2. two: discovered"]
    assert re.findall(r"\d\. \w+: (?:detector of \d|discovered)", said["rounds"]) == rows
    report = second.report_file.read_text()
    assert re.findall(r">(\d\. \w+: (?:detector of \d|discovered))", report) == rows


def test_a_round_without_people_goes_as_the_page_says(at_home: Path):
    commands, said = run_commands({"runs/first", "runs/again"})
    assert commands == [
        *("promote", "train", "discover"),
        *("evaluate", "evaluate", "evaluate", "rounds"),
    ]
    first, second = (RunFolder(at_home / "runs" / name) for name in ("first", "again"))
    known, found = first.split().known, second.split().known[3:]
    assert second.split().known[:3] == known
    assert found
    assert all(is_found_name(name) for name in found)
    assert re.findall(
        r"\d\. \w+: (?:detector of \d classes and \d|discovered)", said["rounds"]
    ) == [
        "1. first: discovered",
        f"2. again: detector of 3 classes and {len(found)}",
        "2. again: discovered",
    ]
    for discovery, system, num_clusters in ((None, "trained", 0), ("main", "head0", 8)):
        folder = second.evaluation("val", discovery)
        report = json.loads(folder.report_json.read_text())
        clusters = report["clusters"][system]
        assert clusters["num_clusters"] == num_clusters + len(found)
        with folder.assignment(f"{system}_fixed").open(newline="") as file:
            rows = list(csv.DictReader(file))
        kinds = ["known"] * 3 + ["cluster"] * (num_clusters + len(found))
        assert [row["kind"] for row in rows] == kinds
        assert not {row["class"] for row in rows[3:]} & set(known)
        (overall,) = (
            one
            for one in report["ap"]
            if (one["system"], one["protocol"], one["cut"]) == (system, "fixed", "before")
            and one["iou_type"] == "bbox"
        )
        classes = read_classes(folder.classes(f"{system}_fixed_bbox"))
        assert {row.name for row in classes if row.is_known} == set(known)
        row = round_row("", classes, known)
        assert [row.known_ap, row.novel_ap, row.all_ap] == pytest.approx(
            [overall[group]["ap"] for group in ("known", "novel", "all")]
        )
    run_rncdl("report", "--run", second.path)
    page = second.report_file.read_text()
    assert f"3 labelled classes and {len(found)} that it had found before" in page
    assert "detector as trained, with what was found before" in page
    # A third round's classes are neither those of the second nor clusters of its discovery.
    third = at_home / "third.json"
    run_rncdl("promote", "--run", second.path, "--out", third, "--unnamed", *MORE["promote"])
    names = [category["name"] for category in json.loads(third.read_text())["categories"]]
    fresh = names[second.split().num_known :]
    assert names[: second.split().num_known] == list(second.split().known)
    assert fresh
    assert all(name.startswith("found2_") for name in fresh)
