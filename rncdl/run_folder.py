"""The run folder: the one place that knows every file of a run."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import safetensors
import safetensors.torch
from torch import Tensor

from rncdl.classes import ClassSplit
from rncdl.config import Settings, dump_settings, load_settings
from rncdl.data.datasets import BadImage
from rncdl.data.unlabelled_objects import ObjectsFolder
from rncdl.errors import UserError
from rncdl.files import write_atomically
from rncdl.naming.decisions import Decisions
from rncdl.naming.store import read_decisions

AS_TRAINED = "trained"
"""Where a discovery could be named, this names the detector as it was trained, without one."""


@dataclass(frozen=True)
class TrainingInputs:
    """The files a detector was trained on, as absolute paths."""

    labelled: str
    images: str | None = None
    val: str | None = None
    val_images: str | None = None
    start_from: str | None = None
    """the run whose detector this one was started from"""

    @classmethod
    def of_files(
        cls,
        labelled: Path,
        *,
        images: Path | None = None,
        val: Path | None = None,
        val_images: Path | None = None,
        start_from: Path | None = None,
    ) -> "TrainingInputs":
        """From paths as they were given."""
        others = (_resolved(path) for path in (images, val, val_images, start_from))
        return cls(str(labelled.resolve()), *others)


@dataclass(frozen=True)
class DiscoveryInputs:
    """The files whose images made up the pool of a discovery, as absolute paths."""

    labelled: str
    images: str | None = None
    unlabelled: tuple[str, ...] = ()
    unlabelled_images: str | None = None


@dataclass(frozen=True)
class RunFolder:
    """Names, saves and loads the files of one run. Stages meet only here.

    ```
    settings.yaml          every setting, resolved
    inputs.json            the files it was trained on
    classes.json           the known classes, in output order
    plan.json              what `rncdl run` was asked for, what it chose and why, what it expected
    backbone_start.json    which weights the backbone started from, and what they have seen
    detector.safetensors   the trained detector
    train/                 checkpoints, journal.jsonl, tensorboard, objects that nobody labelled;
                           mask_*: the same of the steps of the mask head alone
    bank/                  region features of the pool
    discoveries/NAME/      one discovery: settings, inputs, checkpoints, journal, heads, and what
                           people decided about its clusters
    skipped_images.jsonl   images passed over because they cannot be read
    evaluations/NAME/VAL/  detections, assignments, report.json and report.md of one evaluation of
                           discovery NAME, or of the detector as `trained`, on VAL.json;
                           NAME/decided/VAL/ with clusters as people have named them
    compare/NAME/          a table of systems, ablate/NAME/ tables of ablations: see TableFolder
    curves.svg             the learning curves of the training and of the newest discovery
    report.html            the page to look at
    ```
    """

    path: Path

    @property
    def settings_file(self) -> Path:
        """Resolved settings."""
        return self.path / "settings.yaml"

    @property
    def inputs_file(self) -> Path:
        """Paths of the training files."""
        return self.path / "inputs.json"

    @property
    def classes_file(self) -> Path:
        """Known classes."""
        return self.path / "classes.json"

    @property
    def plan_file(self) -> Path:
        """What `rncdl run` was asked for, what it chose and why, and what it expected."""
        return self.path / "plan.json"

    @property
    def backbone_start_file(self) -> Path:
        """Which weights the backbone started from."""
        return self.path / "backbone_start.json"

    @property
    def detector_file(self) -> Path:
        """Weights of the trained detector."""
        return self.path / "detector.safetensors"

    @property
    def train_dir(self) -> Path:
        """Checkpoints and journal of the supervised phase."""
        return self.path / "train"

    @property
    def train_checkpoints(self) -> Path:
        """Checkpoints of the supervised phase."""
        return self.train_dir / "checkpoints"

    @property
    def train_journal(self) -> Path:
        """Journal of the supervised phase."""
        return self.train_dir / "journal.jsonl"

    @property
    def train_objects(self) -> ObjectsFolder:
        """Objects that nobody labelled, which the detector found while it was trained."""
        return ObjectsFolder(self.train_dir / "objects")

    @property
    def mask_checkpoints(self) -> Path:
        """Checkpoints of the steps in which the mask head alone learned on."""
        return self.train_dir / "mask_checkpoints"

    @property
    def mask_journal(self) -> Path:
        """Journal of these steps."""
        return self.train_dir / "mask_journal.jsonl"

    @property
    def mask_objects(self) -> ObjectsFolder:
        """Objects that nobody labelled, which the finished detector found for these steps."""
        return ObjectsFolder(self.train_dir / "mask_objects")

    @property
    def bank_dir(self) -> Path:
        """Region features of the pool, shared by all discoveries of the run."""
        return self.path / "bank"

    @property
    def object_bank_dir(self) -> Path:
        """What the teacher has seen of the pool's objects, shared by all discoveries of the run."""
        return self.path / "object_bank"

    @property
    def estimate_file(self) -> Path:
        """How many new classes the pool seems to hold, and how known ones survived."""
        return self.path / "estimate.json"

    def discovery(self, name: str) -> "DiscoveryFolder":
        """The folder of one discovery."""
        if Path(name).name != name or name in ("", "..", AS_TRAINED):
            raise UserError(
                f"A discovery cannot be named {name!r}: take a plain name without slashes, and not "
                f"{AS_TRAINED!r}, which stands for the detector without a discovery."
            )
        return DiscoveryFolder(self.path / "discoveries" / name)

    def discovery_names(self) -> list[str]:
        """Finished discoveries, the oldest first."""
        found = sorted((self.path / "discoveries").glob("*/heads.safetensors"), key=_written_at)
        return [path.parent.name for path in found]

    def choose_discovery(self, name: str | None) -> str | None:
        """The discovery of that name; None takes the newest finished one, `trained` takes none."""
        if name is None:
            return next(reversed(self.discovery_names()), None)
        return None if name == AS_TRAINED else name

    @property
    def skipped_images_file(self) -> Path:
        """Images that could not be read (data.on_bad_image=skip)."""
        return self.path / "skipped_images.jsonl"

    def evaluation(
        self, val_name: str, discovery: str | None, *, decided: bool = False
    ) -> "EvaluationFolder":
        """The folder of one evaluation: of the detector as trained, or of a discovery.

        decided: with its clusters named, merged and ignored by people.
        """
        return EvaluationFolder(self._evaluations_dir(discovery, decided) / val_name)

    def evaluations_of(
        self, discovery: str | None, *, decided: bool = False
    ) -> "dict[str, EvaluationFolder]":
        """Finished evaluations of a discovery, or of the detector as trained, by validation set."""
        finished = sorted(self._evaluations_dir(discovery, decided).glob("*/report.json"))
        return {path.parent.name: EvaluationFolder(path.parent) for path in finished}

    def _evaluations_dir(self, discovery: str | None, decided: bool) -> Path:
        of_discovery = self.path / "evaluations" / (discovery or AS_TRAINED)
        return of_discovery / "decided" if decided else of_discovery

    def table_dir(self, command: Literal["compare", "ablate"], name: str) -> Path:
        """The folder of a comparison or of ablations."""
        return self.path / command / name

    @property
    def curves_file(self) -> Path:
        """Learning curves as a picture."""
        return self.path / "curves.svg"

    @property
    def report_file(self) -> Path:
        """The page to look at."""
        return self.path / "report.html"

    @property
    def exists(self) -> bool:
        """True once a run has begun here."""
        return self.settings_file.is_file()

    def require_free(self) -> None:
        """Refuse a folder that already holds a run."""
        if self.exists:
            raise UserError(
                f"{self.path} already holds a run: continue it with --resume, "
                "or choose another --run."
            )

    def begin(self, settings: Settings, inputs: TrainingInputs | None, split: ClassSplit) -> None:
        """Write what a run starts from; a folder that already holds a run is refused."""
        self.require_free()
        if inputs is not None:
            write_atomically(self.inputs_file, json.dumps(asdict(inputs), indent=2).encode())
        write_atomically(self.classes_file, json.dumps({"known": split.known}, indent=2).encode())
        self.save_settings(settings)

    def note_backbone_start(self, noted: Mapping[str, str | None]) -> None:
        """Write which weights the backbone started from."""
        write_atomically(self.backbone_start_file, json.dumps(noted, indent=2).encode())

    def save_settings(self, settings: Settings) -> None:
        """Note the settings of the run, in place of those it had."""
        write_atomically(self.settings_file, dump_settings(settings).encode())

    def settings(self) -> Settings:
        """The settings the run was begun with, or went on with last."""
        return load_settings(self._needed(self.settings_file, "begin one with `rncdl train`"))

    def inputs(self) -> TrainingInputs:
        """The files the run was trained on."""
        path = self._needed(self.inputs_file, "an imported run has no training files to go back to")
        return TrainingInputs(**json.loads(path.read_text("utf-8")))

    def split(self) -> ClassSplit:
        """The known classes of the run."""
        path = self._needed(self.classes_file, "begin a run with `rncdl train`")
        return ClassSplit(tuple(json.loads(path.read_text("utf-8"))["known"]))

    def save_detector(self, state: Mapping[str, Tensor], *, has_masks: bool) -> None:
        """Save the trained detector's weights."""
        _save_tensors(self.detector_file, state, {"has_masks": str(has_masks)})

    def load_detector(self) -> tuple[dict[str, Tensor], bool]:
        """Weights of the trained detector, and whether it has a mask head."""
        path = self._needed(self.detector_file, "train it to the end with `rncdl train --resume`")
        state, metadata = _load_tensors(path)
        return state, metadata.get("has_masks") == "True"

    def has_masks(self) -> bool:
        """Whether the trained detector has a mask head; its weights are not loaded."""
        path = self._needed(self.detector_file, "train it to the end with `rncdl train --resume`")
        return _read_metadata(path).get("has_masks") == "True"

    def record_skipped_images(self, bad_images: Sequence[BadImage]) -> None:
        """Note images that were passed over, each with its reason, one JSON object a line."""
        lines = "".join(f"{json.dumps(asdict(bad))}\n" for bad in bad_images)
        try:
            with self.skipped_images_file.open("a", encoding="utf-8") as file:
                file.write(lines)
        except OSError as error:
            raise UserError(
                f"{self.skipped_images_file}: cannot write ({error.strerror})."
            ) from error

    def _needed(self, path: Path, fix: str) -> Path:
        if not path.is_file():
            raise UserError(f"{self.path}: no {path.name} in this run folder; {fix}.")
        return path


