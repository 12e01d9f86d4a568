"""The commands as functions: what `rncdl train`, `discover`, `evaluate` and `export` do.

Each calls the very stage that its command calls. Progress is shown on the screen; Ctrl-C finishes
the step and saves it. Work is shared among processes only where torchrun started them.
"""

from __future__ import annotations  # help() then shows AnyPath instead of what it stands for

import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypeVar

from rncdl.config import Changes, as_overrides, resolve_settings
from rncdl.errors import UserError
from rncdl.evaluation.results import Report
from rncdl.exports.formats import writer_for
from rncdl.exports.records import MIN_SCORE, ExportRequest, Only, Placing, Shape
from rncdl.gallery.cluster_records import Cluster
from rncdl.inputs import named_inputs
from rncdl.prediction.folder import PredictionFolder
from rncdl.prediction.predictor import HeadChoice
from rncdl.run_folder import RunFolder, TrainingInputs
from rncdl.stages import clusters as clusters_stage
from rncdl.stages import discover as discover_stage
from rncdl.stages import evaluate as evaluate_stage
from rncdl.stages import export as export_stage
from rncdl.stages import export_onnx as onnx_stage
from rncdl.stages import train as train_stage

AnyPath = str | os.PathLike[str]
Choice = TypeVar("Choice", bound=StrEnum)


def train(
    run: AnyPath,
    labelled: AnyPath | None = None,
    *,
    images: AnyPath | None = None,
    known: str | Sequence[str] | None = None,
    val: AnyPath | None = None,
    val_images: AnyPath | None = None,
    start_from: AnyPath | None = None,
    preset: AnyPath | None = None,
    settings: Changes = (),
    resume: bool = False,
) -> Path:
    """Train a detector on the known classes; returns the run folder, for the next call.

    run: the folder to make.
    labelled: a COCO or LVIS json.
    images: its folder of images, where file names are not relative to the json.
    known: names of the known classes, or a file of them; None: all that have annotations.
    val, val_images: a json to measure the known classes on meanwhile (train.evaluate_every).
    start_from: a run whose detector is trained further.
    preset: the name of a built-in preset, or a YAML file.
    settings: those to change, e.g. {"train.steps": 500}; `rncdl settings` prints them all.
    resume: go on with a run that was interrupted; files are those it was begun with.
    """
    folder = Path(run)
    if resume:
        begun_with = (labelled, images, known, val, val_images, start_from, preset)
        if any(one is not None for one in begun_with):
            raise UserError("train: with resume=True, give settings alone; the run has the rest.")
        train_stage.resume_training(folder, as_overrides(settings))
        return folder
    if labelled is None:
        raise UserError("train: give the labelled json to begin a run, or resume=True.")
    inputs = TrainingInputs.of_files(
        Path(labelled),
        images=_path(images),
        val=_path(val),
        val_images=_path(val_images),
        start_from=_path(start_from),
    )
    resolved = resolve_settings(_preset(preset), as_overrides(settings))
    train_stage.begin_training(folder, inputs, settings=resolved, known=known, warn_if_long=True)
    return folder


def discover(
    run: AnyPath,
    unlabelled: AnyPath | Sequence[AnyPath] = (),
    *,
    unlabelled_images: AnyPath | None = None,
    labelled: AnyPath | None = None,
    images: AnyPath | None = None,
    discovery: str = "main",
    preset: AnyPath | None = None,
    settings: Changes = (),
    resume: bool = False,
) -> Path:
    """Discover novel classes: train heads that tell known classes and clusters apart.

    Returns the run folder. Region features are extracted once into it, and reused by every later
    discovery.

    run: a folder that `train` made.
    unlabelled: a folder of images or a json, or several.
    unlabelled_images: the jsons' folder of images.
    labelled, images: as for `train`, if not those that the run was trained on.
    discovery: a name for it; a run may hold several.
    preset: as for `train`; without it the settings are the run's.
    settings: those to change, e.g. {"discover.heads": [200]}, the number of clusters.
    resume: go on with a discovery that was interrupted.
    """
    folder = Path(run)
    pools = _several(unlabelled)
    named = None
    if pools or labelled is not None:
        named = named_inputs(
            RunFolder(folder),
            [Path(pool) for pool in pools],
            unlabelled_images=_path(unlabelled_images),
            labelled=_path(labelled),
            images=_path(images),
        )
    discover_stage.discover(
        folder,
        named,
        name=discovery,
        preset=_preset(preset),
        resume=resume,
        overrides=as_overrides(settings),
    )
    return folder


