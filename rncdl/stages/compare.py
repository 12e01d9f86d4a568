"""`rncdl compare`: the systems of the paper's comparison, on one detector and one bank."""

from dataclasses import dataclass, replace
from pathlib import Path

from rncdl.config import change
from rncdl.evaluation.comparison import Comparison, Line
from rncdl.experiments.published import CEILING_KEY, COMPARED, SOURCE
from rncdl.experiments.running import Configuration, run_configurations
from rncdl.experiments.setup import Setup, TableRequest, open_setup
from rncdl.experiments.systems import SYSTEMS, system_names
from rncdl.experiments.table_folder import TableFolder
from rncdl.experiments.tables import parse_names, parse_numbers, write_tables
from rncdl.run_folder import RunFolder, TrainingInputs
from rncdl.stages.train import begin_training, resume_training
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


def compare(
    request: TableRequest, *, name: str, methods: str, seeds: str, oracle: Oracle | None
) -> None:
    """Train and measure the chosen systems; tables on the screen and in the run folder."""
    chosen = parse_names(methods, system_names(), option="--methods")
    numbers = parse_numbers(seeds, option="--seeds", least=0)
    folder = TableFolder(RunFolder(request.run).table_dir("compare", name))
    # One ceiling is enough: what it tells does not hang on the last decimal.
    seeds_of = {key: numbers[:1] if key == CEILING_KEY else numbers for key in chosen}
    with open_setup(request, folder) as setup:
        if CEILING_KEY in chosen and oracle is not None:
            _train_ceiling(setup, oracle, seed=numbers[0])
        lines = [_line(key, with_ceiling=folder.ceiling.detector_file.is_file()) for key in chosen]
        configurations = [
            Configuration(line.key, line.title, seeds_of[line.key], SYSTEMS[line.key])
            for line in lines
            if line.left_out is None
        ]
        run_configurations(configurations, setup)
        if not setup.processes.is_main:
            return
    outcomes = {key: folder.outcomes(key, seeds_of[key]) for key in chosen}
    table = Comparison("comparison", f"Comparison on {request.val.name}", lines, outcomes, SOURCE)
    write_tables(folder, [table], heading=f"{request.run.resolve().name}: comparison")


def _line(key: str, *, with_ceiling: bool) -> Line:
    line = next((line for line in COMPARED if line.key == key), Line(key, key))
    if key == CEILING_KEY and not with_ceiling:
        return replace(
            line, left_out="it needs --oracle, a training file with all classes labelled"
        )
    return line


def _train_ceiling(setup: Setup, oracle: Oracle, *, seed: int) -> None:
    """Train the run's detector further with all classes labelled, where it is not done yet."""
    ceiling = setup.folder.ceiling
    if ceiling.detector_file.is_file():
        return
    if setup.processes.is_main:
        say(f"The fully supervised detector, in {ceiling.path}")
    if ceiling.exists:
        resume_training(ceiling.path, [])
        return
    steps = oracle.steps or max(1, setup.settings.train.steps // CEILING_SHARE)
    begin_training(
        ceiling.path,
        TrainingInputs.of_files(oracle.labelled, images=oracle.images, start_from=setup.run.path),
        settings=change(
            setup.settings,
            seed=seed,
            # With all classes labelled nothing is left to be found.
            train={**shorten_schedule(setup.settings.train, steps), "objects_at": 0},
        ),
    )
