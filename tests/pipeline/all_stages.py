"""Run in each of two processes: train, stop and resume, fill the bank, discover, evaluate.

usage: all_stages.py WORLD RUN SETTING...
"""

import signal
import sys
from pathlib import Path

import pytest

from rncdl.config import resolve_settings
from rncdl.detector import training
from rncdl.inputs import named_inputs
from rncdl.run_folder import RunFolder, TrainingInputs
from rncdl.stages.discover import discover
from rncdl.stages.evaluate import evaluate
from rncdl.stages.train import begin_training, resume_training
from rncdl.training.interruption import Interrupted
from rncdl.training.processes import join_processes

seed_step = training.seed_step
asked: list[int] = []


def ask_process_1_to_stop(seed: int, *, step: int, rank: int) -> None:
    """As someone would at one of two machines."""
    if rank == 1 and step == 2 and not asked:
        asked.append(step)
        signal.raise_signal(signal.SIGTERM)
    seed_step(seed, step=step, rank=rank)


def run_stages(world: Path, run: Path, overrides: list[str]) -> None:
    with pytest.raises(Interrupted) as stop:
        begin_training(
            run,
            TrainingInputs.of_files(world / "labelled.json"),
            settings=resolve_settings(overrides=overrides),
        )
    assert stop.value.exit_code == 128 + signal.SIGTERM  # also where nobody asked
    resume_training(run, [])
    discover(run, named_inputs(RunFolder(run), [world / "unlabelled.json"]))
    evaluate(run, world / "val.json", images=None, name="main", train_labels=None, overrides=[])


if __name__ == "__main__":
    training.seed_step = ask_process_1_to_stop
    with join_processes("cpu") as joined:
        assert joined.count == 2
        run_stages(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
