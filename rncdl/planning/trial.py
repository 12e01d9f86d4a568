"""A few steps of each phase on this machine: how long they take, and how much memory."""

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from rncdl.classes import KnownLabels
from rncdl.config import Settings, change
from rncdl.data.samples import Sample
from rncdl.data.viewed_images import Pool, ViewedImage
from rncdl.detector.losses import SupervisedStep
from rncdl.detector.model import Detector
from rncdl.detector.training_steps import accumulate_gradients, cut_batch, open_training_loader
from rncdl.discovery.feeding import DiscoveryBatch
from rncdl.discovery.filling import time_extraction
from rncdl.discovery.object_bank import open_showing
from rncdl.discovery.recipe import BankRecipe
from rncdl.discovery.step import Labelling, Starts, discovery_step
from rncdl.errors import UserError
from rncdl.models import build_heads, new_detector
from rncdl.training.optimizer import make_sgd
from rncdl.training.processes import Processes, choose_precision

_MEMORY_SHARE = 0.7
"""Of the free memory, what a step may take: the rest is for what a trial does not see."""
_TRAIN_STEPS, _BANK_BATCHES, _DISCOVER_STEPS = 5, 3, 10
"""How much of each phase is timed: a machine that does other work too is not even."""


@dataclass(frozen=True)
class Trial:
    """What this machine took."""

    train_step_s: float
    read_image_s: float
    """to decode one image, in all its views"""
    bank_image_s: float
    """to extract one image's features, in all its views, decoding included"""
    discover_step_s: float
    memory_bytes: int
    """the most at any time: of the GPU where there is one, else of the process"""
    accumulate: int
    """parts that a batch has to be cut into, to fit into memory"""
    object_image_s: float = 0.0
    """to show one image's objects to the teacher, if there is one"""


def try_out(settings: Settings, pool: Pool, processes: Processes, *, memory_bytes: int) -> Trial:
    """Take a few steps of each phase, and forget what was learned.

    `memory_bytes`: what is free. A batch that does not fit is cut into parts.
    """
    alone = Processes(rank=0, count=1, device=processes.device)
    detector = _new_detector(settings, pool.labels, alone)
    settings = _fitting(settings, detector, pool.labels, alone, memory_bytes=memory_bytes)
    while True:
        try:
            train_step_s = _time_training(settings, detector, pool.labels, alone)
            break
        except torch.OutOfMemoryError as error:
            settings = _cut_further(settings, error)
    read_image_s, bank_image_s = _time_bank(settings, detector, pool)
    return Trial(
        object_image_s=_time_objects(settings, detector, pool),
        train_step_s=train_step_s,
        read_image_s=read_image_s,
        bank_image_s=bank_image_s,
        discover_step_s=_time_discovery(settings, detector),
        memory_bytes=peak_memory_bytes(alone.device),
        accumulate=settings.train.accumulate,
    )


def time_one_image(settings: Settings, labels: KnownLabels, processes: Processes) -> float:
    """Seconds that one image takes in training, where a whole batch would keep a user waiting."""
    alone = Processes(rank=0, count=1, device=processes.device)
    detector = _new_detector(settings, labels, alone)
    one = change(settings, train={"batch_size": 1, "accumulate": 1}, data={"workers": 0})
    return _time_training(one, detector, labels, alone, num_timed=1)


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory in use so far: of the GPU, else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _new_detector(settings: Settings, labels: KnownLabels, processes: Processes) -> Detector:
    torch.manual_seed(settings.seed)
    detector = new_detector(settings, labels)
    detector.load_backbone_weights()
    return detector.to(processes.device)


def _fitting(
    settings: Settings,
    detector: Detector,
    labels: KnownLabels,
    processes: Processes,
    *,
    memory_bytes: int,
) -> Settings:
    """The settings with a batch in as many parts as one image's step says it takes.

    A GPU says by itself when it is full; a machine's memory must not be tried to the end.
    """
    if processes.device.type == "cuda":
        return settings
    one = change(settings, train={"batch_size": 1, "accumulate": 1}, data={"workers": 0})
    before = peak_memory_bytes(processes.device)
    _time_training(one, detector, labels, processes, num_timed=1)
    of_one = peak_memory_bytes(processes.device) - before
    batch = settings.train.batch_size
    accumulate = settings.train.accumulate
    while accumulate < batch and batch / accumulate * of_one > _MEMORY_SHARE * memory_bytes:
        accumulate = min(2 * accumulate, batch)
    return change(settings, train={"accumulate": accumulate})


