import json
import shutil
from pathlib import Path

import pytest

from rncdl.errors import UserError
from rncdl.run_folder import RunFolder
from rncdl.stages.evaluate import evaluate
from rncdl.stages.examples import Showcase
from rncdl.stages.report import report
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
    run = tmp_path / "run"
    shutil.copytree(discovered, run, ignore=shutil.ignore_patterns("evaluations"))
    out = tmp_path / "page.html"
    said = run_rncdl("report", "--run", run, "--name", "main", "--out", out)
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
    evaluate(run, world / "val.json", images=None, name="main", train_labels=None, overrides=[])
    showcase = Showcase(world / "val.json", supervised=RunFolder(run))
    report(run, name="main", out=None, showcase=showcase)
    html = (run / "report.html").read_text()
    assert '<section id="headline">' in html
    assert '<section id="classes">' in html
    assert 'class="examples wide"' in html
    numbers = json.loads((run / "evaluations" / "val_main" / "report.json").read_text())
    first = numbers["ap"][0]["known"]["ap"]
    assert f">{100 * first:.1f}</td>" in html


def test_what_cannot_be_shown_is_said(discovered: Path, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(discovered, run)
    shutil.rmtree(run / "bank")
    report(run, name="main", out=None, showcase=None)
    html = (run / "report.html").read_text()
    assert "no bank" in html
    assert '<section id="examples">' in html
    RunFolder(run).discovery("main").inputs_file.unlink()
    report(run, name="main", out=None, showcase=None)
    html = (run / "report.html").read_text()
    assert "did not note its images" in html
    assert '<section id="curves">' in html


def test_a_run_without_a_discovery_is_refused(trained: Path, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns("discoveries"))
    with pytest.raises(UserError, match="no finished discovery"):
        report(run, name=None, out=None, showcase=None)
