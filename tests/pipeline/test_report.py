import json
import shutil
from pathlib import Path

from rncdl.run_folder import RunFolder
from tests.pipeline.tiny import run_rncdl


def test_a_discovery_notes_the_files_of_its_pool(discovered: Path, world: Path):
    inputs = RunFolder(discovered).discovery("main").inputs()
    assert inputs is not None
    assert inputs.labelled == str((world / "labelled.json").resolve())
    assert inputs.unlabelled == (str((world / "unlabelled.json").resolve()),)


def test_a_resumed_discovery_finds_its_files_again(discovered: Path, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(discovered, run)
    folder = RunFolder(run).discovery("main")
    folder.heads_file.unlink()
    run_rncdl("discover", "--run", run, "--resume")
    assert folder.heads_file.is_file()


def test_the_report_shows_clusters_and_examples_without_any_evaluation(
    discovered: Path, tmp_path: Path
):
    out = tmp_path / "page.html"
    said = run_rncdl("report", "--run", discovered, "--name", "main", "--out", out)
    assert str(out) in said
    html = out.read_text()
    for section in ("examples", "clusters", "shares", "curves", "settings"):
        assert f'<section id="{section}">' in html
    assert '<section id="headline">' not in html
    assert '<section id="classes">' not in html


def test_with_an_evaluation_the_report_has_its_numbers(
    discovered: Path, world: Path, tmp_path: Path
):
    run = tmp_path / "run"
    shutil.copytree(discovered, run)
    run_rncdl("evaluate", world / "val.json", f"--run={run}", "--name", "main")
    run_rncdl("report", "--run", run, "--name", "main", "--val", world / "val.json")
    html = (run / "report.html").read_text()
    assert '<section id="headline">' in html
    assert '<section id="classes">' in html
    numbers = json.loads((run / "evaluations" / "val_main" / "report.json").read_text())
    first = numbers["ap"][0]["known"]["ap"]
    assert f">{100 * first:.1f}</td>" in html


def test_a_discovery_without_noted_files_has_a_report_that_says_so(
    discovered: Path, tmp_path: Path
):
    run = tmp_path / "run"
    shutil.copytree(discovered, run)
    RunFolder(run).discovery("main").inputs_file.unlink()
    run_rncdl("report", "--run", run, "--name", "main")
    html = (run / "report.html").read_text()
    assert "did not note its images" in html
    assert '<section id="curves">' in html


def test_a_run_without_a_discovery_is_refused(trained: Path, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns("discoveries"))
    said = run_rncdl("report", "--run", run, code=2)
    assert "no finished discovery" in said
