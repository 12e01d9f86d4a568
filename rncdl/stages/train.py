"""`rncdl train`: the supervised phase."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from rncdl.classes import ClassSplit, KnownLabels
from rncdl.config import DetectorSettings, Settings, resolve_settings
from rncdl.detector.model import Detector
from rncdl.detector.pretrained import BackboneStart, find_start, settle_start, warning_about
from rncdl.detector.training import train_detector
from rncdl.errors import UserError
from rncdl.experiments.measuring import known_scores
from rncdl.inputs import known_classes, load_dataset
from rncdl.models import new_detector
from rncdl.planning.expectation import HOPELESS_S
from rncdl.planning.trial import time_one_image
from rncdl.planning.words import in_words
from rncdl.prediction.classifier import trained_classifier
from rncdl.run_folder import RunFolder, TrainingInputs
from rncdl.stages.curves import curves_drawn
from rncdl.stages.resuming import FIXED_IN_TRAINING, take_up_changes
from rncdl.training.checkpoints import list_checkpoints
from rncdl.training.processes import Processes, join_processes
from rncdl.training.progress import say, warn

MANY_IMAGES = 100_000
"""A training that looks at fewer is not tried beforehand."""


def begin_training(
    run_path: Path,
    inputs: TrainingInputs,
    *,
    settings: Settings,
    known: str | Sequence[str] | None = None,
    warn_if_long: bool = False,
) -> None:
    """Begin a run: train the detector on the known classes of the labelled file.

    `known`: a list, names with commas, or a file of them; None: all that have annotations. The run
    that this one starts from may have other classes. `warn_if_long`: try one image first, if there
    are many to come.
    """
    run = RunFolder(run_path)
    with join_processes(settings.device) as processes:
        labelled = Path(inputs.labelled)
        annotations = load_dataset(labelled, _as_path(inputs.images), shown=processes.is_main)
        split = known_classes(labelled, annotations, known)
        detector = processes.from_main(partial(_begin, run, settings, inputs, split))
        settings = settings.model_copy(update={"detector": detector})
        labels = split.keep_known(annotations)
        if warn_if_long:
            processes.from_main(partial(_warn_if_long, settings, labels, processes))
        _train(run, settings, labels, inputs, processes=processes)


def _warn_if_long(settings: Settings, labels: KnownLabels, processes: Processes) -> None:
    """Say how long a training of many images will take, where that is hopeless."""
    num_images = settings.train.steps * settings.train.batch_size
    if num_images < MANY_IMAGES:
        return
    sharing = processes.count if processes.device.type == "cuda" else 1
    seconds = num_images * time_one_image(settings, labels, processes) / sharing
    if seconds > HOPELESS_S:
        warn(
            f"{settings.train.steps:,} steps of {settings.train.batch_size} images: about "
            f"{in_words(seconds)} here. `rncdl run` plans a training that fits this machine; "
            "or set train.steps. Ctrl-C stops this one."
        )


def _begin(
    run: RunFolder, settings: Settings, inputs: TrainingInputs, split: ClassSplit
) -> DetectorSettings:
    """Write what the run starts from; its detector's settings, with weights in place of `auto`."""
    given = settings.detector
    if inputs.start_from is not None:
        first = RunFolder(Path(inputs.start_from)).settings().detector.weights
        path = first if isinstance(first, Path) else None
        detector = settle_start(given, BackboneStart(path, inputs.start_from))
        run.begin(settings.model_copy(update={"detector": detector}), inputs, split)
        return detector
    run.require_free()
    start = find_start(given)
    detector = settle_start(given, start)
    run.begin(settings.model_copy(update={"detector": detector}), inputs, split)
    run.note_backbone_start(start.noted())
    say(start.line())
    if warning := warning_about(given, start):
        warn(warning)
    return detector


def resume_training(run_path: Path, overrides: Sequence[str]) -> None:
    """Continue a run from its newest checkpoint; what the overrides change is noted in it."""
    run = RunFolder(run_path)
    before = run.settings()
    settings = resolve_settings(base=before, overrides=overrides)
    inputs, split = run.inputs(), run.split()
    with join_processes(settings.device) as processes:
        if processes.from_main(run.detector_file.is_file):
            if processes.is_main:
                say(f"{run.detector_file}: already trained to the end.")
            return
        take_up_changes(
            run,
            before,
            settings,
            fixed=FIXED_IN_TRAINING,
            instead="begin another run",
            processes=processes,
        )
        annotations = load_dataset(
            Path(inputs.labelled), _as_path(inputs.images), shown=processes.is_main
        )
        _train(run, settings, split.keep_known(annotations), inputs, processes=processes)


def _train(
    run: RunFolder,
    settings: Settings,
    labels: KnownLabels,
    inputs: TrainingInputs,
    *,
    processes: Processes,
) -> None:
    torch.manual_seed(settings.seed)
    detector = new_detector(settings, labels)
    if not list_checkpoints(run.train_checkpoints):  # which would hold all weights
        _load_first_weights(detector, inputs)
    validate = _validation(inputs, labels.split, settings=settings, processes=processes)
    with curves_drawn(run, processes):
        train_detector(
            detector, labels, settings=settings, run=run, processes=processes, validate=validate
        )
    if processes.is_main:
        say(f"Detector: {run.detector_file}")


def _load_first_weights(detector: Detector, inputs: TrainingInputs) -> None:
    if inputs.start_from is None:
        detector.load_backbone_weights()
    else:
        _copy_weights(RunFolder(Path(inputs.start_from)), detector)


def _copy_weights(run: RunFolder, detector: Detector) -> None:
    """Start from another run's detector: all but the head of its own classes."""
    state, _ = run.load_detector()
    kept = {key: value for key, value in state.items() if not key.startswith("known_head.")}
    try:
        missing, unexpected = detector.load_state_dict(kept, strict=False)
        strange = [key for key in (*missing, *unexpected) if not key.startswith("known_head.")]
    except RuntimeError as error:
        strange = [str(error)]
    if strange:
        raise UserError(
            f"{run.path}: its detector has other layers than this run's; give both the same "
            f"detector settings ({', '.join(strange[:5])})."
        )


def _validation(
    inputs: TrainingInputs, split: ClassSplit, *, settings: Settings, processes: Processes
) -> Callable[[Detector], dict[str, float]] | None:
    """A function that measures the known classes on the validation file, where there is one."""
    if inputs.val is None:
        return None
    truth = load_dataset(Path(inputs.val), _as_path(inputs.val_images), shown=processes.is_main)
    return lambda detector: known_scores(
        detector,
        trained_classifier(detector, split.known),
        truth,
        split,
        settings=settings,
        processes=processes,
    )


def _as_path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
