"""The wheel holds all that the package needs, and works far from the checkout."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from rncdl.config import dump_settings, resolve_settings
from rncdl.version import __version__
from tests.pipeline.tiny import REPOSITORY


def run(*words: str | Path, cwd: Path, path: Path | None = None) -> str:
    """What a command prints, without anything that leads to the checkout."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    done = subprocess.run(
        list(map(str, words)), cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by way of the source distribution, from a copy, for setuptools writes beside it."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    shutil.copytree(
        REPOSITORY / "rncdl", sources / "rncdl", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, sources)
    run(
        *(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, sources),
        cwd=folder,
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has the package alone; what it depends on is that of the tests."""
    folder = tmp_path_factory.mktemp("installed") / "here"
    run(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"),
        *("--disable-pip-version-check", "--no-compile", "--target", folder, wheel),
        cwd=folder.parent,
    )
    return folder


def test_the_wheel_holds_every_file_of_the_package_and_no_other(wheel: Path):
    package = REPOSITORY / "rncdl"
    expected = {
        path.relative_to(REPOSITORY).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    found = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert found == expected
    endings = {name.rpartition(".")[2] for name in found}
    assert endings == {"py", "typed", "yaml", "html", "css", "js", "svg"}
    assert "rncdl/naming/page/index.html" in found


def test_the_wheel_says_what_it_is_and_what_it_needs(wheel: Path):
    content = zipfile.ZipFile(wheel)
    (info,) = {name.partition("/")[0] for name in content.namelist() if ".dist-info/" in name}
    assert info == f"rncdl-{__version__}.dist-info"
    described = content.read(f"{info}/METADATA").decode()
    assert "\nRequires-Python: >=3.11\n" in described
    assert "\nRequires-Dist: torch>=" in described
    assert "\nProvides-Extra: onnx\n" in described
    assert "\n# rncdl\n" in described
    assert b"rncdl = rncdl.__main__:main" in content.read(f"{info}/entry_points.txt")
    assert any(name.startswith(f"{info}/") and "LICENSE" in name for name in content.namelist())


def test_the_installed_command_runs_outside_the_checkout(installed: Path, tmp_path: Path):
    command = installed / "bin" / "rncdl"
    assert run(command, "--version", cwd=tmp_path, path=installed) == f"rncdl {__version__}\n"
    settings = run(command, "settings", "--preset", "shapes", cwd=tmp_path, path=installed)
    assert yaml.safe_load(settings) == yaml.safe_load(dump_settings(resolve_settings("shapes")))


def test_the_installed_package_reads_the_files_that_it_brings(installed: Path, tmp_path: Path):
    program = (
        "import rncdl; print(rncdl.__file__); "
        "from rncdl.data.public.synsets import coco_synsets; print(len(coco_synsets()))"
    )
    file, count = run(sys.executable, "-c", program, cwd=tmp_path, path=installed).splitlines()
    assert Path(file).is_relative_to(installed)
    assert int(count) == 80