@dataclass(frozen=True)
class DiscoveryFolder:
    """Names, saves and loads the files of one discovery: settings, inputs, journal, heads.

    `detector.safetensors` is there only when an ablation trained the detector too, decisions where
    people have made any.
    """

    path: Path

    @property
    def settings_file(self) -> Path:
        """Resolved settings."""
        return self.path / "settings.yaml"

    @property
    def heads_file(self) -> Path:
        """The trained heads."""
        return self.path / "heads.safetensors"

    @property
    def detector_file(self) -> Path:
        """The detector, where discovery changed it."""
        return self.path / "detector.safetensors"

    @property
    def journal(self) -> Path:
        """Journal of the discovery phase."""
        return self.path / "journal.jsonl"

    def decisions_file(self, head: int) -> Path:
        """What people decided about a head's clusters."""
        return self.path / f"decisions_head{head}.sqlite"

    def decided_heads(self) -> dict[int, Path]:
        """The files of people's decisions, by head."""
        paths = sorted(self.path.glob("decisions_head*.sqlite"))
        return {int(path.stem.removeprefix("decisions_head")): path for path in paths}

    def membership_dir(self, head: int) -> Path:
        """Which cluster of a head each region of the bank belongs to; made again where missing."""
        return self.path / f"membership_head{head}"

    def decisions(self, head: int) -> Decisions:
        """What people have decided about a head's clusters so far."""
        return read_decisions(self.decisions_file(head))

    @property
    def exists(self) -> bool:
        """True once this discovery has begun."""
        return self.settings_file.is_file()

    @property
    def inputs_file(self) -> Path:
        """Paths of the pool's files."""
        return self.path / "inputs.json"

    def begin(self, settings: Settings, inputs: DiscoveryInputs | None) -> None:
        """Write what a discovery starts from; an imported one has no files to go back to."""
        if inputs is not None:
            write_atomically(self.inputs_file, json.dumps(asdict(inputs), indent=2).encode())
        self.save_settings(settings)

    def save_settings(self, settings: Settings) -> None:
        """Note the settings of the discovery, in place of those it had."""
        write_atomically(self.settings_file, dump_settings(settings).encode())

    def inputs(self) -> DiscoveryInputs | None:
        """The files of the pool; None where the discovery did not note them."""
        if not self.inputs_file.is_file():
            return None
        values = json.loads(self.inputs_file.read_text("utf-8"))
        return DiscoveryInputs(**{**values, "unlabelled": tuple(values["unlabelled"])})

    def settings(self) -> Settings:
        """The settings the discovery was begun with, or went on with last."""
        if not self.exists:
            raise UserError(f"{self.path}: no discovery here; begin one with `rncdl discover`.")
        return load_settings(self.settings_file)

    def save_heads(self, state: Mapping[str, Tensor]) -> None:
        """Save the trained heads."""
        _save_tensors(self.heads_file, state, {})

    def load_heads(self) -> dict[str, Tensor]:
        """Weights of the trained heads."""
        if not self.heads_file.is_file():
            raise UserError(f"{self.path}: not finished; go on with `rncdl discover --resume`.")
        return _load_tensors(self.heads_file)[0]

    def save_detector(self, state: Mapping[str, Tensor]) -> None:
        """Save a detector that discovery trained too."""
        _save_tensors(self.detector_file, state, {})

    def load_detector(self) -> dict[str, Tensor] | None:
        """The detector that discovery trained too, where there is one."""
        return _load_tensors(self.detector_file)[0] if self.detector_file.is_file() else None


