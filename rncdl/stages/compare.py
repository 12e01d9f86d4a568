"""`rncdl compare`: the systems of the paper's comparison, on one detector and one bank."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from rncdl.baselines.methods import METHODS, Material
from rncdl.baselines.published import CEILING_KEY, COMPARED, RANDOM_HEAD_KEY, RNCDL_KEY, SOURCE
from rncdl.config import change
from rncdl.discovery.training import Diverged
from rncdl.evaluation.comparison import Comparison, Line
from rncdl.prediction import classify_as_trained
from rncdl.run_folder import RunFolder
from rncdl.stages.discover import needs_online
from rncdl.stages.evaluate import head_systems
from rncdl.stages.loading import build_heads, load_detector
from rncdl.stages.measure import System
from rncdl.stages.rows import (
    Contender,
    Ground,
    Trained,
    run_contenders,
    train_discovery,
)
from rncdl.stages.tables import (
    Begun,
    TableRequest,
    begin_table,
    open_ground,
    parse_names,
    parse_numbers,
    write_tables,
)
from rncdl.stages.train import begin_training, resume_training
from rncdl.table_folder import TableFolder
from rncdl.training.interruption import Interrupted, stop_request
from rncdl.training.progress import say
from rncdl.training.schedule import shorten_schedule

CEILING_SHARE = 4
"""Unless told otherwise, the ceiling takes the supervised phase's steps divided by this."""


@dataclass(frozen=True)
class Oracle:
    """A training file with all classes labelled, for the fully supervised detector alone."""

    labelled: Path
    images: Path | None = None
    steps: int | None = None


def method_names() -> list[str]:
    """Every system that can be compared, in the order of the table."""
    known = [*METHODS, RANDOM_HEAD_KEY, RNCDL_KEY, CEILING_KEY]
    listed = [line.key for line in COMPARED if line.key in known]
    return [*(key for key in known if key not in listed), *listed]


def compare(
    request: TableRequest, *, name: str, methods: str, seeds: str, oracle: Oracle | None
) -> None:
    """Train and measure the chosen systems; tables on the screen and in the run folder."""
    chosen = parse_names(methods, method_names(), option="--methods")
    numbers = parse_numbers(seeds, option="--seeds", least=0)
    folder = TableFolder(RunFolder(request.run).table_dir("compare", name))
    begun = begin_table(request, folder)
    if CEILING_KEY in chosen and oracle is not None:
        _train_ceiling(begun, oracle, seed=numbers[0])
    lines = [_line(key, with_ceiling=folder.ceiling.detector_file.is_file()) for key in chosen]
    # One ceiling is enough: what it tells does not hang on the last decimal.
    seeds_of = {key: numbers[:1] if key == CEILING_KEY else numbers for key in chosen}
    with open_ground(begun) as ground:
        workshop = _Workshop(ground)
        contenders = [
            Contender(line.key, line.title, seeds_of[line.key], workshop.train[line.key])
            for line in lines
            if line.left_out is None
        ]
        run_contenders(contenders, ground)
        if not ground.processes.is_main:
            return
    outcomes = {key: folder.outcomes(key, seeds_of[key]) for key in chosen}
    table = Comparison("comparison", f"Comparison on {request.val.name}", lines, outcomes, SOURCE)
    write_tables(folder, [table], heading=f"{begun.run.path.resolve().name}: comparison")


def _line(key: str, *, with_ceiling: bool) -> Line:
    line = next((line for line in COMPARED if line.key == key), Line(key, key))
    if key == CEILING_KEY and not with_ceiling:
        return replace(
            line, left_out="it needs --oracle, a training file with all classes labelled"
        )
    return line


class _Workshop:
    """How each system is trained, by its key."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self._found_regions: dict[int, Tensor] = {}
        self.train: Mapping[str, Callable[[int], Trained]] = {
            **{key: partial(self._train_baseline, key) for key in METHODS},
            RANDOM_HEAD_KEY: self._attach_random_head,
            RNCDL_KEY: self._discover,
            CEILING_KEY: self._load_ceiling,
        }

    def _train_baseline(self, key: str, seed: int) -> Trained:
        ground = self.ground
        num_clusters = ground.settings.discover.heads[0]
        material = Material(
            detector=ground.detector,
            bank=ground.bank(),
            pool=ground.pool,
            num_clusters=num_clusters,
            settings=ground.settings,
            seed=seed,
            found_regions=self._found_regions,
            folder=ground.folder.training(key, seed).path,
        )
        # The process that trains decides when to stop; those that wait hear of it from that one.
        with nullcontext() if ground.processes.is_main else stop_request():
            made = ground.processes.from_main(partial(_train_or_tell, key, material))
        if isinstance(made, BaseException):
            raise made
        system = System(
            f"seed{seed}",
            made.to(ground.processes.device),
            num_clusters,
            by_objectness=ground.settings.predict.score == "objectness",
        )
        return Trained(ground.detector, ground.split, [system])

    def _attach_random_head(self, seed: int) -> Trained:
        """What RNCDL starts from at this seed."""
        ground = self.ground
        torch.manual_seed(seed)
        heads = build_heads(ground.detector, ground.settings.discover)
        heads.to(ground.detector.device).eval()
        systems = head_systems(ground.detector, heads, ground.settings, prefix=f"seed{seed}_")
        return Trained(ground.detector, ground.split, systems)

    def _discover(self, seed: int) -> Trained:
        settings = change(self.ground.settings, seed=seed)
        bank = None if needs_online(settings.discover) else self.ground.bank()
        return train_discovery(self.ground, RNCDL_KEY, settings, bank=bank)

    def _load_ceiling(self, seed: int) -> Trained:
        ceiling = self.ground.folder.ceiling
        split = ceiling.split()
        detector = load_detector(ceiling, self.ground.settings, split)
        system = System(f"seed{seed}", classify_as_trained(detector), None)
        return Trained(detector, split, [system])


def _train_or_tell(key: str, material: Material) -> nn.Module | Diverged | Interrupted:
    """A baseline's classifier, on the CPU, or why there is none: all processes must be told."""
    try:
        return METHODS[key](material).cpu()
    except (Diverged, Interrupted) as reason:
        return reason


def _train_ceiling(begun: Begun, oracle: Oracle, *, seed: int) -> None:
    """Train the run's detector further with all classes labelled, where it is not done yet."""
    ceiling = begun.folder.ceiling
    if ceiling.detector_file.is_file():
        return
    say(f"The fully supervised detector, in {ceiling.path}")
    if ceiling.exists:
        resume_training(ceiling.path, [])
        return
    steps = oracle.steps or max(1, begun.settings.train.steps // CEILING_SHARE)
    begin_training(
        ceiling.path,
        oracle.labelled,
        images=oracle.images,
        known=None,
        val=None,
        val_images=None,
        start_from=begun.run.path,
        settings=change(
            begun.settings, seed=seed, train=shorten_schedule(begun.settings.train, steps)
        ),
    )
