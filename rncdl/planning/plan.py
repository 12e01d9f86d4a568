"""From facts and a size to settings, each with its reason."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from rncdl.config import RETIRED, Settings, change, resolve_settings
from rncdl.planning.facts import DataFacts, MachineFacts
from rncdl.planning.sizes import LITE0, PAPER, STANDARD, TINY, Size

_PX_STEP = 32
"""Image sides are multiples of this, as the coarsest map wants them."""
_LEAST_PX = 128
_ANCHORS = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Anchor sides over the short side of the images, the finest level first."""
_FULL_PX = 640
"""From this short side on, the paper's anchors and sizes of training fit."""
_WARMUP = 1 / 6
"""Of the steps, those in which the rate rises."""
_LEAST_CLUSTERS = 20
_CLUSTERS_PER_KNOWN = 4
_POOL_IMAGES_PER_CLUSTER = 5
_RARE = 0.02
"""A class in fewer of the images than this is shown more often."""
_CACHE_SHARE = 0.1
_MOST_CACHE_MB = 1024
_CHECKPOINTS = 20
"""How many checkpoints a training writes; after a kill it loses no more than the last part."""
_CURVE_POINTS = 50
_MEASUREMENTS = 4
"""How often known classes are measured on --val while the detector is trained."""


@dataclass(frozen=True)
class Choice:
    """One setting that was chosen, and why."""

    key: str
    value: Any
    reason: str


@dataclass(frozen=True)
class Plan:
    """What a run is going to do."""

    size: str
    settings: Settings
    choices: tuple[Choice, ...]


class _Choices:
    """Settings as they are chosen; what the user said stands."""

    def __init__(self, overrides: Sequence[str]) -> None:
        stated = resolve_settings(overrides=overrides)
        named = {word.partition("=")[0] for word in overrides} - set(RETIRED)
        keys = [name.split(".") for name in named]
        self._stated = {".".join(key): reduce(getattr, key, stated) for key in keys}
        self.made: list[Choice] = []

    def choose(self, key: str, value: Any, reason: str) -> Any:
        """Note the choice; the value that holds."""
        if key in self._stated:
            value, reason = self._stated[key], "as you said"
        self.made.append(Choice(key, value, reason))
        return value

    def has_said(self, key: str) -> bool:
        """Whether the user has chosen this setting."""
        return key in self._stated

    def settings(self) -> dict[str, Any]:
        """All choices as settings, group by group."""
        chosen: dict[str, Any] = {}
        for choice in self.made:
            group, _, name = choice.key.partition(".")
            chosen.setdefault(group, {})[name] = choice.value
        return chosen


def default_size(machine: MachineFacts) -> Size:
    """The size of a run that nobody chose one for."""
    return STANDARD if machine.is_gpu else TINY


def make_plan(
    data: DataFacts, machine: MachineFacts, size: Size, overrides: Sequence[str] = ()
) -> Plan:
    """The settings of a run of this size; `overrides` are the user's own."""
    choices = _Choices(overrides)
    if size is not PAPER:
        _choose_images(choices, data, size)
        _choose_detector(choices, machine, size)
        _choose_training(choices, data, size)
        _choose_discovery(choices, data, size)
        _choose_for_teacher(choices, size)
    _choose_loading(choices, data, machine)
    base = change(Settings(), **size.settings)
    chosen = change(base, **choices.settings())
    return Plan(size.name, resolve_settings(base=chosen, overrides=overrides), tuple(choices.made))


def cut_batches(plan: Plan, parts: int) -> Plan:
    """The plan with each batch in so many parts, as the trial found that memory wants it."""
    if parts == plan.settings.train.accumulate:
        return plan
    settings = change(plan.settings, train={"accumulate": parts})
    choice = Choice("train.accumulate", parts, "more at once does not fit into memory")
    return replace(plan, settings=settings, choices=(*plan.choices, choice))


def image_side_px(data: DataFacts, size: Size) -> tuple[int, str]:
    """The short side that images are resized to, and why."""
    wanted = size.object_px / max(data.small_object, 1e-6)
    side = _round_up(min(wanted, data.short_side_px, size.most_px))
    side = min(max(side, _LEAST_PX), max(size.most_px, _LEAST_PX))
    small_px = data.small_object * side
    told = f"small objects are then {small_px:.0f} px wide"
    if wanted > size.most_px and data.short_side_px > size.most_px:
        return side, f"the most that --size {size.name} takes; {told}"
    if wanted > data.short_side_px:
        return side, f"the images have no more; {told}"
    return side, told