@dataclass(frozen=True)
class EvaluationFolder:
    """Names the files of one evaluation."""

    path: Path

    @property
    def report_json(self) -> Path:
        """Every number."""
        return self.path / "report.json"

    @property
    def report_md(self) -> Path:
        """The tables for people."""
        return self.path / "report.md"

    def predictions(self, reading: str) -> Path:
        """Detections of one reading of the images, a COCO-results file."""
        return self.path / f"predictions_{reading}.json"

    def assignment(self, reading: str) -> Path:
        """Which class each output stands for."""
        return self.path / f"assignment_{reading}.csv"

    def confusion(self, system: str) -> Path:
        """How many annotated boxes of each class each output took."""
        return self.path / f"confusion_{system}.csv"

    def classes(self, reading: str) -> Path:
        """AP class by class."""
        return self.path / f"classes_{reading}.csv"


def _save_tensors(path: Path, state: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    tensors = {key: value.detach().cpu().contiguous() for key, value in state.items()}
    write_atomically(path, safetensors.torch.save(tensors, metadata))


def _load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            names = list(file.keys())
            return {name: file.get_tensor(name) for name in names}, file.metadata() or {}
    except safetensors.SafetensorError as error:
        raise UserError(f"{path}: damaged ({error}); make it again.") from error


def _read_metadata(path: Path) -> dict[str, str]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return file.metadata() or {}
    except safetensors.SafetensorError as error:
        raise UserError(f"{path}: damaged ({error}); make it again.") from error


def _written_at(path: Path) -> float:
    return path.stat().st_mtime


def _resolved(path: Path | None) -> str | None:
    return None if path is None else str(path.resolve())
