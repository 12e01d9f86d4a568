"""The commands of docs/naming.md, one after another: discover, name, promote, train, again."""

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

from rncdl.run_folder import RunFolder
from tests.pipeline.tiny import run_rncdl
from tests.test_docs import REPOSITORY, commands_on

TOKEN = "the-token"
SMALLER = {"train.steps=200": "train.steps=4"}
MORE = {"promote": ("--min-score", 0, "--min-per-class", 1)}
"""What a detector that has hardly learned needs."""


@pytest.fixture
def at_home(trained: Path, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the page speaks of: a trained run, more photographs, a labelled file."""
    shutil.copytree(trained, tmp_path / "runs" / "one")
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


def test_a_round_goes_as_the_page_says(at_home: Path, given_names: list[str]):
    given_names += ["cup", "vase"]
    commands = [
        words
        for words in commands_on(REPOSITORY / "docs" / "naming.md")
        if {"runs/one", "runs/two"} & set(words)
    ]
    said = {}
    for words in commands:
        words = [SMALLER.get(word, word) for word in words]
        said[words[0]] = run_rncdl(*words, *MORE.get(words[0], ()))
    assert [words[0] for words in commands] == [
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
