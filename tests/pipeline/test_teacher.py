"""Discovery with a teacher, from the command line to files."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rncdl.discovery.bank import MISSING
from rncdl.discovery.object_bank import Way
from rncdl.run_folder import RunFolder
from rncdl.training.journal import read_journal
from tests.pipeline.tiny import TEACHER, run_killed, run_rncdl

FEW = "discover.heads=[3]"
NEIGHBOURS = "discover.neighbours=2"


@pytest.fixture(scope="module")
def run(discovered: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of our own, to discover more in."""
    return shutil.copytree(discovered, tmp_path_factory.mktemp("taught") / "run")


@pytest.fixture(scope="module")
def taught(run: Path, world: Path) -> Path:
    discover(run, world, "taught", *TEACHER, FEW)
    return run


@pytest.fixture(scope="module")
def alike(run: Path, world: Path) -> Path:
    discover(run, world, "alike", *TEACHER, NEIGHBOURS)
    return run


def discover(run: Path, world: Path, name: str, *more: object, **options: int) -> str:
    unlabelled = ["--unlabelled", world / "unlabelled.json"]
    return run_rncdl("discover", "--run", run, *unlabelled, "--discovery", name, *more, **options)


def heads(run: Path, name: str) -> dict[str, torch.Tensor]:
    return load_file(run / "discoveries" / name / "heads.safetensors")


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert not [key for key in one if not torch.equal(one[key], other[key])]


def test_a_teacher_needs_the_bank(run: Path, world: Path):
    said = discover(run, world, "impossible", *TEACHER, "discover.online=true", code=2)
    assert "teaches from the bank" in said
    assert not RunFolder(run).discovery("impossible").exists


def test_nobody_counts_classes_without_a_teacher(run: Path, world: Path):
    said = discover(run, world, "impossible", "discover.heads=auto", code=2)
    assert "discover.teacher=auto" in said


def test_heads_have_an_output_for_no_object(taught: Path):
    state = heads(taught, "taught")
    assert state["novel.0.prototypes"].shape == (3, 16)
    assert state["novel.0.background"].shape == (1, 16)
    records = read_journal(taught / "discoveries" / "taught" / "journal.jsonl")
    assert all(np.isfinite(record["loss"]) for record in records)


def test_what_was_discovered_is_evaluated_like_any_other(taught: Path, world: Path):
    run_rncdl("evaluate", world / "val.json", "--run", taught, "--discovery", "taught")
    report = RunFolder(taught).evaluation("val", "taught").report_json
    assert json.loads(report.read_text())["clusters"]["head0"]["num_clusters"] == 3


def test_a_later_discovery_reuses_what_the_teacher_has_seen(taught: Path, world: Path):
    said = discover(taught, world, "later", *TEACHER, "discover.heads=[2,3]", "seed=5", code=2)
    assert "seed: 0, now 5" in said  # the bank of regions depends on it, the objects do not
    said = discover(taught, world, "later", *TEACHER, "discover.heads=[2,3]", "discover.steps=2")
    assert "objects:" not in said
    assert heads(taught, "later")["novel.1.prototypes"].shape[0] == 3


def test_known_objects_tell_once_how_the_teacher_is_shown_objects(
    taught: Path, world: Path, tmp_path: Path
):
    run = shutil.copytree(taught, tmp_path / "copy")
    shutil.rmtree(run / "object_bank")
    words = ("teacher.masks=auto", "discover.steps=1", FEW)
    said = discover(run, world, "auto", *TEACHER, *words)
    origin = json.loads((run / "object_bank" / "bank.json").read_text())["origin"]
    way = Way(origin["masks"], origin.get("outlines", False))
    assert f"Objects are shown to the teacher {way.in_words()}: of known pairs" in said
    said = discover(run, world, "again", *TEACHER, *words)
    assert "Objects are shown" not in said


def test_other_crops_are_another_object_bank(taught: Path, world: Path):
    said = discover(taught, world, "larger", *TEACHER, FEW, "teacher.crop_px=64", code=2)
    assert "crop_px: 96, now 64" in said


def test_an_interrupted_object_bank_is_completed_to_the_same_bytes(
    taught: Path, world: Path, tmp_path: Path
):
    run = shutil.copytree(taught, tmp_path / "copy")
    counts = np.fromfile(run / "object_bank" / "counts.i32", dtype=np.int32)
    counts[3:9] = MISSING
    counts.tofile(run / "object_bank" / "counts.i32")
    features = run / "object_bank" / "features.f16"
    content = bytearray(features.read_bytes())
    slot = len(content) // len(counts)
    content[3 * slot : 9 * slot] = bytes(6 * slot)
    features.write_bytes(content)
    discover(run, world, "again", *TEACHER, FEW, "discover.steps=1", processes=2)
    names = ("features.f16", "boxes.f32", "objectness.f32", "matched_features.f16", "counts.i32")
    for name in names:
        found, made = (path / "object_bank" / name for path in (run, taught))
        assert found.read_bytes() == made.read_bytes()


