"""Every system of the comparison: how it is trained, and what it comes to."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial

import torch
from torch import nn

from rncdl.config import change
from rncdl.discovery.phase import needs_online
from rncdl.discovery.training import Diverged
from rncdl.experiments.baselines.methods import METHODS, BaselineTask
from rncdl.experiments.published import (
    CEILING_KEY,
    COMPARED,
    RANDOM_HEAD_KEY,
    RNCDL_KEY,
)
from rncdl.experiments.running import Trained, by_each_head, train_discovery
from rncdl.experiments.setup import Setup
from rncdl.models import build_heads, load_detector
from rncdl.prediction.classifier import baseline_classifier, trained_classifier
from rncdl.training.interruption import Interrupted, stop_request


def system_names() -> list[str]:
    """Every system that can be compared, in the order of the table."""
    listed = [line.key for line in COMPARED if line.key in SYSTEMS]
    return [*(key for key in SYSTEMS if key not in listed), *listed]


def _train_baseline(key: str, setup: Setup, seed: int) -> Trained:
    """A baseline is one process's work; the others wait and are given its classifier."""
    num_clusters = setup.settings.discover.heads[0]
    task = BaselineTask(
        detector=setup.detector,
        bank=setup.bank(),
        pool=setup.pool,
        num_clusters=num_clusters,
        settings=setup.settings,
        seed=seed,
        found_regions=setup.found_regions,
        folder=setup.folder.training(key, seed).path,
    )
    # The process that trains decides when to stop; those that wait hear of it from that one.
    with nullcontext() if setup.processes.is_main else stop_request():
        made = setup.processes.from_main(partial(_train_or_tell, key, task))
    if isinstance(made, BaseException):
        raise made
    classifier = baseline_classifier(
        setup.detector,
        made,
        setup.split.known,
        num_clusters=num_clusters,
        score=setup.settings.predict.score,
    )
    return Trained(setup.detector, setup.split, {f"seed{seed}": classifier})


def _train_or_tell(key: str, task: BaselineTask) -> nn.Module | Diverged | Interrupted:
    """A baseline's classifier, on the CPU, or why there is none: all processes must be told."""
    try:
        return METHODS[key](task).cpu()
    except (Diverged, Interrupted) as reason:
        return reason


def _attach_random_head(setup: Setup, seed: int) -> Trained:
    """What RNCDL starts from at this seed."""
    torch.manual_seed(seed)
    heads = build_heads(setup.detector, setup.settings.discover)
    settings = change(setup.settings, seed=seed)
    classifiers = by_each_head(setup, setup.detector, heads, settings)
    return Trained(setup.detector, setup.split, classifiers)


def _discover(setup: Setup, seed: int) -> Trained:
    settings = change(setup.settings, seed=seed)
    bank = None if needs_online(settings.discover) else setup.bank()
    return train_discovery(setup, RNCDL_KEY, settings, bank=bank)


def _load_ceiling(setup: Setup, seed: int) -> Trained:
    ceiling = setup.folder.ceiling
    split = ceiling.split()
    detector = load_detector(ceiling, setup.settings, split).to(setup.processes.device).eval()
    return Trained(detector, split, {f"seed{seed}": trained_classifier(detector, split.known)})


SYSTEMS: Mapping[str, Callable[[Setup, int], Trained]] = {
    **{key: partial(_train_baseline, key) for key in METHODS},
    RANDOM_HEAD_KEY: _attach_random_head,
    RNCDL_KEY: _discover,
    CEILING_KEY: _load_ceiling,
}
"""Name -> training with a seed. The ceiling's detector is trained before, in the table's folder."""
