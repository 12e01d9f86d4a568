"""The supervised phase, from the command line to files."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file

from rncdl.classes import ClassSplit
from rncdl.config import resolve_settings
from rncdl.data.annotations import load_annotations
from rncdl.data.samples import Sample
from rncdl.detector.backbones import build_backbone
from rncdl.detector.training_steps import open_training_loader
from rncdl.run_folder import RunFolder
from rncdl.training.checkpoints import list_checkpoints, load_checkpoint
from rncdl.training.journal import read_journal
from rncdl.training.processes import join_processes
from tests.pipeline.tiny import (
    HANGS_S,
    SETTINGS,
    WITH_MASK_STEPS,
    WITH_OBJECTS,
    command,
    environment,
    run_killed,
    run_rncdl,
    run_torchrun,
    wait_until,
)


def begin(world: Path, run: Path, *overrides: str) -> list[object]:
    return ["train", "--run", run, "--labelled", world / "labelled.json", *SETTINGS, *overrides]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "detector.safetensors")


def assert_same_weights(first: Path, second: Path) -> None:
    one, other = weights(first), weights(second)
    assert one.keys() == other.keys()
    different = [key for key in one if not torch.equal(one[key], other[key])]
    assert not different


def stop_after_checkpoint(run: Path, words: list[object], how: signal.Signals) -> tuple[int, str]:
    """Start the command, send the signal once a checkpoint is there; its exit code and words."""
    process = subprocess.Popen(
        command(*words),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: bool(list_checkpoints(run / "train" / "checkpoints")), process)
    process.send_signal(how)
    os.killpg(process.pid, how)  # as `timeout` does: to the process, and to its group
    said, _ = process.communicate(timeout=HANGS_S)
    return process.returncode, said


def test_a_run_leaves_its_detector_settings_and_journal(trained: Path):
    assert weights(trained)
    records = read_journal(trained / "train" / "journal.jsonl")
    assert [r["step"] for r in records] == [2, 4, 6]
    assert {"loss", "class", "mask", "rpn_objectness", "rate", "images/s"} <= records[0].keys()
    assert len(json.loads((trained / "classes.json").read_text())["known"]) == 3
    assert len(list_checkpoints(trained / "train" / "checkpoints")) == 2


def test_a_backbone_without_published_weights_starts_from_nothing_and_says_so(
    world: Path, tmp_path: Path
):
    words = begin(world, tmp_path / "run", "detector.backbone=resnet10", "detector.weights=auto")
    wishes = ["detector.frozen_blocks=2", "detector.norm=frozen", "train.steps=2"]
    said = run_rncdl(*words, *wishes)
    assert "Backbone: from nothing (nobody publishes weights for resnet10)." in said
    assert "warning: no pretrained weights" in said
    run = RunFolder(tmp_path / "run")
    detector = run.settings().detector
    assert (detector.weights, detector.frozen_blocks, detector.norm) == ("none", 0, "batch")
    assert json.loads(run.backbone_start_file.read_text())["weights"] is None


def test_the_run_notes_its_backbones_weights_and_goes_on_without_looking_again(
    world: Path, tmp_path: Path
):
    first = tmp_path / "first.pth"
    torch.save(build_backbone("resnet18").state_dict(), first)
    run = RunFolder(tmp_path / "run")
    words = begin(world, run.path, f"detector.weights={first}", "detector.frozen_blocks=1")
    run_killed(*words, after="rncdl.training.saving.save_checkpoint")
    noted = json.loads(run.backbone_start_file.read_text())
    assert noted["weights"] == str(first)
    assert len(noted["sha256"]) == 64
    stem = torch.load(first)["conv1.weight"]
    first.unlink()
    assert "Backbone" not in run_rncdl("train", "--run", run.path, "--resume")
    assert torch.equal(weights(run.path)["backbone.conv1.weight"], stem)


def test_a_vit_is_trained_and_finds_things(world: Path, tmp_path: Path):
    """With weights of timm's layout, the first of its blocks frozen."""
    first = timm.create_model("test_vit")
    torch.save(first.state_dict(), tmp_path / "vit.pth")
    run = tmp_path / "run"
    wishes = ["detector.backbone=timm:test_vit", f"detector.weights={tmp_path / 'vit.pth'}"]
    run_rncdl(*begin(world, run, *wishes, "detector.frozen_blocks=2", "train.steps=2"))
    kept = weights(run)["backbone.network.blocks.0.attn.qkv.weight"]
    assert torch.equal(kept, first.state_dict()["blocks.0.attn.qkv.weight"])
    moved = weights(run)["backbone.network.blocks.1.attn.qkv.weight"]
    assert not torch.equal(moved, first.state_dict()["blocks.1.attn.qkv.weight"])
    images = sorted((world / "images").glob("**/*.*"))[:3]
    run_rncdl("predict", *images, "--run", run, "--out", tmp_path / "found")
    found = json.loads((tmp_path / "found" / "predictions.json").read_text())
    assert len({one["image_id"] for one in found}) == len(images)


def first_samples(world: Path, strength: str) -> list[Sample]:
    annotations = load_annotations(world / "labelled.json").annotations
    settings = resolve_settings(None, [*SETTINGS, f"train.augmentation={strength}"])
    with join_processes("cpu") as processes:
        loader = open_training_loader(
            ClassSplit.from_labelled(annotations).keep_known(annotations),
            with_masks=True,
            settings=settings,
            processes=processes,
            first_step=0,
        )
        return next(iter(loader)).samples


