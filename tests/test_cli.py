"""The command line itself, with what it calls replaced."""

import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from rncdl import cli
from rncdl.exports.exported import ExportRequest, Only
from rncdl.exports.writers import WRITERS

SHARED = ["train", "-R", "run", "--resume"]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[str], int, str | None]]:
    """What was to be run in several processes, which end with code 7."""
    calls = []

    def note(count: int, words: list[str], *, nodes: int = 1, rendezvous: str | None = None) -> int:
        calls.append((count, list(words), nodes, rendezvous))
        return 7

    monkeypatch.setattr(cli, "run_in_processes", note)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    return calls


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["rncdl", *words])
    return CliRunner().invoke(cli.app, list(words))


@pytest.mark.parametrize("option", ["--processes", "-p"])
def test_processes_stand_before_or_after_the_command(launched, monkeypatch, option):
    for words in ([option, "2", *SHARED], [*SHARED, option, "2"]):
        assert run(monkeypatch, *words).exit_code == 7
        assert launched.pop() == (2, words, 1, None)


def test_machines_meet_where_they_are_told(launched, monkeypatch):
    place = ["--nodes", "2", "--rendezvous", "head:29400"]
    for words in (
        [*place, *SHARED],
        [*place[:2], *SHARED, *place[2:]],
        [*SHARED, *place, "-p", "4"],
    ):
        assert run(monkeypatch, *words).exit_code == 7
        assert launched.pop() == (4 if "-p" in words else 1, words, 2, "head:29400")


@pytest.mark.parametrize("place", [["--nodes", "2"], ["--rendezvous", "head:29400"]])
def test_machines_need_a_place_to_meet_and_the_place_machines(launched, monkeypatch, place):
    result = run(monkeypatch, *SHARED, *place)
    assert result.exit_code == 2
    assert "go together" in result.output
    assert launched == []


@pytest.mark.parametrize(
    "words",
    [
        ["--processes", "2", "info"],
        ["info", "-p", "2"],
        ["prepare", "shapes", "out", "--processes", "2"],
        ["report", "-R", "run", "--nodes", "2"],
    ],
)
def test_work_that_cannot_be_shared_is_refused_by_name(launched, monkeypatch, words):
    result = run(monkeypatch, *words)
    assert result.exit_code == 2
    assert "is not shared" in result.output
    assert launched == []


def test_help_of_every_shared_command_tells_of_processes(launched, monkeypatch):
    names = get_command(cli.app).commands  # type: ignore[attr-defined]
    telling = [n for n in names if "--rendezvous" in run(monkeypatch, n, "--help").output]
    assert sorted(telling) == sorted(cli.SHARED_COMMANDS)
    assert "--processes" in run(monkeypatch, "--help").output


def test_the_demo_takes_two_processes_unless_told(launched, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    run(monkeypatch, "demo")
    assert launched.pop()[0] == 2
    ran = []
    monkeypatch.setattr("rncdl.stages.demo.run_demo", lambda *_, **__: ran.append(1))
    assert run(monkeypatch, "demo", "-p", "1").exit_code == 0
    assert (launched, ran) == ([], [1])


def test_the_processes_themselves_start_no_others(launched, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("rncdl.stages.train.resume_training", lambda *_: None)
    assert run(monkeypatch, "--processes", "2", *SHARED).exit_code == 0
    assert launched == []


def given_names(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The discoveries that commands ask their stages for."""
    names: list[str | None] = []
    for stage in ("discover.discover", "evaluate.evaluate", "report.report"):
        monkeypatch.setattr(f"rncdl.stages.{stage}", lambda *_, name, **__: names.append(name))
    return names


COMMANDS = (
    ["discover", "-R", "run"],
    ["evaluate", "val.json", "-R", "run"],
    ["report", "-R", "run"],
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_discovery_is_called_so_everywhere_and_its_old_name_is_taken(monkeypatch, capfd, command):
    names = given_names(monkeypatch)
    assert run(monkeypatch, *command, "--discovery", "mine").exit_code == 0
    assert "now --discovery" not in capfd.readouterr().err
    result = run(monkeypatch, *command, "--name", "mine")
    assert result.exit_code == 0
    assert "--name is now --discovery" in result.output + capfd.readouterr().err
    assert names == ["mine", "mine"]


def test_each_name_means_one_thing(monkeypatch):
    commands = get_command(cli.app).commands  # type: ignore[attr-defined]
    shown = {
        word: {
            name
            for name, command in commands.items()
            for option in command.params
            if word in option.opts and not option.hidden
        }
        for word in ("--name", "--table", "--discovery")
    }
    assert shown["--name"] == {"compare", "ablate"}
    assert shown["--table"] == {"ablate"}
    assert shown["--discovery"] >= {"discover", "evaluate", "predict", "compare", "report"}


def export_options() -> dict[str, set[str]]:
    """The options of each `rncdl export FORMAT`."""
    formats = get_command(cli.app).commands["export"].commands  # type: ignore[attr-defined]
    return {
        name: {word for option in command.params for word in option.opts}
        for name, command in formats.items()
    }


def test_every_format_is_a_command_of_export():
    assert list(export_options()) == [*WRITERS, "onnx"]


def test_a_format_has_no_options_that_mean_nothing_to_it():
    options = export_options()
    assert {name for name in options if "--val-share" in options[name]} == {"yolo", "voc"}
    with_shapes = {name for name, writer in WRITERS.items() if len(writer.shapes) > 1}
    assert {name for name in options if "--shape" in options[name]} == with_shapes
    assert not {"--only", "--images", "--predictions", "--val-share"} & options["onnx"]


def test_the_help_of_export_has_a_line_for_each_format(monkeypatch):
    shown = run(monkeypatch, "export", "--help").output
    assert all(name in shown for name in export_options())
    assert "Did you mean 'coco'?" in run(monkeypatch, "export", "cocos").output


def test_a_format_is_given_to_the_stage(monkeypatch):
    """With the defaults of the options that its command does not have."""
    requests = []

    def note(request: ExportRequest, made: Any, *, overwrite: bool) -> int:
        requests.append(request)
        return 0

    monkeypatch.setattr("rncdl.stages.export.export", note)
    for name in WRITERS:
        words = ("export", name, "--predictions", "found", "--out", "out", "--only", "novel")
        assert run(monkeypatch, *words).exit_code == 0
        expected = ExportRequest(format=name, out=Path("out"), min_score=0.1, only=Only.NOVEL)
        assert requests.pop() == expected
