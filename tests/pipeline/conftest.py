import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rncdl.detector import object_search
from rncdl.stages.evaluate import evaluate
from tests.ellipses import Ellipses
from tests.pipeline.tiny import SETTINGS, WORLD, run_rncdl


@contextmanager
def untouched(folder: Path) -> Iterator[Path]:
    """The folder, for many tests to read; who wants to write there copies it."""
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    yield folder
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert before.items() ^ after.items() == set()


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A tiny drawn world."""
    out = tmp_path_factory.mktemp("world") / "world"
    run_rncdl("prepare", "shapes", out, *WORLD)
    with untouched(out):
        yield out


@pytest.fixture(scope="session")
def trained(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run whose detector was trained without interruption."""
    run = tmp_path_factory.mktemp("trained") / "run"
    run_rncdl("train", "--run", run, "--labelled", world / "labelled.json", *SETTINGS)
    with untouched(run):
        yield run


@pytest.fixture
def objects_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for objects that nobody labelled finds some, in parts of a few images."""
    monkeypatch.setattr(object_search, "open_segmenter", lambda settings, device: Ellipses())
    monkeypatch.setattr(object_search, "IMAGES_PER_PART", 5)


@pytest.fixture(scope="session")
def discovered(
    world: Path, trained: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A copy of it after one discovery, `main`."""
    run = tmp_path_factory.mktemp("discovered") / "run"
    shutil.copytree(trained, run)
    run_rncdl("discover", "--run", run, "--unlabelled", world / "unlabelled.json")
    with untouched(run):
        yield run


@pytest.fixture(scope="session")
def evaluated(
    world: Path, discovered: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A copy of that whose discovery and whose detector as trained were measured."""
    run = tmp_path_factory.mktemp("evaluated") / "run"
    shutil.copytree(discovered, run)
    for name in ("main", "trained"):
        evaluate(run, world / "val.json", images=None, name=name, train_labels=None, overrides=[])
    with untouched(run):
        yield run
