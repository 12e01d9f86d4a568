import inspect
import pydoc
import re
import subprocess
import sys
import typing

import pytest

import rncdl
from tests.pipeline.tiny import REPOSITORY, environment


def test_importing_the_package_imports_nothing_heavy():
    heavy = ("torch", "torchvision", "numpy", "PIL", "pydantic", "cv2", "scipy", "rncdl.api")
    said = subprocess.run(
        [sys.executable, "-c", f"import rncdl, sys; print({{*sys.modules}} & {{*{heavy!r}}})"],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == "set()"


def test_there_are_ten_names_at_most_and_all_are_there():
    assert len(rncdl.__all__) <= 10
    for name in rncdl.__all__:
        assert getattr(rncdl, name) is not None
    assert {*rncdl.__all__} <= {*dir(rncdl)}


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        rncdl.lode  # noqa: B018


@pytest.mark.parametrize("name", rncdl.__all__)
def test_help_tells_of_every_name_and_parameter(name):
    """Each has a text of its own, and a function's names every parameter."""
    one = getattr(rncdl, name)
    text = inspect.getdoc(one) or ""
    assert len(text) > 60
    assert text.splitlines()[0] in pydoc.plain(pydoc.render_doc(rncdl))
    if inspect.isfunction(one):
        told = {word for line in text.splitlines() for word in _words_before_colon(line)}
        assert {*inspect.signature(one).parameters} - told == set()


def _words_before_colon(line: str) -> list[str]:
    """Of `run, images: the run that ...`, run and images."""
    return re.split(", ", match[1]) if (match := re.match(r"([\w, ]+):", line)) else []


@pytest.mark.parametrize("name", ["Cluster", "Regions"])
def test_help_tells_of_every_field_of_a_record(name):
    record = getattr(rncdl, name)
    fields = typing.get_type_hints(record)
    assert [field for field in fields if f"\n    {field}: " not in record.__doc__] == []


def test_the_page_shows_every_name():
    page = (REPOSITORY / "docs" / "python.md").read_text()
    assert [name for name in rncdl.__all__ if f"`{name}`" not in page] == []
