"""Whatever is wrong with a public file: a UserError that names it, or files that load."""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rncdl.data.annotations import load_annotations
from rncdl.data.public.coco_half_lvis import make_coco_half_lvis
from rncdl.data.public.lvis_vg import make_lvis_vg
from rncdl.errors import UserError
from tests.data.public.made_up import public_files, write_public_files

FILES = public_files()
STRANGE: list[Any] = [
    *(None, True, "", "text", -1, 0, 1.5, 2**63, 10**30, -(10**30)),
    *(float("nan"), float("inf"), [], {}, [None], [[]], "\ud800", "http://["),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values in a JSON document, `value` itself included."""
    found = [path]
    if isinstance(value, dict | list):
        children = value.items() if isinstance(value, dict) else enumerate(value)
        for key, child in children:
            found += places(child, (*path, key))
    return found


PLACES = {name: places(content) for name, content in FILES.items()}


@st.composite
def damaged_files(draw: st.DrawFn) -> tuple[str, bytes]:
    """A file's name and its content with one to three things deleted or replaced, or cut off."""
    name = draw(st.sampled_from(sorted(FILES)))
    content = copy.deepcopy(FILES[name])
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(PLACES[name]))
        content = _damage(content, path, draw)
    text = json.dumps(content).encode()
    if draw(st.integers(0, 9)) == 0:
        text = text[: draw(st.integers(0, len(text)))]
    if draw(st.integers(0, 9)) == 0:
        text = text.replace(b"a", b"\xff", 1)
    return name, text


def _damage(content: Any, path: tuple[Any, ...], draw: st.DrawFn) -> Any:
    strange = copy.deepcopy(draw(st.sampled_from(STRANGE)))
    if not path:
        return strange
    parent = content
    try:
        for key in path[:-1]:
            parent = parent[key]
        if draw(st.booleans()):
            parent[path[-1]] = strange
        else:
            del parent[path[-1]]
    except (KeyError, IndexError, TypeError):
        pass  # an earlier damage took it away
    return content


def make_both(root: Path) -> None:
    """Make, write and load the files of both settings."""
    half = make_coco_half_lvis(root / "coco", root / "lvis", authors_split=root / "authors")
    genome = make_lvis_vg(root / "lvis", root / "vg")
    made = [half.labelled, half.known_val, half.unlabelled, half.val]
    for file in (*made, genome.labelled, genome.unlabelled, genome.val):
        file.write(root / "made.json")
        load_annotations(root / "made.json")
    half.counts()
    genome.counts()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("public")
    write_public_files(folder)
    return folder


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(damaged=damaged_files())
def test_damaged_files_are_named_or_mended(root: Path, damaged: tuple[str, bytes]):
    name, text = damaged
    path = root / name
    whole = path.read_bytes()
    path.write_bytes(text)
    said = ""
    try:
        make_both(root)
    except UserError as error:
        said = str(error)
    finally:
        path.write_bytes(whole)
    assert not said or path.name in said or "made.json" in said


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_wrong_type_is_reported_with_file_and_field(root: Path, name: str):
    path = root / name
    whole = path.read_bytes()
    key = "image_id" if name.startswith("vg") else "id"
    text = re.sub(rf'"{key}": \d+'.encode(), f'"{key}": "nine"'.encode(), whole)
    path.write_bytes(text)
    try:
        with pytest.raises(UserError, match=rf"{path.name}: .*Expected `int`.*`\$.*{key}`"):
            make_both(root)
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("name", sorted(FILES))
@pytest.mark.parametrize("damage", [lambda _: b"", lambda t: t[:-2], lambda _: b"[" * 9000])
def test_files_cut_short_are_named(root: Path, name: str, damage: Callable[[bytes], bytes]):
    path = root / name
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    try:
        with pytest.raises(UserError, match=path.name):
            make_both(root)
    finally:
        path.write_bytes(whole)