def _cut_further(settings: Settings, error: torch.OutOfMemoryError) -> Settings:
    train = settings.train
    torch.cuda.empty_cache()
    if train.accumulate >= train.batch_size:
        raise UserError(
            "Not even one image at a time fits into the GPU's memory. Take a smaller --size, a "
            f"smaller data.eval_short_side_px (now {settings.data.eval_short_side_px}), or "
            "device=cpu."
        ) from error
    return change(settings, train={"accumulate": min(2 * train.accumulate, train.batch_size)})


def _time_training(
    settings: Settings,
    detector: Detector,
    labels: KnownLabels,
    processes: Processes,
    *,
    num_timed: int = _TRAIN_STEPS,
) -> float:
    """Mean seconds of a step, reading its images included, after one that warms up."""
    train = settings.train
    precision = choose_precision(train.precision, processes.device)
    model = SupervisedStep(detector.train())
    optimizer = make_sgd(detector, weight_decay=train.weight_decay)
    scaler = torch.amp.GradScaler(processes.device.type, enabled=precision == torch.float16)
    loader = open_training_loader(
        labels,
        with_masks=detector.mask_head is not None,
        settings=change(settings, data={"on_bad_image": "skip", "cache_mb": 0}),
        processes=processes,
        first_step=0,
    )
    batches = (batch for batch in loader)

    def step() -> None:
        samples: list[Sample] = next(batches).samples
        accumulate_gradients(
            model,
            cut_batch(samples, train, processes),
            num_images=train.batch_size,
            scaler=scaler,
            precision=precision,
        )
        optimizer.step()  # at a rate of zero: what is tried stays untaught
        optimizer.zero_grad(set_to_none=True)

    try:
        return _mean_seconds(step, processes.device, num_timed=num_timed)
    finally:
        batches.close()  # ends the processes that load images


def _time_bank(settings: Settings, detector: Detector, pool: Pool) -> tuple[float, float]:
    """Seconds to read one image, and to make its part of the bank.

    The latter includes reading where no other process does it meanwhile.
    """
    recipe = BankRecipe.from_settings(settings)
    dataset = recipe.view_images(pool, on_bad_image="skip")
    size = settings.predict.batch_size
    places = range(0, len(pool), max(1, len(pool) // (size * _BANK_BATCHES)))[
        : size * _BANK_BATCHES
    ]
    began = time.perf_counter()
    items = [dataset[index, recipe.item_seed(index)] for index in places]
    read_s = (time.perf_counter() - began) / len(items)
    batches = [items[first : first + size] for first in range(0, len(items), size)]
    seconds = [time_extraction(detector.eval(), batch, recipe) for batch in batches]
    extract_s = sum(seconds) / len(items)
    return read_s, extract_s + (read_s if settings.data.workers == 0 else 0.0)


def _time_objects(settings: Settings, detector: Detector, pool: Pool) -> float:
    """Seconds for one image's objects, reading included; at most, where they may be cut out."""
    if settings.discover.teacher == "none":
        return 0.0
    dataset, finder = open_showing(detector.eval(), pool, settings)
    size = settings.predict.batch_size
    places = range(0, len(pool), max(1, len(pool) // size))[:size]

    def look() -> None:
        seen = [dataset[index, 0] for index in places]
        finder.look([one for one in seen if isinstance(one, ViewedImage)])

    return _mean_seconds(look, detector.device, num_timed=1) / len(places)


def _time_discovery(settings: Settings, detector: Detector) -> float:
    """Seconds of a step on features drawn at random, with the memory full."""
    discover, device = settings.discover, detector.device
    heads = build_heads(detector, discover).to(device).train()
    optimizer = make_sgd(heads, weight_decay=0.0)
    rows, width = discover.batch_images * discover.regions_per_image, heads.known.linear.in_features
    draw = torch.Generator().manual_seed(0)
    first, second = (torch.rand(rows, width, generator=draw).to(device) for _ in range(2))
    memory = torch.rand(rows * discover.memory_batches, width, generator=draw).to(device)
    num_labelled = discover.labelled_images * discover.matched_regions_per_image
    labelled = torch.rand(num_labelled, width, generator=draw).to(device)
    labels = torch.randint(heads.num_known, (num_labelled,), generator=draw).to(device)
    batch = DiscoveryBatch((first, second), labelled, labels)
    starts: Starts | None = None

    def step() -> None:
        nonlocal starts
        loss, _, starts = discovery_step(
            heads,
            batch,
            memories=(memory, memory),
            labelling=Labelling(discover.pseudo_labels, discover.sharpness, discover.max_rounds),
            alpha=discover.alpha,
            starts=starts,
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return _mean_seconds(step, device, num_timed=_DISCOVER_STEPS)


def _mean_seconds(step: Callable[[], None], device: torch.device, *, num_timed: int) -> float:
    step()
    _wait_for(device)
    began = time.perf_counter()
    for _ in range(num_timed):
        step()
    _wait_for(device)
    return (time.perf_counter() - began) / num_timed


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
