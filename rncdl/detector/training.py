"""The supervised phase: one plain loop."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rncdl.classes import KnownLabels
from rncdl.config import Settings, TrainSettings
from rncdl.data.batches import TrainingBatches, repeat_factors
from rncdl.data.datasets import LabelledImages
from rncdl.data.loading import Batch, BatchLoader
from rncdl.data.samples import Sample
from rncdl.detector.losses import SupervisedStep
from rncdl.detector.model import Detector
from rncdl.errors import UserError
from rncdl.run_folder import RunFolder
from rncdl.training.checkpoints import list_checkpoints, load_checkpoint, save_checkpoint
from rncdl.training.interruption import Interrupted, stop_request
from rncdl.training.journal import Journal
from rncdl.training.meter import Meter
from rncdl.training.optimizer import make_sgd
from rncdl.training.processes import Processes, autocast, choose_precision, seed_step
from rncdl.training.progress import ProgressLine
from rncdl.training.schedule import rate_at, set_rate


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
    device = processes.device
    precision = choose_precision(train.precision, device)
    memory_format = torch.channels_last if train.channels_last else torch.contiguous_format
    detector.to(device, memory_format=memory_format)  # type: ignore[call-overload]
    detector.train()
    optimizer = make_sgd(detector, momentum=train.momentum, weight_decay=train.weight_decay)
    scaler = torch.amp.GradScaler(device.type, enabled=precision == torch.float16)
    first_step = _restore(run, detector, optimizer, scaler)
    model = processes.wrap(SupervisedStep(detector))
    loader = open_training_loader(
        labels,
        with_masks=detector.mask_head is not None,
        settings=settings,
        processes=processes,
        first_step=first_step,
    )
    batches = iter(loader)
    journal = _open_journal(run, settings, processes, first_step)

    def save(step: int) -> None:
        if processes.is_main:
            state = {
                "detector": detector.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scaler": scaler.state_dict(),
                "step": step,
            }
            save_checkpoint(run.train_checkpoints, step, state, keep=train.keep_checkpoints)

    meter = Meter(processes)
    with (
        stop_request() as stop,
        ProgressLine(
            "train", train.steps, unit="steps", start=first_step, shown=processes.is_main
        ) as progress,
    ):
        for step in range(first_step, train.steps):
            samples = _next_samples(batches, run)
            rate = _rate_of(step, train)
            set_rate(optimizer, rate)
            seed_step(settings.seed, step=step, rank=processes.rank)
            losses = _accumulate_gradients(
                model, samples, num_parts=train.accumulate, scaler=scaler, precision=precision
            )
            _require_finite(losses, step=step, samples=samples)
            _step(optimizer, scaler, clip=train.clip_gradient)
            meter.add(losses)

            done = step + 1
            figures = None
            if done % train.log_every == 0:
                means, steps_per_second = meter.read()
                speed = steps_per_second * train.batch_size
                figures = {"loss": sum(means.values()), **means, "rate": rate, "images/s": speed}
                if journal:
                    journal.write(kind="train", step=done, **figures)
            progress.advance(figures=figures)
            if processes.any_true(bool(stop)):
                save(done)
                raise Interrupted(
                    f"Stopped after step {done} of {train.steps}; everything is saved. "
                    f"Continue with: rncdl train --run {run.path} --resume",
                    stop.exit_code,
                )
            if done % train.checkpoint_every == 0 or done == train.steps:
                save(done)
            if validate and train.evaluate_every and done % train.evaluate_every == 0:
                scores = validate(detector)
                detector.train()
                if journal:
                    journal.write(kind="val", step=done, **scores)
    if journal:
        journal.close()
    if processes.is_main:
        run.save_detector(detector.state_dict(), has_masks=detector.mask_head is not None)
    processes.wait_for_all()


def _rate_of(step: int, train: TrainSettings) -> float:
    return rate_at(
        step,
        train.steps,
        peak=train.rate,
        start=train.rate_at_start,
        end=train.rate_at_end,
        warmup_steps=train.warmup_steps,
        shape=train.schedule,
        drop_at=train.drop_at,
    )


def _restore(
    run: RunFolder,
    detector: Detector,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
) -> int:
    """Load the newest checkpoint into all three; the step to go on from."""
    checkpoints = list_checkpoints(run.train_checkpoints)
    if not checkpoints:
        return 0
    state = load_checkpoint(checkpoints[-1])
    detector.load_state_dict(state["detector"])
    optimizer.load_state_dict(state["optimizer"])
    scaler.load_state_dict(state["scaler"])
    return state["step"]


def open_training_loader(
    labels: KnownLabels,
    *,
    with_masks: bool,
    settings: Settings,
    processes: Processes,
    first_step: int,
) -> BatchLoader[Sample]:
    """This process's part of each step's batch, from `first_step` on."""
    data = settings.data
    dataset = LabelledImages(
        labels,
        short_sides_px=data.short_sides_px,
        long_side_px=data.long_side_px,
        flip=data.flip,
        with_masks=with_masks,
        on_bad_image=data.on_bad_image,
        cache_mb=data.cache_mb,
    )
    processes.share_of(settings.train.batch_size, what="train.batch_size")
    batches = TrainingBatches(
        labels.annotations.images,
        batch_size=settings.train.batch_size,
        seed=settings.seed,
        rank=processes.rank,
        world_size=processes.count,
        start_step=first_step,
        group_by_aspect=data.group_by_aspect,
        repeats=repeat_factors(labels, data.repeat_threshold),
    )
    return BatchLoader(dataset, batches, workers=data.workers)


def _next_samples(batches: Iterator[Batch[Sample]], run: RunFolder) -> list[Sample]:
    """The next batch; images that were passed over are recorded."""
    batch = next(batches)
    run.record_skipped_images(batch.bad_images)
    if not batch.samples:
        raise UserError(
            f"None of a whole batch's images can be read; see {run.skipped_images_file}."
        )
    return batch.samples


def _open_journal(
    run: RunFolder, settings: Settings, processes: Processes, first_step: int
) -> Journal | None:
    if not processes.is_main:
        return None
    board = run.train_dir / "tensorboard" if settings.train.tensorboard else None
    return Journal(run.train_journal, resume_step=first_step, tensorboard_dir=board)


def _accumulate_gradients(
    model: nn.Module,
    samples: list[Sample],
    *,
    num_parts: int,
    scaler: torch.amp.GradScaler,
    precision: torch.dtype,
) -> dict[str, Tensor]:
    """Gradients of the batch's mean loss, part by part; returns the mean of each loss term."""
    size = -(-len(samples) // num_parts)
    parts = [samples[i : i + size] for i in range(0, len(samples), size)]
    device = next(model.parameters()).device
    totals: dict[str, Tensor] = {}
    for index, part in enumerate(parts):
        is_last = index == len(parts) - 1
        defer = (
            model.no_sync()
            if isinstance(model, DistributedDataParallel) and not is_last
            else nullcontext()
        )
        with defer:
            with autocast(device, precision):
                losses: dict[str, Tensor] = model(part)
            share = len(part) / len(samples)
            total = torch.stack(list(losses.values())).sum()
            scaler.scale(total * share).backward()
        for name, loss in losses.items():
            totals[name] = totals.get(name, 0) + loss.detach() * share
    return totals


def _require_finite(losses: dict[str, Tensor], *, step: int, samples: list[Sample]) -> None:
    bad = [name for name, loss in losses.items() if not torch.isfinite(loss)]
    if bad:
        images = "\n  ".join(sample.path for sample in samples)
        raise UserError(
            f"Step {step + 1}: the loss is not finite ({', '.join(bad)}). The last checkpoint is "
            f"untouched; try a lower train.rate or a longer train.warmup_steps, or look at the "
            f"images of this batch:\n  {images}"
        )


def _step(optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, *, clip: float) -> None:
    if clip:
        scaler.unscale_(optimizer)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        torch.nn.utils.clip_grad_norm_(parameters, clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
