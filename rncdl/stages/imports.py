"""`rncdl import`: checkpoints of the authors' code as runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from rncdl.classes import ClassSplit
from rncdl.config import Settings, resolve_settings
from rncdl.detector.importing import ImportedDetector, read_detectron2
from rncdl.detector.model import Detector
from rncdl.errors import UserError
from rncdl.models import build_heads
from rncdl.run_folder import RunFolder
from rncdl.training.progress import say


def import_checkpoint(
    checkpoint: Path,
    run_path: Path,
    *,
    known: str,
    preset: str | None,
    overrides: Sequence[str],
    name: str = "main",
) -> None:
    """Begin a run with the authors' supervised checkpoint; a discovery one also brings heads."""
    imported = read_detectron2(checkpoint)
    split = ClassSplit.from_names(known)
    if split.num_known != imported.num_known:
        raise UserError(
            f"{checkpoint}: the model knows {imported.num_known} classes, --known names "
            f"{split.num_known}. Name them all, in the order of the model's outputs."
        )
    settings = resolve_settings(preset, overrides)
    settings = settings.model_copy(update={"detector": imported.settings})
    run = RunFolder(run_path)
    run.begin(settings, None, split)
    run.save_detector(imported.state, has_masks=imported.masks)
    say(f"Detector: {run.detector_file}")
    if imported.novel_heads:
        _save_heads(imported, settings, run, name=name)


def _save_heads(
    imported: ImportedDetector, settings: Settings, run: RunFolder, *, name: str
) -> None:
    first = imported.novel_heads[0]
    discover = settings.discover.model_copy(
        update={
            "heads": tuple(len(head["prototypes"]) for head in imported.novel_heads),
            "hidden_width": len(first["projection.0.weight"]),
            "projection_width": len(first["projection.3.weight"]),
        }
    )
    settings = settings.model_copy(update={"discover": discover})
    detector = Detector(imported.settings, imported.num_known, masks=imported.masks)
    detector.load_state_dict(imported.state)
    heads = build_heads(detector, discover)
    for head, tensors in zip(heads.novel, imported.novel_heads, strict=True):
        head.load_state_dict(without_first_bias(tensors))
    folder = run.discovery(name)
    folder.begin(settings, None)
    folder.save_heads(heads.state_dict())
    say(f"Heads: {folder.heads_file}")


def without_first_bias(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A novel head's tensors with the first layer's bias moved into the BatchNorm behind it.

    (x + bias) - mean = x - (mean - bias): our first layer has no bias, for it would do nothing.
    """
    moved = dict(tensors)
    bias = moved.pop("projection.0.bias")
    moved["projection.1.running_mean"] = moved["projection.1.running_mean"] - bias
    return moved
