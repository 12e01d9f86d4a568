import json
import re
import runpy
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from rncdl.errors import UserError
from rncdl.gallery.findings import read_assigned
from rncdl.naming.edits import ClusterState, Edit
from rncdl.naming.store import DecisionStore
from rncdl.run_folder import RunFolder
from rncdl.stages.report import report
from rncdl.stages.report_drawings import ComparedImages
from tests.browser import open_file
from tests.pipeline.tiny import REPOSITORY, run_rncdl

if TYPE_CHECKING:
    from playwright.sync_api import Browser


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
    said = run_rncdl("report", "--run", run, "--discovery", "main", "--out", out)
    assert str(out) in said
    html = out.read_text()
    for section in ("examples", "clusters", "shares", "curves", "settings"):
        assert f'<section id="{section}">' in html
    assert '<section id="headline">' not in html
    assert '<section id="classes">' not in html


@pytest.fixture(scope="session")
def page(evaluated: Path, world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with everything in it; the run itself stands in for the ceiling."""
    out = tmp_path_factory.mktemp("report") / "report.html"
    compared = ComparedImages(world / "val.json", supervised=RunFolder(evaluated))
    report(evaluated, name="main", out=out, compared=compared)
    return out


def test_with_an_evaluation_the_report_has_its_numbers(evaluated: Path, page: Path):
    html = page.read_text()
    assert '<section id="headline">' in html
    assert '<section id="classes">' in html
    assert 'class="examples wide"' in html
    for name in ("detector as trained", "RNCDL", "after discovery", "fully supervised"):
        assert re.search(rf'<th scope="row">{name}', html)
    numbers = json.loads((evaluated / "evaluations" / "main" / "val" / "report.json").read_text())
    first = numbers["ap"][0]["known"]["ap"]
    assert f">{100 * first:.1f}</td>" in html


def test_the_boxes_that_outputs_took_add_up(evaluated: Path, page: Path):
    folder = RunFolder(evaluated).evaluation("val", "main")
    rows = read_assigned(folder.assignment("head0_fixed"), folder.confusion("head0"))
    assert sum(row.size for row in rows) > 0
    for row in rows:
        assert sum(count for _, count in row.taken) == row.size
        assert row.name is None or dict(row.taken).get(row.name, 0) == row.count
    assert 'class="confusion"' in page.read_text()


def test_a_browser_shows_the_report_without_complaint(browser: "Browser", page: Path):
    with open_file(browser, page) as opened:
        assert opened.page.title() == "Discovery “main” of run"
        sections = opened.page.eval_on_selector_all("main > section", "all => all.map(s => s.id)")
        assert sections == [
            *("headline", "examples", "clusters", "classes", "shares", "curves", "settings")
        ]
        assert opened.undecoded_images() == []
        assert opened.images_without_words() == 0
        assert len(opened.shown_clusters()) > 0
        assert opened.page.locator("figure .panels").first.locator("img").count() == 3
        opened.page.click('#classes a[href^="#novel_"]')
        assert opened.focused().startswith("novel_")
        assert opened.complaints == []


def test_the_pictures_of_the_readme_are_made(evaluated: Path, world: Path, tmp_path: Path):
    demo = tmp_path / "demo"
    demo.mkdir()
    for name, place in (("run", evaluated), ("ceiling", evaluated), ("world", world)):
        (demo / name).symlink_to(place)
    out = tmp_path / "images"
    script = runpy.run_path(str(REPOSITORY / "docs" / "make_pictures.py"))
    written = script["make_pictures"](demo, out)
    assert [path.name for path in written] == ["scenes.jpg", "clusters.jpg", "predictions.jpg"]
    for path in written:
        pixels = np.asarray(Image.open(path).convert("L"), dtype=float)
        assert pixels.shape[1] > 1000
        assert pixels.std() > 20


def test_what_cannot_be_shown_is_said(discovered: Path, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(discovered, run)
    shutil.rmtree(run / "bank")
    report(run, name="main", out=None, compared=None)
    html = (run / "report.html").read_text()
    assert "no bank" in html
    assert '<section id="examples">' in html
    RunFolder(run).discovery("main").inputs_file.unlink()
    report(run, name="main", out=None, compared=None)
    html = (run / "report.html").read_text()
    assert "did not note its images" in html
    assert '<section id="curves">' in html


def test_the_report_follows_what_people_decided(evaluated: Path, world: Path, tmp_path: Path):
    run = shutil.copytree(evaluated, tmp_path / "run")
    clusters = [card["id"] for card in cards_of(run)]
    first, second, *_ = clusters
    states = {first: ClusterState("cup & saucer"), second: ClusterState(ignored=True)}
    with DecisionStore(
        RunFolder(run).discovery("main").decisions_file(0), num_clusters=8, heads="any"
    ) as store:
        store.decide(Edit("decided", states))
    run_rncdl("evaluate", world / "val.json", "--run", run)
    cards = cards_of(run)
    assert [card["id"] for card in cards] == [one for one in clusters if one != second]
    names = {card["id"]: card["name"] for card in cards}
    assert names == {**dict.fromkeys(names), first: "cup & saucer"}
    row = "RNCDL, clusters as people have named them"
    assert row in (run / "report.html").read_text()
    raw = cards_of(run, "--raw")
    assert [(card["id"], card["name"]) for card in raw] == [(one, None) for one in clusters]
    assert row not in (run / "report.html").read_text()


def cards_of(run: Path, *words: str) -> list[dict[str, Any]]:
    """The clusters on the page of a run, written anew."""
    run_rncdl("report", "--run", run, *words)
    html = (run / "report.html").read_text()
    found = re.search(r'id="cluster-data">(.*?)</script>', html, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_a_run_without_a_discovery_is_refused(trained: Path, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns("discoveries"))
    with pytest.raises(UserError, match="no finished discovery"):
        report(run, name=None, out=None, compared=None)
    with pytest.raises(UserError, match="stands for the detector without a discovery"):
        report(run, name="trained", out=None, compared=None)
