"""The journal of a run: one JSON object a line, and TensorBoard on request."""

import json
from pathlib import Path
from typing import Any

from rncdl.errors import UserError


class Journal:
    """Appends records to a JSON-lines file. A resumed run drops what came after its checkpoint."""

    def __init__(
        self, path: Path, *, resume_step: int = 0, tensorboard_dir: Path | None = None
    ) -> None:
        kept = (
            [r for r in read_journal(path) if r.get("step", 0) <= resume_step]
            if resume_step
            else []
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf-8")
        for record in kept:
            self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        self._board = _open_tensorboard(tensorboard_dir, resume_step) if tensorboard_dir else None

    def write(self, **record: Any) -> None:
        """Add one record; numbers also go to TensorBoard under their `kind`."""
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        if self._board is not None and "step" in record:
            for key, value in record.items():
                if isinstance(value, int | float) and key != "step":
                    self._board.add_scalar(
                        f"{record.get('kind', 'log')}/{key}", value, record["step"]
                    )

    def close(self) -> None:
        """Flush and close."""
        self._file.close()
        if self._board is not None:
            self._board.close()


def read_journal(path: Path) -> list[dict[str, Any]]:
    """The records of a journal; a last line cut short by a crash is left out."""
    if not path.is_file():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


def _open_tensorboard(folder: Path, purge_step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError(
            "TensorBoard is not installed; pip install 'rncdl[tensorboard]'."
        ) from error
    return SummaryWriter(str(folder), purge_step=purge_step)
