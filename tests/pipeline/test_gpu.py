"""Every stage on a GPU that is not there: whoever forgets a `.to(device)` fails here."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rncdl
from rncdl.config import resolve_settings
from rncdl.discovery.feeding import DiscoveryBatch
from rncdl.discovery.state import DiscoveryState
from rncdl.experiments.setup import TableRequest
from rncdl.inputs import named_inputs
from rncdl.run_folder import RunFolder, TrainingInputs
from rncdl.stages.compare import compare
from rncdl.stages.demo import run_demo
from rncdl.stages.discover import discover
from rncdl.stages.evaluate import evaluate
from rncdl.stages.report import report
from rncdl.stages.train import begin_training, resume_training
from rncdl.training.checkpoints import list_checkpoints, load_checkpoint
from rncdl.training.interruption import Interrupted
from rncdl.training.journal import read_journal
from rncdl.training.processes import choose_device, choose_precision
from tests.pipeline.test_demo import EVERY_REGION, TINY
from tests.pipeline.tiny import SETTINGS, TEACHER, WITH_MASK_STEPS
from tests.pretend_gpu import GPU, pretend_gpu

ON_GPU = [
    *(setting for setting in SETTINGS if not setting.startswith("device=")),
    "device=auto",
    "discover.max_rounds=20",  # each of them is computed, for nobody looks whether fewer would do
]


def train(run: Path, world: Path, *overrides: str) -> None:
    inputs = TrainingInputs.of_files(world / "labelled.json")
    begin_training(run, inputs, settings=resolve_settings(overrides=[*ON_GPU, *overrides]))


def find_classes(
    run: Path, world: Path, name: str, *overrides: str, resume: bool = False
) -> RunFolder:
    folder = RunFolder(run)
    inputs = None if resume else named_inputs(folder, [world / "unlabelled.json"])
    discover(run, inputs, name=name, resume=resume, overrides=overrides)
    return folder


@pytest.fixture(scope="module")
def run(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained, and then discovered `main`, on the pretended GPU."""
    folder = tmp_path_factory.mktemp("gpu") / "run"
    with pretend_gpu():
        train(folder, world)
        find_classes(folder, world, "main")
    return folder


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A function that has the next training asked to stop after so many steps."""

    def ask_after(step: int) -> None:
        def any_true(self: Any, flag: bool) -> bool:
            asked.append(flag)
            return len(asked) == step

        asked: list[bool] = []
        monkeypatch.setattr("rncdl.training.processes.Processes.any_true", any_true)

    return ask_after


def test_a_training_ends_as_on_the_cpu(run: Path, trained: Path, world: Path, tmp_path: Path):
    with pretend_gpu():
        train(tmp_path / "run", world, "train.precision=float32")
    here, there = (
        read_journal(RunFolder(folder).train_journal) for folder in (trained, tmp_path / "run")
    )
    for name in ("loss", "rpn_box", "mask"):
        # Regions are pooled in another order there; the first steps feel hardly anything of it.
        assert there[0][name] == pytest.approx(here[0][name], rel=1e-2)


def test_a_training_resumes_bit_for_bit(run: Path, world: Path, tmp_path: Path, interrupted):
    interrupted(3)
    with pretend_gpu():
        with pytest.raises(Interrupted, match="step 3"):
            train(tmp_path / "run", world)
        resume_training(tmp_path / "run", [])
    again, whole = (RunFolder(path).detector_file for path in (tmp_path / "run", run))
    assert again.read_bytes() == whole.read_bytes()


@pytest.mark.usefixtures("objects_everywhere")
def test_objects_nobody_labelled_are_found_and_learned_from(
    run: Path, world: Path, tmp_path: Path, interrupted
):
    interrupted(5)
    with pretend_gpu():
        with pytest.raises(Interrupted, match="step 5"):
            train(tmp_path / "run", world, *WITH_MASK_STEPS)
        resume_training(tmp_path / "run", [])
    folder = RunFolder(tmp_path / "run")
    assert len(folder.train_objects.read()) > 0
    assert len(folder.mask_objects.read()) > 0
    assert folder.detector_file.read_bytes() != RunFolder(run).detector_file.read_bytes()


def test_a_discovery_resumes_bit_for_bit(run: Path, world: Path, interrupted):
    interrupted(5)
    with pretend_gpu():
        with pytest.raises(Interrupted, match="step 5"):
            find_classes(run, world, "again")
        folder = find_classes(run, world, "again", resume=True)
    again, whole = (folder.discovery(name).heads_file.read_bytes() for name in ("again", "main"))
    assert again == whole


def test_a_teacher_looks_and_teaches(run: Path, world: Path):
    with pretend_gpu():
        folder = find_classes(run, world, "taught", *TEACHER, "discover.heads=[3]")
    assert folder.discovery("taught").heads_file.is_file()
    assert (run / "object_bank" / "counts.i32").is_file()


def test_a_teacher_finds_neighbours(run: Path, world: Path):
    more = ("discover.neighbours=2", "discover.steps=2", "discover.memory_batches=1")
    with pretend_gpu():
        folder = find_classes(run, world, "alike", *TEACHER, *more)
    assert folder.discovery("alike").heads_file.is_file()


@pytest.mark.parametrize(
    "setting",
    [
        "discover.frozen=all_but_heads",
        "discover.frozen=roi_heads_free",
        "discover.single_phase=true",
        "discover.pseudo_labels=kmeans",
        "discover.pseudo_labels=distilled",
        "discover.partner_iou=0.4",
    ],
)
def test_every_way_to_discover_runs(run: Path, world: Path, setting: str):
    name = setting.partition("=")[2] + setting.partition("=")[0][-3:]
    with pretend_gpu():
        folder = find_classes(
            run, world, name, setting, "discover.steps=2", "discover.memory_batches=1",
            f"discover.online={'frozen' in setting}",
        ).discovery(name)  # fmt: skip
    assert all(np.isfinite(record["loss"]) for record in read_journal(folder.journal))


def test_float16_is_scaled_where_the_detector_learns_too(run: Path, world: Path):
    quick = ["discover.steps=2", "discover.memory_batches=1", "discover.precision=float16"]
    with pretend_gpu():
        folder = find_classes(
            run, world, "scaled", "discover.frozen=roi_heads_free", *quick
        ).discovery("scaled")
    state = load_checkpoint(list_checkpoints(folder.path / "checkpoints" / "rank_0")[-1])
    assert state["scaler"]["scale"] > 1


def test_evaluate_report_and_predict(run: Path, world: Path, tmp_path: Path):
    with pretend_gpu():
        measured = evaluate(
            run, world / "val.json", images=None, name="main", train_labels=None, overrides=[]
        )
        report(run, name="main", out=tmp_path / "report.html", compared=None)
        regions = rncdl.load(run).predict(np.full((64, 64, 3), 90, np.uint8), features=True)
    assert measured is not None
    assert "<html" in (tmp_path / "report.html").read_text()[:200]
    assert regions.boxes_xyxy.device.type == "cpu"
    assert regions.features is not None
    assert regions.features.dtype == torch.float32


def test_every_row_of_a_comparison(run: Path, world: Path):
    quick = ["baselines.steps=2", "baselines.batch_images=4", "baselines.crop_px=16"]
    quick += ["baselines.crops_per_image=2", "baselines.uno_heads=1", "discover.steps=2"]
    request = TableRequest(
        run, world / "val.json", unlabelled=[world / "unlabelled.json"], overrides=quick
    )
    with pretend_gpu():
        compare(request, name="gpu", methods="all", seeds="0", oracle=None)
    table = (run / "compare" / "gpu" / "table.md").read_text()
    assert "diverged" not in table


def test_the_whole_demo(tmp_path: Path):
    with pretend_gpu():
        run_demo(tmp_path, seed=0, size=replace(TINY, overrides=(*ON_GPU, EVERY_REGION)))
    assert "RNCDL" in (tmp_path / "report.md").read_text()
    assert "<html" in (tmp_path / "report.html").read_text()[:200]


def test_steps_between_two_logs_ask_the_gpu_for_nothing(run: Path, world: Path, tmp_path: Path):
    """Twice as many steps wait no more often: for the last figures and the checkpoint alone."""
    seldom = ["train.log_every=100", "discover.log_every=100"]
    seldom += ["train.checkpoint_every=100", "discover.checkpoint_every=100"]
    asked = []
    for steps in (2, 4):
        with pretend_gpu() as waits:
            train(tmp_path / f"{steps}", world, *seldom, f"train.steps={steps}")
            trained_asked = waits.num_asked
            find_classes(run, world, f"seldom{steps}", *seldom, f"discover.steps={steps}")
            asked.append((trained_asked, waits.num_asked - trained_asked))
    assert asked[0] == asked[1]


def test_forgetting_to_move_a_batch_is_found(
    run: Path, world: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(DiscoveryBatch, "to", lambda self, device: self)
    with pretend_gpu(), pytest.raises(RuntimeError, match="same device"):
        find_classes(run, world, "forgotten", "discover.steps=1")


def test_forgetting_what_a_checkpoint_held_is_found(
    run: Path, world: Path, monkeypatch: pytest.MonkeyPatch, interrupted
):
    interrupted(2)
    load = DiscoveryState.load

    def forget(state: DiscoveryState, saved: dict[str, Any]) -> None:
        load(state, saved)
        state.starts = saved["starts"]

    monkeypatch.setattr(DiscoveryState, "load", forget)
    with pretend_gpu():
        with pytest.raises(Interrupted):
            find_classes(run, world, "left_behind")
        with pytest.raises(RuntimeError, match="same device"):
            find_classes(run, world, "left_behind", resume=True)


def test_gpus_without_bfloat16_take_float16():
    for bf16, expected in ((True, torch.bfloat16), (False, torch.float16)):
        with pretend_gpu(bf16=bf16):
            assert choose_precision("auto", GPU) == expected


def test_a_gpu_without_a_number_is_the_process_s_own():
    with pretend_gpu():
        assert choose_device("auto") == choose_device("cuda") == GPU
