"""The house keeps its rooms: who may import whom, and what training may be given."""

import ast
from pathlib import Path

import pytest
from pydantic import BaseModel

from rncdl.config import Settings

PACKAGE = Path(__file__).parent.parent / "rncdl"
MODULES = sorted(PACKAGE.rglob("*.py"))
ROOMS = (
    *("training", "data", "segmentation", "detector", "discovery", "prediction", "evaluation"),
    *("gallery", "naming", "exports", "experiments", "planning", "stages"),
)
"""In the order in which data walks through them."""
RECORDS = ("naming.decisions",)
"""Modules that import from no room: what they define may be passed to any room."""
ROOMS_THAT_TRAIN = ("data", "detector", "discovery", "training")
ROOMS_THAT_MEASURE = ("evaluation",)


def imported_modules(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def names_used(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)} | {
        n.id for n in ast.walk(tree) if isinstance(n, ast.Name)
    }


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0]


def rooms_imported(path: Path) -> set[str]:
    """The rooms (folders) of the package that a module imports from, its own left out."""
    parts = [name.split(".") for name in imported_modules(path) if name.startswith("rncdl.")]
    rooms = {part[1] for part in parts if ".".join(part[1:3]) not in RECORDS}
    return (rooms & {*ROOMS}) - {room(path)}


@pytest.mark.parametrize("name", RECORDS)
def test_records_for_all_rooms_import_from_none(name):
    path = PACKAGE / f"{name.replace('.', '/')}.py"
    assert not [one for one in imported_modules(path) if one.startswith("rncdl.")]


def test_every_room_is_in_the_order():
    assert {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()} == {*ROOMS}


@pytest.mark.parametrize("name", ROOMS)
def test_rooms_import_from_rooms_before_them_alone(name):
    """Data walks through the package in one direction."""
    later = set(ROOMS[ROOMS.index(name) :])
    backwards = {
        f"{path.relative_to(PACKAGE)} imports {later & rooms_imported(path)}"
        for path in MODULES
        if room(path) == name and later & rooms_imported(path)
    }
    assert not backwards


@pytest.mark.parametrize("path", [m for m in MODULES if m.parent == PACKAGE], ids=str)
def test_only_the_command_line_and_the_api_import_stages(path):
    assert path.name in ("cli.py", "api.py") or "stages" not in rooms_imported(path)


@pytest.mark.parametrize("path", [m for m in MODULES if room(m) in ROOMS_THAT_TRAIN], ids=str)
def test_training_code_never_imports_evaluation(path):
    assert not {name for name in imported_modules(path) if name.startswith("rncdl.evaluation")}


@pytest.mark.parametrize("path", [m for m in MODULES if room(m) in ROOMS_THAT_MEASURE], ids=str)
def test_evaluation_never_imports_training_code(path):
    forbidden = ("rncdl.training", "rncdl.detector.training", "rncdl.discovery.training")
    assert not {name for name in imported_modules(path) if name.startswith(forbidden)}


def parameter_types(path: Path) -> list[str]:
    return [
        ast.unparse(argument.annotation)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        for argument in (*node.args.args, *node.args.kwonlyargs)
        if argument.annotation
    ]


@pytest.mark.parametrize(
    "name",
    ["detector/training.py", "detector/losses.py", "data/datasets.py", "discovery/online.py"],
)
def test_training_takes_known_labels_and_nothing_wider(name):
    """No parameter of the training code admits an AnnotationSet, which may hold novel labels."""
    assert not [hint for hint in parameter_types(PACKAGE / name) if "AnnotationSet" in hint]


def test_no_module_has_a_name_that_says_nothing():
    empty_names = {"utils", "util", "core", "common", "misc", "helpers", "manager", "wrapper"}
    assert not [path for path in MODULES if path.stem in empty_names]


def test_every_setting_is_read():
    """A setting that nothing reads would be a promise that nothing keeps."""
    read = set().union(*(names_used(path) for path in MODULES if path.name != "config.py"))
    groups = [field.default for field in Settings.model_fields.values()]
    names = {
        name for group in groups if isinstance(group, BaseModel) for name in group.model_dump()
    }
    assert names - read == set()
