"""Running the rows of a table: train, measure, save, one after the other, on shared ground."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import torch

from rncdl.classes import ClassSplit
from rncdl.config import Settings
from rncdl.data.records import AnnotationSet
from rncdl.data.viewed_images import Pool
from rncdl.detector.locating import Sightings
from rncdl.detector.model import Detector
from rncdl.discovery.bank import Bank
from rncdl.discovery.divergence import has_collapsed, has_exploded
from rncdl.discovery.filling import open_bank
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.discovery.training import Diverged
from rncdl.evaluation.outcomes import Outcome, numbers_of
from rncdl.run_folder import RunFolder
from rncdl.stages.discover import starting_detector, train_from_bank, train_online
from rncdl.stages.evaluate import head_systems
from rncdl.stages.measure import System, measure
from rncdl.table_folder import TableFolder
from rncdl.training.interruption import Interrupted
from rncdl.training.journal import read_journal
from rncdl.training.processes import Processes
from rncdl.training.progress import say


@dataclass(frozen=True)
class Ground:
    """What all rows of a table share."""

    run: RunFolder
    folder: TableFolder
    settings: Settings
    split: ClassSplit
    detector: Detector
    pool: Pool
    truth: AnnotationSet
    processes: Processes
    sightings: Sightings = field(default_factory=Sightings, repr=False)
    """what the detector has found in the images of `truth`"""
    _banks: dict[Path, Bank] = field(default_factory=dict, repr=False)

    def bank(self, name: str | None = None, *, settings: Settings | None = None) -> Bank:
        """The run's own bank, or, by name, one of the table's with other settings; made once."""
        folder = self.run.bank_dir if name is None else self.folder.bank_dir(name)
        if folder not in self._banks:
            self._banks[folder] = open_bank(
                folder,
                self.detector,
                self.pool,
                run=self.run,
                settings=settings or self.settings,
                processes=self.processes,
            )
        return self._banks[folder]


@dataclass(frozen=True)
class Trained:
    """What a training has made, ready to be measured."""

    detector: Detector
    split: ClassSplit
    systems: Sequence[System]
    """one per novel head; their names are the training's own"""
    problem: str | None = None


@dataclass(frozen=True)
class Contender:
    """A system, or a choice of settings, that is trained once per seed."""

    key: str
    title: str
    seeds: Sequence[int]
    train: Callable[[int], Trained]
    """from the seed; may raise `Diverged`"""


def run_contenders(contenders: Sequence[Contender], ground: Ground) -> None:
    """Every training that is not finished yet, with its outcome saved in the table's folder."""
    missing = {one.key: ground.folder.missing_seeds(one.key, one.seeds) for one in contenders}
    pending = [one for one in contenders if missing[one.key]]
    ground.processes.wait_for_all()  # nobody saves before everybody has seen what is missing
    for number, contender in enumerate(pending):
        if ground.processes.is_main:
            seeds = ", ".join(map(str, missing[contender.key]))
            left = ", ".join(one.title for one in pending[number + 1 :]) or "nothing"
            say(f"[{number + 1}/{len(pending)}] {contender.title}: seed {seeds}. Then: {left}.")
        try:
            _run(contender, missing[contender.key], ground)
        except Interrupted as stop:
            raise Interrupted(
                f"Stopped at {contender.title}, {len(pending) - number} of {len(contenders)} "
                "systems left; finished rows are saved. The same command goes on from there.",
                stop.exit_code,
            ) from stop


def _run(contender: Contender, seeds: Sequence[int], ground: Ground) -> None:
    """Train every seed, measure them together, save."""
    trained: dict[int, Trained] = {}
    seconds: dict[int, float] = {}
    outcomes = []
    for seed in seeds:
        began = time.monotonic()
        try:
            trained[seed] = contender.train(seed)
        except Diverged as error:
            problem = f"diverged: {error}"
            outcomes.append(Outcome(contender.key, seed, time.monotonic() - began, problem, ()))
        seconds[seed] = time.monotonic() - began
    for group in _sharing_detectors(trained):
        outcomes += _measure(contender, {seed: trained[seed] for seed in group}, seconds, ground)
    if ground.processes.is_main:
        for outcome in outcomes:
            if outcome.problem:
                say(f"{contender.title}, seed {outcome.seed}: {outcome.problem}")
            outcome.save(ground.folder.row_file(contender.key, outcome.seed))
        ground.folder.clear(contender.key)
    ground.processes.wait_for_all()


def _sharing_detectors(trained: dict[int, Trained]) -> Iterable[list[int]]:
    """Seeds whose systems can be measured in one look at the images."""
    groups: dict[int, list[int]] = {}
    for seed, one in trained.items():
        groups.setdefault(id(one.detector), []).append(seed)
    return groups.values()


@torch.inference_mode()
def _measure(
    contender: Contender, trained: dict[int, Trained], seconds: dict[int, float], ground: Ground
) -> list[Outcome]:
    """Outcomes of trainings that share a detector; none but in the first process."""
    began = time.monotonic()
    first = next(iter(trained.values()))
    report = measure(
        first.detector,
        [system for one in trained.values() for system in one.systems],
        ground.truth,
        first.split,
        known_ids=ground.split.known_ids(ground.truth),
        frequencies=None,
        folder=ground.folder.measuring(contender.key),
        settings=ground.settings,
        processes=ground.processes,
        with_masks=False,
        sightings=ground.sightings if first.detector is ground.detector else None,
    )
    if report is None:
        return []
    share = (time.monotonic() - began) / len(trained)
    return [
        Outcome(
            contender.key,
            seed,
            seconds[seed] + share,
            one.problem,
            tuple(numbers_of(report, system.name) for system in one.systems),
        )
        for seed, one in trained.items()
    ]


def train_discovery(ground: Ground, key: str, settings: Settings, *, bank: Bank | None) -> Trained:
    """A discovery with these settings, from the bank, or online where there is none.

    Goes on where it stopped. Raises `Diverged` where the loss is not finite or worse than
    guessing by far.
    """
    folder = ground.folder.training(key, settings.seed)
    detector = ground.detector
    if bank is None:
        detector = starting_detector(ground.run, settings, ground.pool)
        heads = train_online(
            folder, detector, ground.pool, settings=settings, processes=ground.processes
        )
    else:
        heads = train_from_bank(
            folder, detector, ground.pool, bank, settings=settings, processes=ground.processes
        )
    records = read_journal(folder.journal)
    problem = find_problem(heads, records[-1]) if records else None
    systems = head_systems(detector, heads.eval(), settings, prefix=f"seed{settings.seed}_")
    return Trained(detector, ground.split, systems, problem)


def find_problem(heads: DiscoveryHeads, figures: dict[str, float]) -> str | None:
    """Why trained heads count as collapsed, by the journal's last figures; None: they do not.

    Raises `Diverged` where they are of no use at all.
    """
    finite = all(bool(torch.isfinite(value).all()) for value in heads.state_dict().values())
    if not finite:
        raise Diverged("at the end, weights are not finite")
    for name in ("swapped_loss", "supervised_loss"):
        if has_exploded(figures[name], heads.num_known + max(heads.num_clusters)):
            raise Diverged(f"at the end, {name} is {figures[name]:.3g}, worse than guessing by far")
    num_clusters, in_use = fmean(heads.num_clusters), figures["clusters_in_use"]
    if has_collapsed(in_use, num_clusters):
        return f"collapsed: {in_use:.0f} of {num_clusters:.0f} clusters in use at the end"
    return None
