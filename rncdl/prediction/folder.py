"""The folder that `rncdl predict` fills: the one place that knows its files."""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rncdl.data.datasets import BadImage
from rncdl.data.records import ImageRecord
from rncdl.errors import UserError
from rncdl.files import write_atomically
from rncdl.origins import origin_differences
from rncdl.prediction.detections import DetectionWriter


@dataclass(frozen=True)
class PredictionFolder:
    """Names, saves and loads the files of one prediction.

    ```
    made_with.json          run, weights, settings and images it comes from
    predictions.json        COCO results, there once all images are done
    images.json             the images and categories that the results speak of
    skipped_images.jsonl    images that cannot be read, with the reason
    drawings/               images with their detections on them
    predictions.N.partial   batches that process N has finished, while it is at work
    ```
    """

    path: Path

    @property
    def origin_file(self) -> Path:
        """What the predictions were made with."""
        return self.path / "made_with.json"

    @property
    def predictions_file(self) -> Path:
        """All detections."""
        return self.path / "predictions.json"

    @property
    def images_file(self) -> Path:
        """The images and categories."""
        return self.path / "images.json"

    @property
    def skipped_images_file(self) -> Path:
        """Images that could not be read."""
        return self.path / "skipped_images.jsonl"

    @property
    def drawings_dir(self) -> Path:
        """Images with their detections on them."""
        return self.path / "drawings"

    def drawing_file(self, image: ImageRecord) -> Path:
        """The drawing of one image; the id tells apart files of the same name."""
        return self.drawings_dir / f"{image.id:06d}_{image.path.stem}.jpg"

    def batches_file(self, rank: int) -> Path:
        """The batches that one process has finished."""
        return self.path / f"predictions.{rank}.partial"

    @property
    def is_finished(self) -> bool:
        """True once all images are done."""
        return self.predictions_file.is_file()

    def require_origin(self, origin: Mapping[str, Any], *, overwrite: bool) -> None:
        """Refuse files of somebody else's, and those of another origin unless `overwrite`."""
        if not self.origin_file.is_file():
            for path in (self.predictions_file, self.images_file, self.drawings_dir):
                if path.exists():
                    raise UserError(
                        f"{path} was not made by `rncdl predict`; choose another --out."
                    )
            return
        different = origin_differences(json.loads(self.origin_file.read_text("utf-8")), origin)
        if different and not overwrite:
            raise UserError(
                f"{self.path}: these predictions were made with something else; choose another "
                "--out, start anew with --overwrite, or go back to what they were made with:\n"
                + "\n".join(different)
            )

    def begin(self, origin: Mapping[str, Any], *, overwrite: bool) -> None:
        """Note what the predictions are made with; with `overwrite`, earlier ones are removed."""
        if overwrite and self.origin_file.is_file():
            if json.loads(self.origin_file.read_text("utf-8")).get("draw"):
                shutil.rmtree(self.drawings_dir, ignore_errors=True)
            files = (self.predictions_file, self.images_file, self.skipped_images_file)
            for path in (*files, *self.path.glob("predictions.*.partial")):
                path.unlink(missing_ok=True)
        write_atomically(self.origin_file, json.dumps(origin, indent=2).encode())

    def finish(
        self,
        images: Sequence[ImageRecord],
        *,
        categories: Sequence[Mapping[str, Any]],
        unreadable: Sequence[BadImage],
        num_processes: int,
    ) -> None:
        """Make the files for everybody of what all processes have left. Results come last."""
        shares = [self.batches_file(rank) for rank in range(num_processes)]
        skipped = [*unreadable, *(bad for share in shares for bad in read_skipped(share))]
        if skipped:
            lines = "".join(json.dumps(asdict(bad)) + "\n" for bad in skipped)
            write_atomically(self.skipped_images_file, lines.encode())
        lost = {bad.path for bad in skipped}
        kept = [image for image in images if str(image.path) not in lost]
        content = {
            "images": [_describe_image(image) for image in kept],
            "annotations": [],
            "categories": list(categories),
        }
        write_atomically(self.images_file, json.dumps(content, indent=1).encode())
        writer = DetectionWriter(self.predictions_file)
        for share in shares:
            writer.add_file(share)
        writer.close()
        for share in shares:
            share.unlink()

    def skipped_images(self) -> list[BadImage]:
        """The images that could not be read, once all are done."""
        if not self.skipped_images_file.is_file():
            return []
        lines = self.skipped_images_file.read_text("utf-8").splitlines()
        return [BadImage(**json.loads(line)) for line in lines]


class BatchLog:
    """Finished batches in a file of lines; those in it stay, however the process ends.

    A batch is its detections, one JSON object a line, and a closing line that lists the images
    it had to skip. Opened again, the file goes on after the last batch that was closed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.num_batches, end = _count_batches(path)
        try:
            self._file = path.open("ab")
            self._file.truncate(end)
        except OSError as error:
            raise self._refusal(error) from error

    def write(self, detections: Iterable[bytes], skipped: Sequence[BadImage]) -> None:
        """Add one batch: its detections as JSON objects, and the images that were skipped."""
        closing = json.dumps([asdict(bad) for bad in skipped]).encode()
        try:
            self._file.write(b"".join(line + b"\n" for line in (*detections, closing)))
            self._file.flush()
        except OSError as error:
            raise self._refusal(error) from error
        self.num_batches += 1

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _refusal(self, error: OSError) -> UserError:
        return UserError(
            f"{self._path}: cannot write ({error.strerror}); free space or choose another --out."
        )


def read_skipped(path: Path) -> list[BadImage]:
    """The images that the batches of a log had to skip."""
    with path.open("rb") as file:
        closings = [json.loads(line) for line in file if line.startswith(b"[{")]
    return [BadImage(**bad) for closing in closings for bad in closing]


def _count_batches(path: Path) -> tuple[int, int]:
    """How many batches of a log are closed, and where in the file the last of them ends."""
    num_batches = end = position = 0
    if path.is_file():
        with path.open("rb") as file:
            for line in file:
                position += len(line)
                if line.startswith(b"[") and line.endswith(b"\n"):
                    num_batches, end = num_batches + 1, position
    return num_batches, end


def _describe_image(image: ImageRecord) -> dict[str, Any]:
    return {
        "id": image.id,
        "file_name": str(image.path),
        "width": image.width,
        "height": image.height,
    }
