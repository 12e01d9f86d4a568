"""Objects that nobody labelled: found in the middle of a training, and learned from."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import rncdl
from rncdl.run_folder import RunFolder
from rncdl.training import saving
from rncdl.training.checkpoints import list_checkpoints
from rncdl.training.interruption import Interrupted
from rncdl.training.journal import read_journal
from tests.pipeline.tiny import SETTINGS, WITH_OBJECTS, run_rncdl

pytestmark = pytest.mark.usefixtures("objects_everywhere")


def begin(world: Path, run: Path, *overrides: str) -> list[object]:
    words = ["train", "--run", run, "--labelled", world / "labelled.json"]
    return [*words, *SETTINGS, *WITH_OBJECTS, *overrides]


def same_weights(first: Path, second: Path) -> bool:
    one, other = (load_file(run / "detector.safetensors") for run in (first, second))
    return all(torch.equal(one[key], other[key]) for key in one)


@pytest.fixture
def uninterrupted(world: Path, tmp_path: Path, objects_everywhere: None) -> Path:
    run_rncdl(*begin(world, tmp_path / "whole"))
    return tmp_path / "whole"


def stopped_after(function: Callable[..., Any], times: int) -> Callable[..., Any]:
    """The same function, but as if somebody pressed Ctrl-C when it has returned so often."""
    calls = count(1)

    def work(*words: Any, **options: Any) -> Any:
        result = function(*words, **options)
        if next(calls) == times:
            raise Interrupted("Stopped.", 130)
        return result

    return work


STOPS = {
    "before the look": ("rncdl.training.saving.save_checkpoint", 1),
    "when it begins": ("rncdl.detector.training.save_checkpoint", 1),
    "in the middle of it": ("rncdl.data.unlabelled_objects.ObjectsFolder.write", 2),
    "at its end": ("rncdl.detector.training.look_for_objects", 1),
    "after it": ("rncdl.training.saving.save_checkpoint", 2),
}


@pytest.mark.parametrize("stop", STOPS)
def test_a_training_resumes_bit_for_bit_in_every_phase(
    world: Path, uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: str
):
    run, (place, times) = tmp_path / "stopped", STOPS[stop]
    with monkeypatch.context() as patch:
        patch.setattr(place, stopped_after(resolve_name(place), times))
        run_rncdl(*begin(world, run), code=130)
    assert not (run / "detector.safetensors").exists()
    run_rncdl("train", "--run", run, "--resume")
    assert same_weights(run, uninterrupted)
    assert [r["step"] for r in read_journal(RunFolder(run).train_journal)] == [2, 4, 6]


def test_objects_change_what_is_learned_from_then_on(trained: Path, uninterrupted: Path):
    objects = RunFolder(uninterrupted).train_objects.read()
    assert len(objects) > 16
    assert not same_weights(uninterrupted, trained)
    here, there = (read_journal(RunFolder(run).train_journal) for run in (uninterrupted, trained))
    assert here[0]["loss"] == there[0]["loss"]  # of the first two steps, before the look
    assert here[1]["loss"] != there[1]["loss"]


def test_the_classifier_may_learn_that_they_are_of_no_known_class(
    world: Path, uninterrupted: Path, tmp_path: Path
):
    run_rncdl(*begin(world, tmp_path / "not_known", "train.objects_class=not_known"))
    prints = [
        RunFolder(run).train_objects.fingerprint()
        for run in (tmp_path / "not_known", uninterrupted)
    ]
    assert prints[0] == prints[1]
    assert not same_weights(tmp_path / "not_known", uninterrupted)


def test_a_training_goes_on_with_its_own_objects_alone(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = RunFolder(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(saving, "save_checkpoint", stopped_after(saving.save_checkpoint, 2))
        run_rncdl(*begin(world, run.path), code=130)
    assert list_checkpoints(run.train_checkpoints)
    run.train_objects.part_file(1).unlink()
    said = run_rncdl("train", "--run", run.path, "--resume", code=2)
    assert "not the objects that this training began to learn from" in said


def test_a_detector_that_learns_the_iou_of_regions_ranks_by_it(world: Path, tmp_path: Path):
    run = tmp_path / "run"
    run_rncdl(*begin(world, run, "detector.localisation=true", "train.steps=4"))
    assert read_journal(RunFolder(run).train_journal)[0]["iou"] > 0
    run_rncdl(
        *("discover", "--run", run, "--unlabelled", world / "unlabelled.json"),
        *("discover.steps=2", "predict.score=localisation"),
    )
    image = next((world / "images").glob("**/*.*"))
    found = [
        rncdl.load(run, settings={"predict.score": score}).predict(image).scores
        for score in ("localisation", "objectness")
    ]
    assert found[0] is not None
    assert found[1] is not None
    assert not torch.equal(found[0][:3], found[1][:3])


def test_a_missing_segmenter_is_told_of_before_the_first_step(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.undo()
    said = run_rncdl(*begin(world, tmp_path / "run"), code=2)
    assert "segmentation.segmenter=grabcut" in said
    assert "train:" not in said
