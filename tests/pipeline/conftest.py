import shutil
from pathlib import Path

import pytest

from rncdl.stages.evaluate import evaluate
from tests.pipeline.tiny import SETTINGS, WORLD, run_rncdl


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny drawn world."""
    out = tmp_path_factory.mktemp("world") / "world"
    run_rncdl("prepare", "shapes", out, *WORLD)
    return out


@pytest.fixture(scope="session")
def trained(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose detector was trained without interruption."""
    run = tmp_path_factory.mktemp("runs") / "trained"
    run_rncdl("train", "--run", run, "--labelled", world / "labelled.json", *SETTINGS)
    return run


@pytest.fixture(scope="session")
def discovered(world: Path, trained: Path) -> Path:
    """The same run after one discovery, `main`."""
    run_rncdl("discover", "--run", trained, "--unlabelled", world / "unlabelled.json")
    return trained


@pytest.fixture(scope="session")
def evaluated(world: Path, discovered: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of that run whose discovery and whose detector as trained were measured."""
    run = tmp_path_factory.mktemp("evaluated") / "run"
    shutil.copytree(discovered, run, ignore=shutil.ignore_patterns("evaluations"))
    for name in ("main", "trained"):
        evaluate(run, world / "val.json", images=None, name=name, train_labels=None, overrides=[])
    return run
