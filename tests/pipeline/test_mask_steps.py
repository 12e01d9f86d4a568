"""The second training, of the mask head alone: what it changes, and how it goes on."""

from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch
from safetensors.torch import load_file

from rncdl.run_folder import RunFolder
from rncdl.training.checkpoints import list_checkpoints
from rncdl.training.journal import read_journal
from tests.pipeline.test_objects import stopped_after
from tests.pipeline.tiny import SETTINGS, WITH_MASK_STEPS, run_rncdl

pytestmark = pytest.mark.usefixtures("objects_everywhere")


def begin(world: Path, run: Path, *overrides: str) -> list[object]:
    words = ["train", "--run", run, "--labelled", world / "labelled.json"]
    return [*words, *SETTINGS, *WITH_MASK_STEPS, "train.steps=4", *overrides]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "detector.safetensors")


@pytest.fixture
def whole(world: Path, tmp_path: Path, objects_everywhere: None) -> Path:
    run_rncdl(*begin(world, tmp_path / "whole"))
    return tmp_path / "whole"


def test_only_the_mask_head_and_its_detail_change(world: Path, whole: Path, tmp_path: Path):
    said = run_rncdl(*begin(world, tmp_path / "without", "train.mask_steps=0"))
    assert "mask_detail=4 is learned in train.mask_steps" in said
    with_steps, without = weights(whole), weights(tmp_path / "without")
    assert with_steps.keys() == without.keys()
    changed = {key for key in with_steps if not torch.equal(with_steps[key], without[key])}
    assert {key.split(".")[0] for key in changed} == {"mask_head", "mask_detail"}
    correction = "mask_detail.correction.weight"
    assert not without[correction].any()
    assert with_steps[correction].any()


def test_the_finished_detector_has_looked_again(whole: Path):
    run = RunFolder(whole)
    assert len(run.mask_objects.read()) > 0
    assert run.mask_objects.fingerprint() != run.train_objects.fingerprint()
    assert len(list_checkpoints(run.mask_checkpoints)) == 2
    assert [record["step"] for record in read_journal(run.mask_journal)] == [2]


STOPS = {
    "in the second look": ("rncdl.detector.mask_training.look_for_objects", 1),
    "before its last step": ("rncdl.training.saving.save_checkpoint", 3),
    "after its last step": ("rncdl.training.saving.save_checkpoint", 4),
}


@pytest.mark.parametrize("stop", STOPS)
def test_it_resumes_bit_for_bit(
    world: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: str
):
    run, (place, times) = tmp_path / "stopped", STOPS[stop]
    with monkeypatch.context() as patch:
        patch.setattr(place, stopped_after(resolve_name(place), times))
        run_rncdl(*begin(world, run), code=130)
    assert not (run / "detector.safetensors").exists()
    run_rncdl("train", "--run", run, "--resume")
    one, other = weights(run), weights(whole)
    assert [key for key in one if not torch.equal(one[key], other[key])] == []
    assert [record["step"] for record in read_journal(RunFolder(run).mask_journal)] == [2]


def test_masks_of_a_trained_detector_with_detail_are_predicted(world: Path, whole: Path):
    images = sorted((world / "images").glob("**/*.*"))[:2]
    run_rncdl("predict", *images, "--run", whole, "--out", whole / "found")
    assert (whole / "found" / "predictions.json").is_file()


def test_without_masks_in_the_labels_nothing_is_learned_or_looked_for(world: Path, tmp_path: Path):
    run = tmp_path / "boxes"
    run_rncdl(*begin(world, run, "detector.masks='off'", "train.objects_at=0", "train.steps=2"))
    assert not RunFolder(run).mask_checkpoints.exists()


def test_where_no_objects_are_wanted_annotations_alone_teach(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.undo()  # no segmenter is needed
    run = tmp_path / "annotated"
    run_rncdl(*begin(world, run, "train.objects_at=0"))
    assert not RunFolder(run).mask_objects.path.exists()
    assert weights(run)["mask_detail.correction.weight"].any()
