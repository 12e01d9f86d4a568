"""Configurations times seeds to results: train, measure, save, one after the other."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from rncdl.classes import ClassSplit
from rncdl.config import Settings
from rncdl.detector.model import Detector
from rncdl.discovery.bank import Bank
from rncdl.discovery.divergence import has_collapsed, has_exploded
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.discovery.phase import starting_detector, train_from_bank, train_online
from rncdl.discovery.training import Diverged
from rncdl.evaluation.outcomes import Outcome, numbers_of
from rncdl.experiments.measuring import Examination, measure
from rncdl.experiments.setup import Setup
from rncdl.prediction.classifier import Classifier, discovery_classifier
from rncdl.training.interruption import Interrupted
from rncdl.training.journal import read_journal
from rncdl.training.progress import say


@dataclass(frozen=True)
class Trained:
    """What a training has made, ready to be measured."""

    detector: Detector
    split: ClassSplit
    """the classes that the detector knows"""
    classifiers: Mapping[str, Classifier]
    """one per novel head; their names are the training's own"""
    problem: str | None = None


@dataclass(frozen=True)
class Configuration:
    """A system, or a choice of settings, that is trained once per seed."""

    key: str
    title: str
    seeds: Sequence[int]
    train: Callable[[Setup, int], Trained]
    """by the seed; may raise `Diverged`"""


def run_configurations(configurations: Sequence[Configuration], setup: Setup) -> None:
    """Every training that is not finished yet, with its outcome saved in the table's folder."""
    missing = {one.key: setup.folder.missing_seeds(one.key, one.seeds) for one in configurations}
    pending = [one for one in configurations if missing[one.key]]
    setup.processes.wait_for_all()  # nobody saves before everybody has seen what is missing
    for number, configuration in enumerate(pending):
        if setup.processes.is_main:
            seeds = ", ".join(map(str, missing[configuration.key]))
            left = ", ".join(one.title for one in pending[number + 1 :]) or "nothing"
            say(f"[{number + 1}/{len(pending)}] {configuration.title}: seed {seeds}. Then: {left}.")
        try:
            _run(configuration, missing[configuration.key], setup)
        except Interrupted as stop:
            raise Interrupted(
                f"Stopped at {configuration.title}, {len(pending) - number} of "
                f"{len(configurations)} systems left; finished rows are saved. The same command "
                "goes on from there.",
                stop.exit_code,
            ) from stop


def _run(configuration: Configuration, seeds: Sequence[int], setup: Setup) -> None:
    """Train every seed, measure them together, save."""
    trained: dict[int, Trained] = {}
    seconds: dict[int, float] = {}
    outcomes = []
    for seed in seeds:
        began = time.monotonic()
        try:
            trained[seed] = configuration.train(setup, seed)
        except Diverged as error:
            problem = f"diverged: {error}"
            outcomes.append(Outcome(configuration.key, seed, time.monotonic() - began, problem, ()))
        seconds[seed] = time.monotonic() - began
    for group in _sharing_detectors(trained):
        outcomes += _measure(configuration, {seed: trained[seed] for seed in group}, seconds, setup)
    if setup.processes.is_main:
        for outcome in outcomes:
            if outcome.problem:
                say(f"{configuration.title}, seed {outcome.seed}: {outcome.problem}")
            outcome.save(setup.folder.row_file(configuration.key, outcome.seed))
        setup.folder.clear(configuration.key)
    setup.processes.wait_for_all()


def _sharing_detectors(trained: dict[int, Trained]) -> Iterable[list[int]]:
    """Seeds whose classifiers can be measured in one look at the images."""
    groups: dict[int, list[int]] = {}
    for seed, one in trained.items():
        groups.setdefault(id(one.detector), []).append(seed)
    return groups.values()


def _measure(
    configuration: Configuration,
    trained: dict[int, Trained],
    seconds: dict[int, float],
    setup: Setup,
) -> list[Outcome]:
    """Outcomes of trainings that share a detector; none but in the first process."""
    began = time.monotonic()
    first = next(iter(trained.values()))
    report = measure(
        first.detector,
        {name: one for each in trained.values() for name, one in each.classifiers.items()},
        Examination(
            setup.truth,
            first.split,
            setup.folder.measuring(configuration.key),
            setup.settings,
            known_ids=setup.split.known_ids(setup.truth),
            with_masks=False,
        ),
        processes=setup.processes,
        cache=setup.cache if first.detector is setup.detector else None,
    )
    if report is None:
        return []
    share = (time.monotonic() - began) / len(trained)
    return [
        Outcome(
            configuration.key,
            seed,
            seconds[seed] + share,
            one.problem,
            tuple(numbers_of(report, name) for name in one.classifiers),
        )
        for seed, one in trained.items()
    ]


def train_discovery(setup: Setup, key: str, settings: Settings, *, bank: Bank | None) -> Trained:
    """A discovery with these settings, from the bank, or online where there is none.

    Goes on where it stopped. Raises `Diverged` where the loss is not finite or worse than
    guessing by far.
    """
    folder = setup.folder.training(key, settings.seed)
    detector = setup.detector
    if bank is None:
        detector = starting_detector(setup.run, settings, setup.pool)
        heads = train_online(
            folder, detector, setup.pool, settings=settings, processes=setup.processes
        )
    else:
        heads = train_from_bank(
            folder,
            detector,
            setup.pool,
            bank,
            settings=settings,
            processes=setup.processes,
            objects=setup.objects(settings),
        )
    records = read_journal(folder.journal)
    problem = find_problem(heads, records[-1]) if records else None
    detector.to(setup.processes.device).eval()
    return Trained(detector, setup.split, by_each_head(setup, detector, heads, settings), problem)


def by_each_head(
    setup: Setup, detector: Detector, heads: DiscoveryHeads, settings: Settings
) -> dict[str, Classifier]:
    """A classifier by each of the novel heads, named after the seed."""
    return {
        f"seed{settings.seed}_head{head}": discovery_classifier(
            detector, heads, setup.split.known, head=head, predict=settings.predict
        )
        for head in range(len(heads.num_clusters))
    }


def find_problem(heads: DiscoveryHeads, figures: dict[str, float]) -> str | None:
    """Why trained heads count as collapsed, by the journal's last figures; None: they do not.

    Raises `Diverged` where they are of no use at all.
    """
    if not all(bool(value.isfinite().all()) for value in heads.state_dict().values()):
        raise Diverged("at the end, weights are not finite")
    for name in ("swapped_loss", "supervised_loss"):
        if has_exploded(figures[name], heads.num_known + max(heads.num_clusters)):
            raise Diverged(f"at the end, {name} is {figures[name]:.3g}, worse than guessing by far")
    num_clusters, in_use = fmean(heads.num_clusters), figures["clusters_in_use"]
    if has_collapsed(in_use, num_clusters):
        return f"collapsed: {in_use:.0f} of {num_clusters:.0f} clusters in use at the end"
    return None
