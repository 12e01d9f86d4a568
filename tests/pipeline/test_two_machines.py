"""Two launchers on this machine, each with a folder of its own, as on two machines."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from rncdl.training.journal import read_journal
from tests.pipeline.tiny import HANGS_S, SETTINGS, environment

SCRIPT = Path(__file__).with_name("all_stages.py")
LAUNCH = (
    "import sys; from rncdl.training import launching;"
    f"launching._COMMAND = (sys.executable, {str(SCRIPT)!r});"
    "processes, nodes, place, *words = sys.argv[1:];"
    "sys.exit(launching.run_in_processes("
    "int(processes), words, nodes=int(nodes), rendezvous=place or None))"
)


def free_place() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


def start(folder: Path, *words: object) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def without_times(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if not name.endswith("/s")}


def numbers_of(run: Path) -> list[Any]:
    """All that a run has measured, in training, in discovery and at the end."""
    journals = [run / "train" / "journal.jsonl", run / "discoveries" / "main" / "journal.jsonl"]
    report = json.loads((run / "evaluations" / "main" / "val" / "report.json").read_text())
    return [[without_times(r) for r in read_journal(path)] for path in journals] + [report]


def test_two_machines_do_what_two_processes_of_one_do(world: Path, tmp_path: Path):
    settings = [*SETTINGS, "train.steps=4", "discover.steps=4", "discover.views=2"]
    words = [world, tmp_path / "apart", *settings]
    place = free_place()
    machines = [start(tmp_path / name, "-c", LAUNCH, 1, 2, place, *words) for name in "ab"]
    said = [machine.communicate(timeout=HANGS_S)[0] for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], said
    # The first process talks, on its machine; the other machine says where to look.
    assert sorted("Heads:" in text for text in said) == [False, True]
    assert sorted("process 0, on another machine" in text for text in said) == [False, True]

    words[1] = tmp_path / "together"
    together = start(tmp_path / "c", "-c", LAUNCH, 2, 1, "", *words)
    text, _ = together.communicate(timeout=HANGS_S)
    assert together.returncode == 0, text
    assert numbers_of(tmp_path / "apart") == numbers_of(tmp_path / "together")


def test_a_failure_on_one_machine_ends_the_job_on_both_with_its_message(
    world: Path, tmp_path: Path
):
    """One of them lacks the labelled file, while the process of the other waits for its fellow."""
    words = ["-m", "rncdl", "train", "--nodes", 2, "--rendezvous", free_place()]
    words += ["-R", tmp_path / "run", "--labelled", "labelled.json", "--images", world, *SETTINGS]
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "labelled.json").write_bytes((world / "labelled.json").read_bytes())
    machines = [start(tmp_path / name, *words) for name in "ab"]
    said = [machine.communicate(timeout=HANGS_S)[0] for machine in machines]
    assert [machine.returncode for machine in machines] == [2, 2], said
    assert [text.count("labelled.json: ") for text in said] == [1, 1], said
    assert "Traceback" not in "".join(said)
