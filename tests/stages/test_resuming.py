"""What a training that goes on may change, and that it is noted."""

from pathlib import Path

import pytest

from rncdl.classes import ClassSplit
from rncdl.config import DetectorSettings, Settings, resolve_settings
from rncdl.detector.model import Detector
from rncdl.errors import UserError
from rncdl.run_folder import DiscoveryFolder, RunFolder
from rncdl.stages.resuming import FIXED_IN_DISCOVERY, FIXED_IN_TRAINING, take_up_changes
from rncdl.training.processes import alone


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "run")
    made.begin(Settings(), None, ClassSplit(("thing",)))
    return made


def go_on(
    folder: RunFolder | DiscoveryFolder, *overrides: str, fixed: frozenset[str] = FIXED_IN_TRAINING
) -> None:
    now = resolve_settings(base=folder.settings(), overrides=overrides)
    take_up_changes(
        folder,
        folder.settings(),
        now,
        fixed=fixed,
        instead="begin another run",
        processes=alone("cpu"),
    )


def test_nothing_changed_is_nothing_written(run: RunFolder):
    before = run.settings_file.stat().st_mtime_ns
    go_on(run)
    go_on(run, "train.rate=0.01")  # as it was
    assert run.settings_file.stat().st_mtime_ns == before


def test_what_changes_is_saved_and_said(run: RunFolder, capsys: pytest.CaptureFixture[str]):
    go_on(run, "train.rate=0.005", "discover.heads=[7]")
    assert run.settings().train.rate == 0.005
    assert run.settings().discover.heads == (7,)
    said = capsys.readouterr().err
    assert "train.rate: 0.01, now 0.005" in said
    assert "discover.heads: [3000], now [7]" in said


@pytest.mark.parametrize(
    "override",
    ["seed=1", "detector.fpn_channels=8", "detector.norm=group", "train.weight_decay=0.1"],
)
def test_what_a_trained_detector_cannot_be_continued_with_is_refused(run: RunFolder, override: str):
    before = run.settings()
    with pytest.raises(UserError, match=rf"(?s)begin another run.*{override.partition('=')[0]}"):
        go_on(run, "train.rate=0.005", override)
    assert run.settings() == before


@pytest.mark.parametrize(
    "override",
    [
        "discover.heads=[7]",
        "discover.memory_batches=1",
        "discover.batch_images=4",
        "discover.frozen=nothing",
        "discover.neighbours=3",
        "discover.augmentation=none",
        "detector.proposals_after_nms=30",
        "detector.fpn_channels=8",
    ],
)
def test_what_discovery_cannot_be_continued_with_is_refused(run: RunFolder, override: str):
    folder = run.discovery("main")
    folder.begin(Settings(), None)
    with pytest.raises(UserError, match=override.partition("=")[0]):
        go_on(folder, override, fixed=FIXED_IN_DISCOVERY)
    go_on(folder, "discover.steps=7", fixed=FIXED_IN_DISCOVERY)
    assert folder.settings().discover.steps == 7


def test_only_settings_that_exist_are_fixed():
    names = {
        f"{group}.{name}" for group, value in Settings().model_dump().items()
        if isinstance(value, dict) for name in value
    }  # fmt: skip
    assert names | {"seed"} >= FIXED_IN_TRAINING | FIXED_IN_DISCOVERY


def test_no_setting_that_shapes_the_detector_can_change():
    """Whatever may change in mid-training leaves every weight its shape."""
    small = DetectorSettings(backbone="resnet10", fpn_channels=8, box_head_width=8)
    shapes = {
        key: value.shape for key, value in Detector(small, 2, masks=True).state_dict().items()
    }
    free = {
        name
        for name in DetectorSettings.model_fields
        if f"detector.{name}" not in FIXED_IN_TRAINING
    }
    assert free
    for name in free:
        value = getattr(small, name)
        other = small.model_copy(update={name: value + 1 if isinstance(value, int) else value / 2})
        found = Detector(other, 2, masks=True).state_dict()
        assert {key: value.shape for key, value in found.items()} == shapes, name
