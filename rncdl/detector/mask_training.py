"""A short second training, of the mask head alone (ours).

The finished detector looks through the labelled images once more. What it finds now are objects
more often, and better cut out, than what it was taught by, and the mask head has not learned enough
where boxes and classes have. Nothing else changes, so that boxes and classes are found as before.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rncdl.classes import KnownLabels
from rncdl.config import Settings
from rncdl.data.samples import Sample
from rncdl.data.unlabelled_objects import UnlabelledObjects
from rncdl.detector.boxes import clip_boxes
from rncdl.detector.losses import SampledRegions, batch_of, mask_loss
from rncdl.detector.map_cache import MapCache
from rncdl.detector.model import Detector
from rncdl.detector.object_search import ObjectSearch, look_for_objects
from rncdl.detector.training_steps import (
    accumulate_gradients,
    cut_batch,
    next_samples,
    open_training_loader,
    require_finite,
)
from rncdl.run_folder import RunFolder
from rncdl.training.checkpoints import list_checkpoints, load_checkpoint
from rncdl.training.interruption import stop_request
from rncdl.training.journal import Journal
from rncdl.training.meter import Meter
from rncdl.training.processes import Processes, choose_precision, seed_step
from rncdl.training.progress import ProgressLine
from rncdl.training.saving import Saving, save_or_stop
from rncdl.training.schedule import Schedule, set_rate

_RATE = 1e-3
_WARMUP_STEPS = 20
_WEIGHT_DECAY = 1e-4
_SHIFT = 0.1
"""Share of a box's side by which each of its edges is moved at most: a tenth, since masks are also
looked for in boxes enlarged by 1.2."""


class MaskStep(nn.Module):
    """The mask loss of a batch as a module's forward, the form in which DDP can watch it."""

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, samples: Sequence[Sample]) -> dict[str, Tensor]:
        """The scalar mask, of all objects of the samples, each in a box that nearly fits."""
        detector = self.detector
        with torch.no_grad():
            batch = batch_of(detector, samples)
            maps = detector.feature_maps(batch)
        regions = [
            _all_objects(sample.boxes_xyxy.to(detector.device, non_blocking=True), size)
            for sample, size in zip(samples, batch.sizes_hw, strict=True)
        ]
        loss = mask_loss(detector, maps, regions=regions, samples=samples, with_detail=True)
        return {"mask": loss}


def shift_edges(boxes_xyxy: Tensor, *, most: float) -> Tensor:
    """The boxes (R, 4) with each edge moved at random, by at most `most` of the side across it."""
    sides = (boxes_xyxy[:, 2:] - boxes_xyxy[:, :2]).repeat(1, 2)
    return boxes_xyxy + (2 * torch.rand_like(boxes_xyxy) - 1) * most * sides


def _all_objects(boxes_xyxy: Tensor, size_hw: tuple[int, int]) -> SampledRegions:
    shifted = shift_edges(boxes_xyxy, most=_SHIFT)
    return SampledRegions(
        clip_boxes(shifted, boxes_xyxy.new_tensor(size_hw)),
        torch.arange(len(boxes_xyxy), device=boxes_xyxy.device),
    )


@dataclass
class _State:
    """All that a resumed training of the masks needs besides the detector it began with."""

    parts: nn.ModuleList
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    step: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "parts": self.parts.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "step": self.step,
        }

    def restore(self, folder: Path, processes: Processes) -> None:
        """Load the folder's newest checkpoint, if it has one; the same one in all processes."""
        newest = processes.from_main(lambda: list_checkpoints(folder)[-1:])
        if newest:
            saved = load_checkpoint(newest[0])
            self.parts.load_state_dict(saved["parts"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.scaler.load_state_dict(saved["scaler"])
            self.step = saved["step"]


def train_masks(
    detector: Detector,
    labels: KnownLabels,
    *,
    settings: Settings,
    run: RunFolder,
    processes: Processes,
    cache: MapCache | None = None,
) -> None:
    """Train the mask head of a trained `detector` in place, as `train.mask_steps` says.

    Every process calls this; the first one writes. Raises `Interrupted`, with a checkpoint saved,
    when asked to stop.
    """
    objects = None
    if settings.train.objects_at > 0:
        search = ObjectSearch.from_settings(settings, processes.device, wanted_by="mask_steps")
        objects = look_for_objects(
            detector, labels, search, run.mask_objects, settings=settings, processes=processes
        )
    state = _first_state(detector, settings, processes)
    state.restore(run.mask_checkpoints, processes)
    _train(
        state,
        processes.wrap(MaskStep(detector)),
        labels,
        objects,
        settings=settings,
        run=run,
        processes=processes,
        cache=cache,
    )


def _first_state(detector: Detector, settings: Settings, processes: Processes) -> _State:
    """The mask head ready to be trained, all else frozen, and its optimiser."""
    detector.eval().requires_grad_(False)
    learning = [detector.mask_head, detector.mask_detail]
    parts = nn.ModuleList(part for part in learning if part is not None)
    parts.train().requires_grad_(True)
    precision = choose_precision(settings.train.precision, processes.device)
    return _State(
        parts,
        torch.optim.AdamW(parts.parameters(), lr=_RATE, weight_decay=_WEIGHT_DECAY),
        torch.amp.GradScaler(processes.device.type, enabled=precision == torch.float16),
    )


def _train(
    state: _State,
    model: nn.Module,
    labels: KnownLabels,
    objects: UnlabelledObjects | None,
    *,
    settings: Settings,
    run: RunFolder,
    processes: Processes,
    cache: MapCache | None,
) -> None:
    train, steps = settings.train, settings.train.mask_steps
    schedule = Schedule(
        steps, peak=_RATE, start=0.0, warmup_steps=min(_WARMUP_STEPS, steps // 2), shape="cosine"
    )
    saving = Saving(
        steps,
        every=train.checkpoint_every,
        folder=run.mask_checkpoints if processes.is_main else None,
        how_to_continue=f"Continue with: rncdl train --run {run.path} --resume",
    )
    loader = open_training_loader(
        labels,
        with_masks=True,
        settings=settings,
        processes=processes,
        first_step=state.step,
        cache=cache,
        objects=objects,
    )
    meter, precision = Meter(processes), choose_precision(train.precision, processes.device)
    journal = Journal(run.mask_journal, resume_step=state.step) if processes.is_main else None
    line = ProgressLine("masks", steps, unit="steps", start=state.step, shown=processes.is_main)
    with closing(iter(loader)) as batches, stop_request() as stop, line as progress:
        while state.step < steps:
            samples, num_readable = next_samples(batches, settings, run, processes)
            set_rate(state.optimizer, schedule.rate(state.step))
            seed_step(settings.seed, step=state.step, rank=processes.rank)
            losses = accumulate_gradients(
                model,
                cut_batch(samples, train, processes),
                num_images=num_readable / processes.count,
                scaler=state.scaler,
                precision=precision,
            )
            state.scaler.step(state.optimizer)
            state.scaler.update()
            state.optimizer.zero_grad(set_to_none=True)
            state.step += 1
            meter.add(losses, [sample.path for sample in samples])
            figures = None
            if state.step % train.log_every == 0:
                read = meter.read()
                require_finite(read.bad_step, state.step)
                figures = read.means
                if journal is not None:
                    journal.write(kind="masks", step=state.step, **figures)
            progress.advance(figures=figures)
            save_or_stop(
                state.step,
                saving,
                state=state.to_dict,
                stop=stop,
                processes=processes,
                check=lambda: require_finite(meter.find_bad_step(), state.step),
            )
    if journal is not None:
        journal.close()
