"""Files that are either whole or not there."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from rncdl.errors import UserError


def write_atomically(path: Path, content: bytes) -> None:
    """`path` holds all of `content`, or, if anything goes wrong, what it held before."""
    with writing_atomically(path) as file:
        file.write(content)


@contextmanager
def writing_atomically(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, part by part, which takes its name when all is written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):  # nor can it be removed where its folder is a file
            temporary.unlink(missing_ok=True)
        raise UserError(
            f"{path}: cannot write ({error.strerror}); free space or choose another folder."
        ) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def json_list(entries: Iterable[Any]) -> Iterator[bytes]:
    """A JSON list, one encoded entry a line."""
    separator = b"[\n"
    for entry in entries:
        yield separator
        yield bytes(entry)
        separator = b",\n"
    yield b"[]" if separator == b"[\n" else b"\n]"
