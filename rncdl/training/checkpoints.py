"""Checkpoints that are either whole or not there."""

import os
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rncdl.errors import UserError
from rncdl.training.interruption import Interrupted

KEPT = 2
_NAME = re.compile(r"step_(\d{8})\.pt")


def save_checkpoint(folder: Path, step: int, state: Mapping[str, Any]) -> Path:
    """Save the state after `step` steps and delete all but the newest `KEPT` checkpoints."""
    path = folder / f"step_{step:08d}.pt"
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            torch.save(dict(state), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(
            error.__context__, Interrupted
        ):  # torch's writer complains that it is unfinished
            raise error.__context__ from None
        if isinstance(error, OSError | RuntimeError):
            raise UserError(
                f"{path}: cannot write the checkpoint ({error}); is the disk full?"
            ) from error
        raise
    for old in list_checkpoints(folder)[:-KEPT]:
        old.unlink()
    return path


def list_checkpoints(folder: Path) -> list[Path]:
    """The finished checkpoints of a folder, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))


def load_checkpoint(path: Path) -> dict[str, Any]:
    """What `save_checkpoint` was given, on the CPU. Nothing is unpickled but plain data."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        reason = str(error).partition("\n")[0].partition(".")[0]
        raise UserError(
            f"{path}: not a readable checkpoint ({reason}); delete it to go back to the one before."
        ) from error
