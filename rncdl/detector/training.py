"""The supervised phase: one plain loop."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rncdl.classes import KnownLabels
from rncdl.config import Settings, TrainSettings
from rncdl.data.unlabelled_objects import UnlabelledObjects
from rncdl.detector.losses import SupervisedStep
from rncdl.detector.map_cache import MapCache, open_map_cache
from rncdl.detector.mask_training import train_masks
from rncdl.detector.model import Detector
from rncdl.detector.object_search import ObjectSearch, look_for_objects
from rncdl.detector.training_steps import (
    accumulate_gradients,
    cut_batch,
    next_samples,
    open_training_loader,
    require_finite,
)
from rncdl.errors import UserError
from rncdl.run_folder import RunFolder
from rncdl.training.checkpoints import list_checkpoints, load_checkpoint, save_checkpoint
from rncdl.training.interruption import StopRequest, stop_request
from rncdl.training.journal import Journal
from rncdl.training.meter import Meter
from rncdl.training.optimizer import make_sgd
from rncdl.training.processes import Processes, choose_precision, seed_step
from rncdl.training.progress import ProgressLine, warn
from rncdl.training.saving import Saving, save_or_stop
from rncdl.training.schedule import Schedule, set_rate
from rncdl.training.watching import TrainingWatch


@dataclass
class _State:
    """All that a resumed run needs besides its settings and files."""

    detector: Detector
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    step: int = 0
    objects: str | None = None
    """fingerprint of the objects that nobody labelled, once they are learned from"""

    def to_dict(self) -> dict[str, Any]:
        return {
            "detector": self.detector.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "step": self.step,
            "objects": self.objects,
        }

    def restore(self, folder: Path, processes: Processes) -> None:
        """Load the folder's newest checkpoint, if it has one; the same one in all processes."""
        newest = processes.from_main(lambda: list_checkpoints(folder)[-1:])
        if newest:
            saved = load_checkpoint(newest[0])
            self.detector.load_state_dict(saved["detector"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.scaler.load_state_dict(saved["scaler"])
            self.step = saved["step"]
            self.objects = saved.get("objects")  # those of earlier versions have none


@dataclass(frozen=True)
class _Training:
    """What stays the same from the first step to the last."""

    labels: KnownLabels
    settings: Settings
    run: RunFolder
    processes: Processes
    precision: torch.dtype
    journal: Journal | None
    meter: Meter
    watch: TrainingWatch
    cache: MapCache | None
    validate: Callable[[Detector], dict[str, float]] | None


def train_detector(
    detector: Detector,
    labels: KnownLabels,
    *,
    settings: Settings,
    run: RunFolder,
    processes: Processes,
    validate: Callable[[Detector], dict[str, float]] | None = None,
) -> None:
    """Train `detector` in place, from the run's newest checkpoint where it has one.

    Every process calls this; the first one writes. Raises `Interrupted`, with a checkpoint
    saved, when asked to stop.
    """
    train = settings.train
    search = None
    if train.objects_at:
        search = ObjectSearch.from_settings(settings, processes.device)
    _check_masks(detector, settings, processes)
    precision = choose_precision(train.precision, processes.device)
    state = _first_state(detector, train, processes, precision)
    state.restore(run.train_checkpoints, processes)
    model = processes.wrap(SupervisedStep(detector))
    training = _Training(
        labels,
        settings,
        run,
        processes,
        precision,
        journal=_open_journal(run, settings, processes, state.step),
        meter=Meter(processes),
        watch=TrainingWatch(num_steps=train.steps, warmup_steps=train.warmup_steps),
        cache=open_map_cache(detector, labels, settings=settings, processes=processes),
        validate=validate,
    )
    objects = None
    if search is not None:
        if state.objects is None:
            _train_until(round(train.objects_at * train.steps), state, model, training, None)
        objects = _find_objects(state, search, training)
    _train_until(train.steps, state, model, training, objects)
    if training.journal:
        training.journal.close()
    with_masks = detector.mask_head is not None
    if with_masks and train.mask_steps:
        train_masks(
            detector,
            labels,
            settings=settings,
            run=run,
            processes=processes,
            cache=training.cache,
        )
    processes.from_main(lambda: run.save_detector(detector.state_dict(), has_masks=with_masks))


def _train_until(
    last_step: int,
    state: _State,
    model: nn.Module,
    training: _Training,
    objects: UnlabelledObjects | None,
) -> None:
    """Train up to `last_step`; from the objects too, where there are any."""
    if state.step >= last_step:
        return
    settings, run, processes = training.settings, training.run, training.processes
    train, schedule, meter = settings.train, _schedule(settings.train), training.meter
    loader = open_training_loader(
        training.labels,
        with_masks=state.detector.mask_head is not None,
        settings=settings,
        processes=processes,
        first_step=state.step,
        cache=training.cache,
        objects=objects,
    )
    line = ProgressLine(
        "train", train.steps, unit="steps", start=state.step, shown=processes.is_main
    )
    with closing(iter(loader)) as batches, stop_request() as stop, line as progress:
        while state.step < last_step:
            samples, num_readable = next_samples(batches, settings, run, processes)
            set_rate(state.optimizer, schedule.rate(state.step))
            seed_step(settings.seed, step=state.step, rank=processes.rank)
            losses = accumulate_gradients(
                model,
                cut_batch(samples, train, processes),
                num_images=num_readable / processes.count,
                scaler=state.scaler,
                precision=training.precision,
            )
            _step(state, clip=train.clip_gradient)
            meter.add(losses, [sample.path for sample in samples])
            figures = None
            if state.step % train.log_every == 0:
                figures = _figures(meter, state, batch_size=train.batch_size)
                _write(training.journal, "train", state.step, figures)
                _warn(training.watch.see_class_loss(state.step, figures["class"]), processes)
            progress.advance(figures=figures)
            _save_or_stop(state, train, run, stop, processes, meter)
            if training.validate and train.evaluate_every and not state.step % train.evaluate_every:
                scores = training.validate(state.detector)
                state.detector.train()
                _write(training.journal, "val", state.step, scores)
                if "known_bbox_ap50" in scores:
                    ap50 = scores["known_bbox_ap50"]
                    _warn(training.watch.see_known_ap(state.step, ap50), processes)


def _find_objects(state: _State, search: ObjectSearch, training: _Training) -> UnlabelledObjects:
    """The objects that nobody labelled: looked for now, or those the training began to learn from.

    A checkpoint comes before the look, so that one that was interrupted goes on with the same
    detector.
    """
    run, processes, settings = training.run, training.processes, training.settings
    folder = run.train_objects
    if state.objects is None:
        processes.from_main(
            lambda: str(save_checkpoint(run.train_checkpoints, state.step, state.to_dict()))
        )
        objects = look_for_objects(
            state.detector,
            training.labels,
            search,
            folder,
            settings=settings,
            processes=processes,
        )
        state.objects = processes.from_main(folder.fingerprint)
    else:
        if processes.from_main(folder.fingerprint) != state.objects:
            raise UserError(
                f"{folder.path}: not the objects that this training began to learn from. Put them "
                "back, or begin another run."
            )
        objects = folder.read()
    if settings.train.objects_class == "none":
        return objects
    return replace(objects, label=training.labels.split.num_known)


def _first_state(
    detector: Detector, train: TrainSettings, processes: Processes, precision: torch.dtype
) -> _State:
    """The detector on its device, ready to be trained, and its optimiser."""
    detector.to(processes.device).train()
    return _State(
        detector,
        make_sgd(detector, weight_decay=train.weight_decay),
        torch.amp.GradScaler(processes.device.type, enabled=precision == torch.float16),
    )


def _schedule(train: TrainSettings) -> Schedule:
    return Schedule(
        train.steps,
        peak=train.rate,
        start=train.rate_at_start,
        warmup_steps=train.warmup_steps,
        shape=train.schedule,
        drop_at=train.drop_at,
    )


def _save_or_stop(
    state: _State,
    train: TrainSettings,
    run: RunFolder,
    stop: StopRequest,
    processes: Processes,
    meter: Meter,
) -> None:
    saving = Saving(
        train.steps,
        every=train.checkpoint_every,
        folder=run.train_checkpoints if processes.is_main else None,
        how_to_continue=f"Continue with: rncdl train --run {run.path} --resume",
    )
    save_or_stop(
        state.step,
        saving,
        state=state.to_dict,
        stop=stop,
        processes=processes,
        check=lambda: require_finite(meter.find_bad_step(), state.step),
    )


def _check_masks(detector: Detector, settings: Settings, processes: Processes) -> None:
    """Before hours of training: whether a part of the mask head will never learn."""
    if detector.mask_detail is not None and not settings.train.mask_steps:
        _warn(
            f"detector.mask_detail={settings.detector.mask_detail} is learned in train.mask_steps, "
            "which is 0: it adds nothing to the masks.",
            processes,
        )


def _warn(warning: str | None, processes: Processes) -> None:
    if warning is not None and processes.is_main:
        warn(warning)


def _write(journal: Journal | None, kind: str, step: int, figures: dict[str, float]) -> None:
    if journal is not None:
        journal.write(kind=kind, step=step, **figures)


def _figures(meter: Meter, state: _State, *, batch_size: int) -> dict[str, float]:
    """What is written and shown of the steps since the last time."""
    read = meter.read()
    require_finite(read.bad_step, state.step)
    return {
        "loss": sum(read.means.values()),
        **read.means,
        "rate": state.optimizer.param_groups[0]["lr"],
        "images/s": read.steps_per_second * batch_size,
    }


def _open_journal(
    run: RunFolder, settings: Settings, processes: Processes, first_step: int
) -> Journal | None:
    if not processes.is_main:
        return None
    board = run.train_dir / "tensorboard" if settings.train.tensorboard else None
    return Journal(run.train_journal, resume_step=first_step, tensorboard_dir=board)


def _step(state: _State, *, clip: float) -> None:
    """Step the optimiser by the gradients, clipped to norm `clip` unless that is 0; count it."""
    if clip:
        state.scaler.unscale_(state.optimizer)
        parameters = [p for group in state.optimizer.param_groups for p in group["params"]]
        torch.nn.utils.clip_grad_norm_(parameters, clip)
    state.scaler.step(state.optimizer)
    state.scaler.update()
    state.optimizer.zero_grad(set_to_none=True)
    state.step += 1
