"""What `rncdl run` was asked for, and whether it is asked for the same again."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rncdl.data.image_paths import list_images
from rncdl.errors import UserError
from rncdl.origins import digest
from rncdl.run_folder import TrainingInputs

_SETTLED = ("detector.weights", "detector.frozen_blocks", "detector.norm", "train.accumulate")
"""Settings that a run may have been begun with otherwise than they were stated."""


@dataclass(frozen=True)
class RunRequest:
    """Files, size and settings that the user named."""

    labelled: Path
    images: Path | None = None
    unlabelled: tuple[Path, ...] = ()
    unlabelled_images: Path | None = None
    val: Path | None = None
    val_images: Path | None = None
    known: str | None = None
    size: str | None = None
    overrides: tuple[str, ...] = ()

    def training_inputs(self) -> TrainingInputs:
        """The files of the supervised phase."""
        return TrainingInputs.of_files(
            self.labelled, images=self.images, val=self.val, val_images=self.val_images
        )

    def noted(self) -> dict[str, Any]:
        """What the run folder keeps of it."""
        return {
            "words": self._words(),
            "contents": {str(path): fingerprint(path) for path in self._files()},
            "settings": list(self.overrides),
        }

    def changed_settings(self, noted: dict[str, Any]) -> list[str]:
        """The settings to go on with, besides those that the run has settled by itself."""
        return [
            word
            for word in self.overrides
            if word not in noted["settings"] or word.partition("=")[0] not in _SETTLED
        ]

    def require_same_words(self, noted: dict[str, Any], run: Path) -> None:
        """Refuse to go on with a run that was begun with other files or another size."""
        for word, now in self._words().items():
            before = noted["words"][word]
            if before != now:
                raise UserError(
                    f"{run} was begun {_said(word, before)}, not {_said(word, now)}: give the same "
                    "command to go on, or choose another --out."
                )

    def changed_files(self, noted: dict[str, Any]) -> list[Path]:
        """The files and folders that hold something else than when the run began."""
        before = noted["contents"]
        return [path for path in self._files() if before[str(path)] != fingerprint(path)]

    def _files(self) -> list[Path]:
        given = (self.labelled, *self.unlabelled, self.val)
        return [path.resolve() for path in given if path is not None]

    def _words(self) -> dict[str, Any]:
        paths = {
            "LABELLED": self.labelled,
            "--images": self.images,
            "--unlabelled-images": self.unlabelled_images,
            "--val": self.val,
            "--val-images": self.val_images,
        }
        return {
            **{word: None if path is None else str(path.resolve()) for word, path in paths.items()},
            "--unlabelled": [str(path.resolve()) for path in self.unlabelled],
            "--known": self.known,
            "--size": self.size,
        }


def fingerprint(path: Path) -> str:
    """Of a file its content; of a folder the names of its images."""
    if path.is_dir():
        return digest(*(str(image.relative_to(path)).encode() for image in list_images(path)))
    try:
        return digest(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot read the file ({error.strerror}).") from error


def _said(word: str, value: Any) -> str:
    if value in (None, []):
        return f"without {word}"
    values = value if isinstance(value, list) else [value]
    return "with " + " ".join(f"{word} {one}" for one in values)