def number_of_clusters(data: DataFacts, size: Size) -> tuple[int, str]:
    """N of the novel head, and why: better too many, which can be merged, than too few."""
    wanted = max(_LEAST_CLUSTERS, _CLUSTERS_PER_KNOWN * data.num_known)
    most = max(_LEAST_CLUSTERS, data.num_pool // _POOL_IMAGES_PER_CLUSTER)
    number = min(wanted, most, size.most_clusters)
    if number == wanted:
        return number, f"{_CLUSTERS_PER_KNOWN} for each known class, at least {_LEAST_CLUSTERS}"
    return number, f"no more than {data.num_pool} images or --size {size.name} can fill"


def _choose_images(choices: _Choices, data: DataFacts, size: Size) -> None:
    side, reason = image_side_px(data, size)
    side = choices.choose("data.eval_short_side_px", side, reason)
    drawn = tuple(_round_up(side * share) for share in ((0.8, 0.9, 1.0) if side > 256 else (1.0,)))
    choices.choose("data.short_sides_px", drawn, "sizes drawn from in training")
    longest = _round_up(side * min(data.long_over_short, 3.0))
    choices.choose("data.long_side_px", longest, "19 of 20 images keep their shape and size")
    if side < _FULL_PX:
        anchors = tuple(float(round(side * share)) for share in _ANCHORS)
        choices.choose("detector.anchor_sizes_px", anchors, "from small to nearly all of the image")
    if data.rarest_share < _RARE:
        reason = f"the rarest class is in {100 * data.rarest_share:.1f} % of the images"
        choices.choose("data.repeat_threshold", 0.1, f"{reason}: it is shown more often")


def _choose_detector(choices: _Choices, machine: MachineFacts, size: Size) -> None:
    backbone = size.backbone
    reason = f"what --size {size.name} takes"
    if backbone.startswith("timm:") and not machine.has_timm:
        backbone = size.fallback
        reason = "timm is not installed (pip install 'rncdl[demo]' brings a better one)"
    backbone = choices.choose("detector.backbone", backbone, reason)
    choices.choose("detector.frozen_blocks", 2, "stem and first stage stay as pretrained")
    choices.choose("detector.norm", "frozen", "small batches have no statistics of their own")
    if backbone == LITE0:
        pixels = (127.5, 127.5, 127.5)
        choices.choose("detector.pixel_mean", pixels, "as the backbone was pretrained")
        choices.choose("detector.pixel_std", pixels, "as the backbone was pretrained")


def _choose_training(choices: _Choices, data: DataFacts, size: Size) -> None:
    batch = choices.choose("train.batch_size", size.batch_images, f"what --size {size.name} takes")
    wanted = math.ceil(size.epochs * data.num_labelled / batch)
    steps = min(max(wanted, size.least_steps), size.most_steps)
    epochs = steps * batch / max(1, data.num_labelled)
    steps = choices.choose("train.steps", steps, f"each labelled image {epochs:.1f} times")
    choices.choose("train.rate", size.rate_per_image * batch, "in proportion to the batch")
    choices.choose("train.warmup_steps", round(_WARMUP * steps), "a sixth of the steps")
    choices.choose("train.schedule", "cosine", "ends at zero, whatever the number of steps")
    every = max(1, steps // _CHECKPOINTS)
    choices.choose("train.checkpoint_every", every, "a kill loses a twentieth at most")
    choices.choose("train.log_every", max(1, min(20, steps // _CURVE_POINTS)), "for the curves")
    if data.num_val:
        every = max(1, steps // _MEASUREMENTS)
        choices.choose("train.evaluate_every", every, "known AP on --val, four times")
    if data.has_masks:
        choices.choose("predict.refinements", 2, "boxes of new classes fit better")
        choices.choose("predict.mask_share", 0.5, "boxes of new classes fit better")


def _choose_discovery(choices: _Choices, data: DataFacts, size: Size) -> None:
    number, reason = number_of_clusters(data, size)
    choices.choose("discover.heads", (number,), reason)
    batch = choices.choose("discover.batch_images", 8, "the rest of the batch is in its memory")
    choices.choose("discover.labelled_images", 8, "as many as of the pool")
    wanted = math.ceil(size.pool_epochs * data.num_pool / batch)
    steps = min(max(wanted, size.least_discover_steps), size.most_discover_steps)
    epochs = steps * batch / max(1, data.num_pool)
    steps = choices.choose("discover.steps", steps, f"each image {epochs:.1f} times")
    choices.choose("discover.warmup_steps", round(_WARMUP * steps), "a sixth of the steps")
    every = max(1, steps // _CHECKPOINTS)
    choices.choose("discover.checkpoint_every", every, "a kill loses a twentieth at most")
    choices.choose("discover.log_every", max(1, min(50, steps // _CURVE_POINTS)), "for the curves")


def _choose_for_teacher(choices: _Choices, size: Size) -> None:
    """What a teacher needs, where the user wants one."""
    if not choices.has_said("discover.teacher"):
        return
    if choices.choose("discover.teacher", "none", "") == "none":
        return
    choices.choose("teacher.crop_px", size.teacher_px, "side of what the teacher is shown")
    choices.choose("detector.localisation", True, "how surely a region is an object")
    choices.choose("segmentation.segmenter", "grabcut", "if objects are told better cut out")
    if choices.has_said("discover.neighbours") and choices.choose("discover.neighbours", 0, ""):
        return  # such heads teach themselves, and hear of no background
    choices.choose("predict.known", "discovered", "heads with a teacher know the background")


def _choose_loading(choices: _Choices, data: DataFacts, machine: MachineFacts) -> None:
    cores = max(1, machine.num_cores // machine.num_processes)
    if machine.is_gpu:
        workers, reason = min(8, cores), "they load images while the GPU computes"
    else:
        workers, reason = 0, "the cores are busy with the training itself"
    workers = choices.choose("data.workers", workers, reason)
    decoded_mb = 3 * data.num_labelled * data.short_side_px**2 * data.long_over_short / 2**20
    room_mb = min(_MOST_CACHE_MB, _CACHE_SHARE * machine.memory_bytes / 2**20)
    if workers == 0 and not machine.is_gpu and decoded_mb <= room_mb:
        choices.choose("data.cache_mb", math.ceil(decoded_mb), "all images fit into memory")
    if data.num_bad_images:
        reason = f"{data.num_bad_images} images cannot be used"
        choices.choose("data.on_bad_image", "skip", f"{reason}: they are passed over and noted")


def _round_up(px: float) -> int:
    return math.ceil(px / _PX_STEP - 1e-9) * _PX_STEP
