"""Names for images that survive every tool: flat, unique, and free of what XML and JSON refuse."""

import os
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

from rncdl.origins import digest

MAX_NAME_BYTES = 200
"""File systems take 255; tools put endings and prefixes of their own to names."""
_BETWEEN_FOLDERS = "__"


def common_folder(files: Iterable[Path]) -> Path:
    """The innermost folder that holds all the files."""
    shared: str | None = None
    for file in files:
        folder = os.path.dirname(os.path.abspath(file))
        shared = folder if shared is None else os.path.commonpath([shared, folder])
    return Path(shared or os.curdir)


def flat_names(relative_paths: Sequence[str]) -> list[str]:
    """One file name per path: folders become part of it, `a/1.jpg` is `a__1.jpg`.

    No two differ only by ending, case or white space: labels are kept in files of the same name
    with another ending, some disks do not tell A from a, and lists of names cannot hold spaces.
    """
    taken: set[str] = set()
    names = []
    for path in relative_paths:
        stem, dot, ending = _printable(path.replace("/", _BETWEEN_FOLDERS)).rpartition(".")
        stem = _shortened(stem.lstrip(".") or "image", path)
        free, count = stem, 1
        while _key(free) in taken:
            count += 1
            free = f"{stem}_{count}"
        taken.add(_key(free))
        names.append(f"{free}{dot}{ending}")
    return names


def _key(stem: str) -> str:
    return without_spaces(unicodedata.normalize("NFC", stem).casefold())


def without_spaces(name: str) -> str:
    """The name with an underscore for each white space; those of `flat_names` stay unique."""
    return "".join("_" if one.isspace() else one for one in name)


def _printable(text: str) -> str:
    """The text with an underscore for each control character and each byte that is no UTF-8."""
    return "".join("_" if unicodedata.category(one) in ("Cc", "Cs") else one for one in text)


def _shortened(stem: str, path: str) -> str:
    encoded = stem.encode()
    if len(encoded) <= MAX_NAME_BYTES:
        return stem
    mark = digest(path.encode("utf-8", "surrogateescape"))
    return f"{mark}_{encoded[-MAX_NAME_BYTES + len(mark) + 1 :].decode('utf-8', 'ignore')}"