def evaluate(
    run: AnyPath,
    val: AnyPath,
    *,
    images: AnyPath | None = None,
    discovery: str | None = None,
    train_labels: AnyPath | None = None,
    settings: Changes = (),
) -> Report | None:
    """Measure a run where all classes are annotated; every number goes into its folder too.

    The report's `find("head0").novel.ap` is the AP of the novel classes by the first novel head,
    each cluster taken for the class that it fits best. Under torchrun, it is None but in the first
    process.

    run: a folder that `train` made.
    val: a COCO or LVIS json with the annotations of all classes.
    images: the json's folder of images, where file names are not relative to it.
    discovery: its name; None: the newest finished one; "trained": the detector without one.
    train_labels: a fully labelled training json, for rare, common and frequent classes.
    settings: those to change, e.g. {"predict.max_detections": 300}.
    """
    return evaluate_stage.evaluate(
        Path(run),
        Path(val),
        images=_path(images),
        name=discovery,
        train_labels=_path(train_labels),
        overrides=as_overrides(settings),
    )


def clusters(
    run: AnyPath, *, discovery: str | None = None, head: int = 0, examples: int = 4
) -> list[Cluster]:
    """What a discovery has found: its clusters, in the order of their numbers.

    run: a folder that `train` made.
    discovery: its name; None: the newest finished one.
    head: which novel head, where the discovery has several.
    examples: of each cluster, so many of its most typical regions, of different images.
    """
    return clusters_stage.list_clusters(
        Path(run), discovery=discovery, head=head, num_examples=examples
    )


def export(
    format_name: str,
    out: AnyPath,
    *,
    run: AnyPath | None = None,
    images: AnyPath | Sequence[AnyPath] = (),
    predictions: AnyPath | None = None,
    discovery: str | None = None,
    head: int = 0,
    raw: bool = False,
    settings: Changes = (),
    min_score: float | None = None,
    only: Literal["all", "known", "novel"] | None = None,
    keep_overlapping: bool | None = None,
    shape: Literal["box", "polygon", "mask"] | None = None,
    image_files: Literal["link", "copy", "leave"] | None = None,
    val_share: float | None = None,
    overwrite: bool = False,
) -> Path:
    """Write what is found in images for another tool, or the detector itself; returns `out`.

    format_name: coco, yolo, voc, label-studio, cvat, fiftyone, huggingface; or onnx, for the
    detector itself.
    out: a folder; for onnx, a file.
    run, images: the run that looks at image files, folders and globs; for onnx, PyTorch and ONNX
    Runtime are compared on the images, if any.
    predictions: a folder of `rncdl predict`, instead of run and images.
    discovery, head, raw, settings: as for `load`.
    min_score: only detections above it (default: 0.1; for onnx, the setting predict.min_score).
    only: which classes (default: all).
    keep_overlapping: also what overlaps a better detection.
    shape: how objects are outlined (default: the most exact that the format has).
    image_files: what is done with them (default: link).
    val_share: of the images, for yolo and voc (default: 0.1).
    overwrite: start anew where `out` exists; otherwise an interrupted export goes on.
    """
    options: dict[str, Any] = {
        "only": _chosen(Only, only, "only"),
        "keep_overlapping": keep_overlapping,
        "shape": _chosen(Shape, shape, "shape"),
        "placing": _chosen(Placing, image_files, "image_files"),
        "val_share": val_share,
    }
    given = {name: value for name, value in options.items() if value is not None}
    words = [*(os.fspath(path) for path in _several(images)), *as_overrides(settings)]
    choice = HeadChoice(discovery, head, raw)
    if format_name == "onnx":
        if given or predictions is not None or run is None:
            raise UserError(
                "export: onnx takes run=, images= to compare on, discovery, head, raw, settings, "
                "min_score and overwrite alone."
            )
        onnx_stage.export_onnx(
            words, Path(run), out=Path(out), choice=choice, min_score=min_score, overwrite=overwrite
        )
        return Path(out)
    if (predictions is None) == (run is None or not _several(images)):
        raise UserError("export: give either run= and images=, or predictions=.")
    least = MIN_SCORE if min_score is None else min_score
    request = ExportRequest(format=format_name, out=Path(out), min_score=least, **given)
    writer_for(request)
    if predictions is not None:
        made = PredictionFolder(Path(predictions))
    else:
        assert run is not None
        made = export_stage.predict_for_export(
            words, Path(run), Path(out), choice=choice, overwrite=overwrite
        )
    export_stage.export(request, made, overwrite=overwrite)
    return Path(out)


def _path(given: AnyPath | None) -> Path | None:
    return None if given is None else Path(given)


def _preset(given: AnyPath | None) -> str | None:
    return None if given is None else os.fspath(given)


def _several(paths: AnyPath | Sequence[AnyPath]) -> Sequence[AnyPath]:
    return [paths] if isinstance(paths, str | os.PathLike) else paths


def _chosen(kind: type[Choice], given: str | None, name: str) -> Choice | None:
    if given is not None and given not in list(kind):
        raise UserError(f"export: {name}={given!r} is none of {', '.join(kind)}.")
    return None if given is None else kind(given)