def test_a_killed_discovery_resumes_bit_for_bit(taught: Path, world: Path):
    words = ["discover", "--run", taught, "--unlabelled", world / "unlabelled.json"]
    words += ["--discovery", "killed"]
    run_killed(*words, *TEACHER, FEW, after="rncdl.training.saving.save_checkpoint")
    run_rncdl(*words, "--resume")
    assert_same(heads(taught, "killed"), heads(taught, "taught"))


def test_neighbours_are_the_second_view_of_heads_that_teach_themselves(alike: Path):
    """They have no output for no object; their first weights and views are those of `main`."""
    main, found = heads(alike, "main"), heads(alike, "alike")
    assert {key: value.shape for key, value in found.items()} == {
        key: value.shape for key, value in main.items()
    }
    assert not torch.equal(found["novel.0.prototypes"], main["novel.0.prototypes"])
    records = read_journal(alike / "discoveries" / "alike" / "journal.jsonl")
    assert all(np.isfinite(record["loss"]) for record in records)
    assert all(record["num_rounds"] > 0 for record in records)  # the assignment was balanced


def test_a_killed_discovery_with_neighbours_resumes_bit_for_bit(alike: Path, world: Path):
    words = ["discover", "--run", alike, "--unlabelled", world / "unlabelled.json"]
    words += ["--discovery", "alike_killed"]
    run_killed(*words, *TEACHER, NEIGHBOURS, after="rncdl.training.saving.save_checkpoint")
    run_rncdl(*words, "--resume")
    assert_same(heads(alike, "alike_killed"), heads(alike, "alike"))


def test_what_was_discovered_from_neighbours_is_evaluated_like_any_other(alike: Path, world: Path):
    run_rncdl("evaluate", world / "val.json", "--run", alike, "--discovery", "alike")
    report = RunFolder(alike).evaluation("val", "alike").report_json
    assert json.loads(report.read_text())["clusters"]["head0"]["num_clusters"] == 8


def test_two_processes_look_for_neighbours_once(alike: Path, world: Path):
    quick = ("discover.steps=2", "discover.memory_batches=1")
    said = discover(alike, world, "alike_pair", *TEACHER, NEIGHBOURS, *quick, processes=2)
    assert said.count("that look most alike") == 1


@pytest.mark.parametrize("command", ["discover", "compare", "ablate"])
def test_without_a_teacher_nothing_is_alike(run: Path, world: Path, command: str):
    words: tuple[object, ...] = ("--discovery", "impossible")
    if command != "discover":
        words = (world / "val.json", "--name", "impossible")
    words += ("--unlabelled", world / "unlabelled.json", "discover.teacher=none")
    said = run_rncdl(command, "--run", run, *words, NEIGHBOURS, code=2)
    assert "discover.neighbours=2 needs a teacher" in said
    assert "discover.teacher=auto" in said
    assert not list(run.glob("*/impossible"))


def test_classes_are_counted_and_the_number_is_noted(taught: Path, world: Path):
    pool = ("--unlabelled", world / "unlabelled.json")
    said = run_rncdl("estimate-classes", "--run", taught, *pool, *TEACHER)
    estimate = json.loads((taught / "estimate.json").read_text())
    assert f"About {estimate['num_clusters']} new classes" in said
    discover(taught, world, "counted", *TEACHER, "discover.heads=auto", "discover.steps=2")
    settings = RunFolder(taught).discovery("counted").settings()
    assert settings.discover.heads == (-(-5 * estimate["num_clusters"] // 4),)
    run_rncdl("report", "--run", taught)
    assert said.splitlines()[-1].split(" Curve:")[0] in (taught / "report.html").read_text()


def test_novel_labels_do_not_reach_the_teacher(taught: Path, world: Path, tmp_path: Path):
    """Annotations of the unlabelled file change nothing."""
    run = shutil.copytree(taught, tmp_path / "copy")
    shutil.rmtree(run / "object_bank")
    unlabelled = json.loads((world / "unlabelled.json").read_text())
    val = json.loads((world / "val.json").read_text())
    unlabelled["categories"] = val["categories"]
    unlabelled["annotations"] = [
        {"id": number, "image_id": image["id"], "category_id": val["categories"][-1]["id"],
         "bbox": [3, 4, 20, 30], "area": 600, "iscrowd": 0}
        for number, image in enumerate(unlabelled["images"], 1)
    ]  # fmt: skip
    (tmp_path / "annotated.json").write_text(json.dumps(unlabelled))
    pool = ("--unlabelled", tmp_path / "annotated.json", "--unlabelled-images", world)
    run_rncdl("discover", "--run", run, *pool, "--discovery", "leak", *TEACHER, FEW)
    assert_same(heads(run, "leak"), heads(taught, "taught"))
