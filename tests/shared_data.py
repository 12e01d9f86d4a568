"""Where the tests find real data that is not part of the project."""

import os
from pathlib import Path

import pytest

_REPOSITORY = Path(__file__).resolve().parent.parent


def shared_path(*parts: str) -> Path:
    """A path below `RNCDL_SHARED` (default: `shared` beside the repository), or a skip."""
    root = Path(os.environ.get("RNCDL_SHARED", _REPOSITORY.parent / "shared"))
    path = root.joinpath("data", *parts)
    if not path.exists():
        pytest.skip(f"needs {'/'.join(parts)} below RNCDL_SHARED")
    return path
