import os
from pathlib import Path

import pytest
import torch

from rncdl.errors import UserError
from rncdl.run_folder import RunFolder


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def test_a_run_without_evaluations_has_none(tmp_path: Path):
    assert RunFolder(tmp_path).evaluations_of("main") == {}
    assert RunFolder(tmp_path).evaluations_of(None) == {}


def test_every_pair_of_discovery_and_validation_file_has_an_evaluation_of_its_own(tmp_path: Path):
    run = RunFolder(tmp_path)
    names = {"main": {"val", "val_my"}, "my_main": {"val"}, None: {"val", "val_main"}}
    for discovery, files in names.items():
        for val in files:
            touch(run.evaluation(val, discovery).report_json)
    for discovery, files in names.items():
        found = run.evaluations_of(discovery)
        assert found == {val: run.evaluation(val, discovery) for val in files}


def test_a_discovery_is_chosen_by_name_or_by_age(tmp_path: Path):
    run = RunFolder(tmp_path)
    assert run.choose_discovery(None) is None
    for age, name in enumerate(("second", "first")):
        touch(run.discovery(name).heads_file)
        os.utime(run.discovery(name).heads_file, (1000 - age, 1000 - age))
    assert run.choose_discovery(None) == "second"
    assert run.choose_discovery("first") == "first"
    assert run.choose_discovery("trained") is None


@pytest.mark.parametrize("name", ["trained", "../main", "a/b", "", "..", "."])
def test_a_discovery_has_a_plain_name(tmp_path: Path, name: str):
    with pytest.raises(UserError, match="cannot be named"):
        RunFolder(tmp_path).discovery(name)


def test_an_unfinished_evaluation_is_left_out(tmp_path: Path):
    run = RunFolder(tmp_path)
    run.evaluation("val", "main").path.mkdir(parents=True)
    assert run.evaluations_of("main") == {}


@pytest.mark.parametrize("has_masks", [True, False])
def test_whether_a_detector_has_masks_is_told_without_its_weights(tmp_path: Path, has_masks: bool):
    run = RunFolder(tmp_path)
    with pytest.raises(UserError, match=r"detector\.safetensors"):
        run.has_masks()
    run.save_detector({"weight": torch.ones(2)}, has_masks=has_masks)
    assert run.has_masks() is has_masks


def test_the_heads_that_people_have_decided_about(tmp_path: Path):
    folder = RunFolder(tmp_path).discovery("main")
    assert folder.decided_heads() == {}
    for head in (0, 2):
        touch(folder.decisions_file(head))
    assert folder.decided_heads() == {head: folder.decisions_file(head) for head in (0, 2)}