def test_the_detector_sees_colours_as_distorted_as_told(world: Path):
    plain, *others = (first_samples(world, strength) for strength in ("none", "weak", "simclr"))
    for distorted in others:
        pairs = list(zip(plain, distorted, strict=True))
        assert any(not torch.equal(one.image, other.image) for one, other in pairs)
        assert all(torch.equal(one.boxes_xyxy, other.boxes_xyxy) for one, other in pairs)


def test_a_killed_run_resumes_bit_for_bit(world: Path, trained: Path, tmp_path: Path):
    run = tmp_path / "killed"
    run_killed(*begin(world, run), after="rncdl.training.saving.save_checkpoint")
    assert not (run / "detector.safetensors").exists()

    run_rncdl("train", "--run", run, "--resume")

    assert_same_weights(run, trained)
    steps = [r["step"] for r in read_journal(run / "train" / "journal.jsonl")]
    assert steps == [2, 4, 6]


def test_settings_given_when_a_run_goes_on_are_those_of_the_run(trained: Path, tmp_path: Path):
    """Used, said and saved: what comes later reads them."""
    run = RunFolder(tmp_path / "longer")
    shutil.copytree(trained, run.path, ignore=shutil.ignore_patterns("detector.safetensors"))
    words = ["train", "--run", run.path, "--resume"]
    said = run_rncdl(*words, "train.steps=8", "detector.box_head_width=8", code=2)
    assert "detector.box_head_width: 32, now 8" in said
    assert run.settings() == RunFolder(trained).settings()
    said = run_rncdl(*words, "train.steps=8", "discover.steps=5", processes=2)
    assert "train.steps: 6, now 8" in said
    assert [r["step"] for r in read_journal(run.train_journal)] == [2, 4, 6, 8]
    assert run.settings().train.steps == 8
    assert run.settings().discover.steps == 5


@pytest.mark.parametrize(
    ("how", "processes"), [(signal.SIGTERM, 1), (signal.SIGINT, 1), (signal.SIGINT, 2)]
)
def test_a_polite_signal_saves_and_leaves(
    world: Path, tmp_path: Path, how: signal.Signals, processes: int
):
    run = tmp_path / "stopped"
    words = begin(world, run, "train.steps=100000", "data.workers=1")
    code, said = stop_after_checkpoint(run, [*words, "--processes", processes], how)
    assert code == 128 + how
    assert said.count("Stopped after step") == 1
    assert "Traceback" not in said
    newest = load_checkpoint(list_checkpoints(run / "train" / "checkpoints")[-1])
    assert newest["step"] >= 2


def test_a_finished_or_occupied_run_is_not_trained_again(world: Path, trained: Path):
    before = (trained / "detector.safetensors").stat().st_mtime_ns
    assert "already holds a run" in run_rncdl(*begin(world, trained), code=2)
    assert "already trained" in run_rncdl("train", "--run", trained, "--resume")
    assert (trained / "detector.safetensors").stat().st_mtime_ns == before


def test_a_loss_that_is_not_finite_names_the_images(world: Path, tmp_path: Path):
    said = run_rncdl(
        *begin(world, tmp_path / "wild", "train.rate=1e30", "train.warmup_steps=0"), code=2
    )
    assert "not finite" in said
    assert ".png" in said or ".jpg" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "wishes", [[], WITH_OBJECTS, WITH_MASK_STEPS], ids=["", "objects", "mask steps"]
)
def test_two_processes_end_with_the_same_weights_and_share_the_batch(
    world: Path, tmp_path: Path, wishes: list[str]
):
    script = Path(__file__).with_name("two_ranks.py")
    words = [script, world / "labelled.json", tmp_path / "pair", *SETTINGS, "train.steps=3"]
    said = run_torchrun(*words, *wishes)
    assert said.count("same") == 2


def test_accumulated_parts_make_one_step(world: Path, tmp_path: Path):
    """As many steps and log lines as without; the loss is the whole batch's, not a part's sum."""
    losses = []
    for parts in (1, 4):
        run = tmp_path / f"parts{parts}"
        run_rncdl(*begin(world, run, f"train.accumulate={parts}", "train.steps=2"))
        records = read_journal(run / "train" / "journal.jsonl")
        assert [r["step"] for r in records] == [2]
        losses.append(records[0]["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=0.25)


def test_boxes_without_masks_build_no_mask_head(world: Path, tmp_path: Path):
    labelled = json.loads((world / "labelled.json").read_text())
    for annotation in labelled["annotations"]:
        del annotation["segmentation"]
    path = tmp_path / "boxes_only.json"
    path.write_text(json.dumps(labelled))
    run = tmp_path / "boxes"
    words = ["train", "--run", run, "--labelled", path, "--images", world]
    run_rncdl(*words, *SETTINGS, "train.steps=2")
    assert not [key for key in weights(run) if key.startswith("mask_head")]


def test_a_missing_image_is_an_error_or_skipped_and_recorded(world: Path, tmp_path: Path):
    labelled = json.loads((world / "labelled.json").read_text())
    annotated = {annotation["image_id"] for annotation in labelled["annotations"]}
    lost = next(image for image in labelled["images"] if image["id"] in annotated)
    lost["file_name"] = "images/not_there.png"
    path = tmp_path / "one_lost.json"
    path.write_text(json.dumps(labelled))
    words = ["train", "--labelled", path, "--images", world, *SETTINGS, "train.steps=4"]
    said = run_rncdl(*words, "--run", tmp_path / "strict", code=2)
    assert "not_there.png" in said
    assert "Traceback" not in said
    run_rncdl(*words, "--run", tmp_path / "lenient", "data.on_bad_image=skip")
    skipped = (tmp_path / "lenient" / "skipped_images.jsonl").read_text()
    assert "not_there.png" in skipped
