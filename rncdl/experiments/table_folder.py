"""The folder of one table: of `rncdl compare` or of `rncdl ablate`."""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rncdl.config import Settings, dump_settings, load_settings, setting_changes
from rncdl.errors import UserError
from rncdl.evaluation.outcomes import Outcome
from rncdl.files import write_atomically
from rncdl.run_folder import DiscoveryFolder, EvaluationFolder, RunFolder


@dataclass(frozen=True)
class TableFolder:
    """Names, saves and loads the files of one table.

    ```
    settings.yaml       what all rows start from
    inputs.json         the files it was made from
    rows/KEY_seedS.json one finished training each; delete one to have it made again
    table.md, table.json, *.svg   what is shown
    ceiling/            a run: the fully supervised detector
    banks/              region features of rows that need other regions than the run's own bank
    unfinished/         rows that are being made
    ```
    """

    path: Path

    @property
    def settings_file(self) -> Path:
        """What all rows start from."""
        return self.path / "settings.yaml"

    @property
    def inputs_file(self) -> Path:
        """The files it was made from."""
        return self.path / "inputs.json"

    @property
    def markdown_file(self) -> Path:
        """The tables for people."""
        return self.path / "table.md"

    @property
    def json_file(self) -> Path:
        """Every number."""
        return self.path / "table.json"

    def chart_file(self, table: str) -> Path:
        """The bar chart of one table."""
        return self.path / f"{table}.svg"

    @property
    def ceiling(self) -> RunFolder:
        """The run of the fully supervised detector."""
        return RunFolder(self.path / "ceiling")

    def bank_dir(self, name: str) -> Path:
        """Region features of rows that need regions of their own."""
        return self.path / "banks" / name

    def row_file(self, key: str, seed: int) -> Path:
        """One finished training."""
        return self.path / "rows" / f"{file_name(key)}_seed{seed}.json"

    def training(self, key: str, seed: int) -> DiscoveryFolder:
        """Where a row's heads are trained, until the row is finished."""
        return DiscoveryFolder(self._unfinished(key) / f"seed{seed}")

    def measuring(self, key: str) -> EvaluationFolder:
        """Where a row's detections lie, until the row is finished."""
        return EvaluationFolder(self._unfinished(key) / "measured")

    def clear(self, key: str) -> None:
        """Delete what a finished row does not need any more."""
        shutil.rmtree(self._unfinished(key), ignore_errors=True)

    def outcomes(self, key: str, seeds: Sequence[int]) -> list[Outcome]:
        """The finished trainings of a key, seed after seed."""
        paths = [self.row_file(key, seed) for seed in seeds]
        return [Outcome.load(path) for path in paths if path.is_file()]

    def missing_seeds(self, key: str, seeds: Sequence[int]) -> list[int]:
        """The seeds that are still to be trained."""
        return [seed for seed in seeds if not self.row_file(key, seed).is_file()]

    def settings(self) -> Settings | None:
        """What the table was begun with; None where it was not begun."""
        return load_settings(self.settings_file) if self.settings_file.is_file() else None

    def require_same(self, settings: Settings, inputs: Mapping[str, Any]) -> None:
        """Refuse to put rows of other settings or files into a table that was begun."""
        if not self.settings_file.is_file():
            return
        before = json.loads(self.inputs_file.read_text("utf-8"))
        different = [
            *(f"{key}: {before.get(key)!r}, now {inputs[key]!r}" for key in inputs
              if before.get(key) != inputs[key]),
            *changed_settings(load_settings(self.settings_file), settings),
        ]  # fmt: skip
        if different:
            lines = "\n".join(f"  {line}" for line in different)
            raise UserError(
                f"{self.path}: this table was begun otherwise; choose another --name, or delete "
                f"the folder to begin anew. Different now:\n{lines}"
            )

    def begin(self, settings: Settings, inputs: Mapping[str, Any]) -> None:
        """Note what the table is made from."""
        write_atomically(self.inputs_file, json.dumps(dict(inputs), indent=2).encode())
        write_atomically(self.settings_file, dump_settings(settings).encode())

    def _unfinished(self, key: str) -> Path:
        return self.path / "unfinished" / file_name(key)


def changed_settings(base: Settings, changed: Settings) -> list[str]:
    """`group.name=value` of every setting that is not as in `base`."""
    return [f"{key}={now}" for key, (_, now) in setting_changes(base, changed).items()]


def file_name(key: str) -> str:
    """The key with nothing in it that a file name cannot hold."""
    return re.sub(r"[^\w.=+-]+", "-", key).strip("-")
