"""The folder that `rncdl export` fills: whose files are in it, and how far they are."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rncdl.data.datasets import BadImage
from rncdl.errors import UserError
from rncdl.exports.exported import Placing
from rncdl.files import write_atomically
from rncdl.origins import origin_differences
from rncdl.prediction.folder import PredictionFolder, read_skipped


@dataclass(frozen=True)
class ExportFolder:
    """Keeps its own notes in `.rncdl/`, so that other tools see nothing but their format.

    ```
    .rncdl/made_with.json    format, detections and options it comes from, and what was written
    .rncdl/predictions/      the detections, where they were made for this export
    .rncdl/images.partial    what is written of each image, while it is at work
    skipped_images.jsonl     images that could not be exported, with the reason
    ```
    """

    path: Path

    @property
    def notes_dir(self) -> Path:
        """Everything that is not the format's."""
        return self.path / ".rncdl"

    @property
    def origin_file(self) -> Path:
        """What the export was made with."""
        return self.notes_dir / "made_with.json"

    @property
    def finished_file(self) -> Path:
        """There once everything is written."""
        return self.notes_dir / "finished"

    @property
    def log_file(self) -> Path:
        """The images that are done."""
        return self.notes_dir / "images.partial"

    @property
    def skipped_images_file(self) -> Path:
        """Images that could not be exported."""
        return self.path / "skipped_images.jsonl"

    @property
    def predictions(self) -> PredictionFolder:
        """Detections that are made for this export."""
        return PredictionFolder(self.notes_dir / "predictions")

    @property
    def is_finished(self) -> bool:
        """True once everything is written."""
        return self.finished_file.is_file()

    def require_own(self) -> None:
        """Refuse a folder that holds files of somebody else's."""
        if self.path.is_file():
            raise UserError(f"{self.path}: a file is in the way; --out is a folder.")
        if self.path.is_dir() and any(self.path.iterdir()) and not self.notes_dir.is_dir():
            raise UserError(
                f"{self.path}: the folder is not empty and was not made by `rncdl export`; "
                "choose another --out."
            )

    def begin(self, origin: Mapping[str, Any], *, written: Sequence[str], overwrite: bool) -> None:
        """Note what is being made; an earlier export with another origin is refused or removed.

        written: names of the files and folders that the format puts into this one.
        """
        before = self._read_origin()
        different = origin_differences(before, origin) if before else []
        if different and not overwrite:
            raise UserError(
                f"{self.path}: this export was made with something else; choose another --out, "
                "start anew with --overwrite, or go back to what it was made with:\n"
                + "\n".join(different)
            )
        if overwrite:
            self._remove(before.get("written", ()))
        write_atomically(
            self.origin_file, json.dumps({**origin, "written": list(written)}, indent=2).encode()
        )

    def finish(self, skipped: Sequence[BadImage]) -> None:
        """Note that everything is written."""
        if skipped:
            lines = "".join(
                json.dumps({"path": bad.path, "reason": bad.reason}) + "\n" for bad in skipped
            )
            write_atomically(self.skipped_images_file, lines.encode())
        write_atomically(self.finished_file, b"")
        self.log_file.unlink(missing_ok=True)

    def skipped(self) -> list[BadImage]:
        """The images that had to be skipped so far."""
        return read_skipped(self.log_file)

    def lines(self) -> Iterator[bytes]:
        """What the writer has noted of each image."""
        with self.log_file.open("rb") as file:
            for line in file:
                if not line.startswith(b"["):
                    yield line.rstrip(b"\n")

    def num_skipped(self) -> int:
        """How many images could not be exported, once all is done."""
        if not self.skipped_images_file.is_file():
            return 0
        return len(self.skipped_images_file.read_bytes().splitlines())

    def _read_origin(self) -> dict[str, Any]:
        if not self.origin_file.is_file():
            return {}
        return json.loads(self.origin_file.read_text("utf-8"))

    def _remove(self, written: Sequence[str]) -> None:
        for path in (self.path / name for name in written):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for path in (self.finished_file, self.log_file, self.skipped_images_file):
            path.unlink(missing_ok=True)


def place_image(source: Path, target: Path, placing: Placing) -> None:
    """The image at `target`: linked where both are on one disk, else copied.

    A link is a hard one: it is a file like any other, also in an archive or a container.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    source = source.resolve()
    if target.is_file() and target.stat().st_size == source.stat().st_size:
        return
    target.unlink(missing_ok=True)
    if placing is Placing.LINK:
        with suppress(OSError):
            os.link(source, target)
            return
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        shutil.copyfile(source, unfinished)
        unfinished.replace(target)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
