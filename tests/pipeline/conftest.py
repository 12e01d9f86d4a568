from pathlib import Path

import pytest

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
