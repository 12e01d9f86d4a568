"""What a plan will cost, from what a trial took."""

from dataclasses import dataclass

from rncdl.config import Settings
from rncdl.discovery.bank import BankShape
from rncdl.planning.facts import DataFacts, MachineFacts
from rncdl.planning.trial import Trial

HOPELESS_S = 3 * 86_400
"""A run that takes longer is warned of."""
_MATCHES_PER_BOX = 4
"""Regions that lie on one annotation, as the bank keeps them, on average."""
_LOAD_S = 5.0
"""Detector and heads, before the report is written."""
_DRAWN_IMAGES = 12
"""Images that the report shows with their detections."""
_EXEMPLARS_PER_CLUSTER = 12
_CHECKPOINTS_KEPT = 2
_MOMENTUM = 2
"""A checkpoint holds each weight and its momentum."""
_BYTES_PER_WEIGHT = 4
_BYTES_PER_OBJECT = 3000
"""What the teacher has seen of one object."""


@dataclass(frozen=True)
class Expectation:
    """Seconds of each phase, memory and disk."""

    train_s: float
    bank_s: float
    discover_s: float
    report_s: float
    memory_bytes: int
    disk_bytes: int

    @property
    def total_s(self) -> float:
        """From the first step to the report."""
        return self.train_s + self.bank_s + self.discover_s + self.report_s


def expect(
    settings: Settings,
    data: DataFacts,
    machine: MachineFacts,
    trial: Trial,
    *,
    num_weights: int,
) -> Expectation:
    """The cost of a run with these settings; `num_weights`: of the detector."""
    # On a CPU processes share the cores that the trial had to itself; each GPU is a machine more.
    speed = machine.num_processes if machine.is_gpu else 1
    image_s = trial.bank_image_s / speed
    validations = _num_validations(settings, data)
    looked_at = data.num_val * validations
    return Expectation(
        train_s=settings.train.steps * trial.train_step_s / speed + looked_at * image_s,
        bank_s=data.num_pool * (image_s + trial.object_image_s / speed),
        discover_s=settings.discover.steps * trial.discover_step_s / speed,
        report_s=_LOAD_S
        + (_DRAWN_IMAGES + data.num_val) * image_s
        + _num_cut(settings, data) * trial.read_image_s,
        memory_bytes=_memory_bytes(settings, data, machine, trial),
        disk_bytes=_disk_bytes(settings, data, num_weights=num_weights),
    )


def _num_validations(settings: Settings, data: DataFacts) -> int:
    every = settings.train.evaluate_every
    return settings.train.steps // every if every and data.num_val else 0


def _num_cut(settings: Settings, data: DataFacts) -> int:
    """Images that thumbnails are cut from, if each is another one."""
    return min(data.num_pool, _EXEMPLARS_PER_CLUSTER * sum(settings.discover.heads))


def _memory_bytes(settings: Settings, data: DataFacts, machine: MachineFacts, trial: Trial) -> int:
    """What the trial took, and what fills up later: kept images, the memories of features."""
    discover = settings.discover
    rows = 2 * discover.memory_batches * discover.batch_images * discover.regions_per_image
    remembered = rows * settings.detector.box_head_width * 4
    decoded = 3 * data.num_labelled * data.short_side_px**2 * data.long_over_short
    kept = 0.0 if machine.is_gpu else min(settings.data.cache_mb * 2**20, decoded)
    return round(trial.memory_bytes + remembered + kept)


def _disk_bytes(settings: Settings, data: DataFacts, *, num_weights: int) -> int:
    """The bank as far as it is filled, the checkpoints and the detector."""
    per_image = _MATCHES_PER_BOX * data.num_boxes / max(1, data.num_labelled)
    bank = BankShape(
        num_images=data.num_pool,
        num_labelled=data.num_labelled,
        num_views=settings.discover.views,
        regions_per_image=settings.discover.regions_per_image,
        matched_per_image=min(settings.discover.matched_regions_per_image, round(per_image) + 1),
        num_features=settings.detector.box_head_width,
    ).num_bytes
    if settings.discover.teacher != "none":
        bank += data.num_pool * settings.teacher.objects_per_image * _BYTES_PER_OBJECT
    detector = num_weights * _BYTES_PER_WEIGHT
    return bank + (1 + _MOMENTUM * _CHECKPOINTS_KEPT) * detector


def cures(size: str, machine: MachineFacts) -> str:
    """What to do where a run takes too long."""
    smaller = {"paper": "standard", "standard": "small", "small": "tiny"}.get(size)
    advice = [f"--size {smaller}"] if smaller else ["fewer train.steps"]
    if not machine.is_gpu:
        advice.append("a GPU")
    elif machine.num_gpus > machine.num_processes:
        advice.append(f"--processes {machine.num_gpus}")
    return " or ".join(advice)
