"""Files that are either whole or not there."""

import os
from contextlib import suppress
from pathlib import Path

from rncdl.errors import UserError


def write_atomically(path: Path, content: bytes) -> None:
    """`path` holds all of `content`, or, if anything goes wrong, what it held before."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):  # nor can it be removed where its folder is a file
            temporary.unlink(missing_ok=True)
        raise UserError(
            f"{path}: cannot write ({error.strerror}); free space or choose another folder."
        ) from error
