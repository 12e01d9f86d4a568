"""The pages hold together: links lead somewhere; code, settings and commands they name exist."""

import ast
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from typer.main import get_command

from rncdl.cli import app
from rncdl.config import Settings

REPOSITORY = Path(__file__).parent.parent
FILE_ENDINGS = ("md", "onnx", "safetensors", "yaml")
CHANGELOG = REPOSITORY / "CHANGELOG.md"
PAGES = [
    REPOSITORY / "README.md",
    CHANGELOG,
    REPOSITORY / "benchmarks" / "README.md",
    *sorted((REPOSITORY / "docs").glob("*.md")),
]


def page_name(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


each_page = pytest.mark.parametrize("page", PAGES, ids=page_name)


def prose_of(page: Path) -> str:
    """The page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors_of(page: Path) -> set[str]:
    """The anchors that GitHub gives the page's headings."""
    headings = re.findall(r"^#+ (.+)$", prose_of(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    """Relative links of the page that lead to no file, or to no heading of a page."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    return broken


@each_page
def test_every_relative_link_leads_somewhere(page: Path):
    assert broken_links(page) == []


def test_broken_links_are_noticed(tmp_path: Path):
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    other.write_text("# Who `reads` it?\n\n```\n# a comment\n```\n")
    page.write_text(
        "## Here\n[a](#here) [b](other.md#who-reads-it) [c](https://example.org/x#y)\n"
        "[d](missing.md) [e](#there) [f](other.md#a-comment)\n"
    )
    assert broken_links(page) == ["missing.md", "#there", "other.md#a-comment"]


def names_defined_in(path: Path) -> set[str]:
    """Functions and classes of a module; methods as `Class.method`."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            functions = (part for part in node.body if isinstance(part, ast.FunctionDef))
            names.update(f"{node.name}.{function.name}" for function in functions)
    return names


def test_how_it_works_names_functions_that_exist():
    rows = re.findall(
        r"\| `([\w/]+\.py)`, `([\w.]+)` \|$",
        (REPOSITORY / "docs" / "how-it-works.md").read_text(),
        flags=re.MULTILINE,
    )
    assert len(rows) >= 20
    missing = [
        (module, name)
        for module, name in rows
        if name not in names_defined_in(REPOSITORY / "rncdl" / module)
    ]
    assert missing == []


@each_page
def test_files_named_on_a_page_exist(page: Path):
    """Python files, relative to the page, the repository or the package."""
    named = re.findall(r"`([\w/.-]+\.py)`", prose_of(page))
    roots = (page.parent, REPOSITORY, REPOSITORY / "rncdl")
    assert [name for name in named if not any((root / name).exists() for root in roots)] == []


def test_the_readme_lists_every_page_of_the_docs():
    listed = (REPOSITORY / "README.md").read_text()
    pages = sorted((REPOSITORY / "docs").glob("*.md"))
    assert [page.name for page in pages if f"](docs/{page.name})" not in listed] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page != CHANGELOG], ids=page_name)
def test_settings_named_on_a_page_exist(page: Path):
    """The changelog alone may name settings of the past."""
    groups = {
        group: set(value.model_dump())
        for group, value in Settings()
        if isinstance(value, BaseModel)
    }
    named = re.findall(rf"(?<![\w/])({'|'.join(groups)})\.(\w+)", page.read_text())
    named = [(group, name) for group, name in named if name not in FILE_ENDINGS]
    assert [f"{group}.{name}" for group, name in named if name not in groups[group]] == []


def commands_on(page: Path) -> list[list[str]]:
    """The words of each `rncdl ...` line in the page's blocks of code."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("rncdl ")]


def require_known_options(command: Any, words: list[str]) -> None:
    """An error where `command`, or one below it, has no such option or no such command."""
    _, rest, _ = command.make_parser(command.context_class(command)).parse_args(list(words))
    if hasattr(command, "commands"):
        require_known_options(command.commands[rest[0]], rest[1:])


@each_page
def test_commands_on_a_page_have_the_options_they_are_given(page: Path):
    for words in commands_on(page):
        require_known_options(get_command(app), words)


def test_commands_are_found_and_wrong_ones_noticed(tmp_path: Path):
    assert len(commands_on(REPOSITORY / "README.md")) >= 8
    page = tmp_path / "page.md"
    page.write_text("```bash\nrncdl a\n```\nrncdl in prose\n```\nrncdl b \\\n    c  # why\n```\n")
    assert commands_on(page) == [["a"], ["b", "c"]]
    for words in (["train", "--runs", "mine"], ["--procesess", "2", "train"]):
        with pytest.raises(Exception, match="No such option"):
            require_known_options(get_command(app), words)
    with pytest.raises(KeyError, match="trian"):
        require_known_options(get_command(app), ["trian"])
