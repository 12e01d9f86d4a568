"""`rncdl run` from the labelled file to the report, killed on the way, and given again."""

import json
import shutil
from pathlib import Path

import pytest

from rncdl.run_folder import RunFolder
from tests.pipeline.tiny import SETTINGS, run_killed, run_rncdl

KEPT = ("detector.safetensors", "discoveries/main/heads.safetensors", "settings.yaml")


def words(world: Path, out: Path) -> list[object]:
    files = [world / "labelled.json", "--unlabelled", world / "unlabelled.json"]
    val = ["--val", world / "val.json"]
    return ["run", *files, *val, "--out", out, *SETTINGS]


@pytest.fixture(scope="module")
def finished(world: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run that nobody stopped, and what it said."""
    out = tmp_path_factory.mktemp("whole") / "run"
    return out, run_rncdl(*words(world, out))


def test_it_plans_trains_discovers_measures_and_reports(finished: tuple[Path, str]):
    out, said = finished
    assert [line[:3] for line in said.splitlines() if line[1:3] == "/6"] == [
        f"{number}/6" for number in range(1, 7)
    ]
    assert said.index("The plan (--size tiny)") < said.index("3/6")
    for name in (*KEPT, "plan.json", "report.html", "evaluations/main/val/report.json"):
        assert (out / name).is_file()
    for command in ("name", "predict PHOTOS/", "export coco PHOTOS/"):
        assert f"  rncdl {command} --run {out}" in said
    assert "annotated objects have a region that fits" in said


def test_a_teacher_that_the_user_wants_is_planned_with_what_it_needs(world: Path, tmp_path: Path):
    """Here it is the detector's own backbone."""
    asked = [*words(world, tmp_path / "run"), "discover.teacher=auto", "teacher.weights=none"]
    said = run_rncdl(*asked, "teacher.crop_px=32", "teacher.gate=0")
    assert "Objects are shown to the teacher" in said
    settings = RunFolder(tmp_path / "run").settings()
    assert settings.detector.localisation
    assert settings.segmentation.segmenter == "grabcut"
    plan = json.loads(RunFolder(tmp_path / "run").plan_file.read_text())
    assert "as you said" in [
        choice["reason"] for choice in plan["choices"] if choice["key"] == "discover.teacher"
    ]


def test_the_learning_curves_of_both_phases_are_drawn(finished: tuple[Path, str]):
    picture = RunFolder(finished[0]).curves_file.read_text()
    for title in ("Training", "Box loss", "AP of known classes", "Discovery: main", "Clusters in"):
        assert f">{title}" in picture


def test_the_plan_is_kept_with_reasons_and_expectations(finished: tuple[Path, str]):
    out, _ = finished
    plan = json.loads(RunFolder(out).plan_file.read_text())
    steps = next(choice for choice in plan["choices"] if choice["key"] == "train.steps")
    assert steps == {"key": "train.steps", "value": 6, "reason": "as you said"}
    assert RunFolder(out).settings().train.steps == 6
    assert plan["expected"]["train_s"] > 0
    assert plan["expected"]["memory_bytes"] > 10**6


@pytest.mark.parametrize(
    ("place", "times"),
    [
        ("rncdl.stages.run._plan", 1),
        ("rncdl.training.saving.save_checkpoint", 2),
        ("rncdl.discovery.bank.Bank.write", 9),
        ("rncdl.discovery.training.save_or_stop", 6),
        ("rncdl.stages.run._measure", 1),
    ],
)
def test_killed_at_any_place_the_same_command_ends_with_the_same_bytes(
    place: str, times: int, finished: tuple[Path, str], world: Path, tmp_path: Path
):
    out = tmp_path / "run"
    run_killed(*words(world, out), after=place, times=times)
    assert not (out / "report.html").exists()
    said = run_rncdl(*words(world, out))
    assert ("go on with it" in said) == (place != "rncdl.stages.run._plan")
    assert (out / "report.html").is_file()
    for name in KEPT:
        assert (out / name).read_bytes() == (finished[0] / name).read_bytes()


def test_a_finished_run_is_only_reported_again(finished: tuple[Path, str], world: Path):
    out, _ = finished
    before = {name: (out / name).stat().st_mtime_ns for name in KEPT}
    assert "already trained to the end" in run_rncdl(*words(world, out))
    assert {name: (out / name).stat().st_mtime_ns for name in KEPT} == before


def test_another_command_does_not_go_on_with_it(finished: tuple[Path, str], world: Path):
    out, _ = finished
    said = run_rncdl("run", world / "oracle.json", "--out", out, code=2)
    assert f"was begun with LABELLED {world / 'labelled.json'}, not with LABELLED" in said
    said = run_rncdl(*words(world, out), "--size", "small", code=2)
    assert "was begun without --size, not with --size small" in said
    said = run_rncdl(*words(world, out), "--unlabelled", world / "images", code=2)
    assert f"not with --unlabelled {world / 'unlabelled.json'} --unlabelled" in said


def test_settings_given_once_all_is_trained_are_said_to_come_too_late(
    finished: tuple[Path, str], world: Path
):
    out, _ = finished
    said = run_rncdl(*words(world, out), "discover.steps=9")
    assert "too late for discover.steps: all is trained" in said
    assert RunFolder(out).discovery("main").settings().discover.steps == 8


@pytest.fixture
def trained_only(world: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A world of its own, and a run on it that was stopped between training and discovery."""
    own, out = tmp_path / "world", tmp_path / "run"
    shutil.copytree(world, own)
    run_killed(*words(own, out), after="rncdl.stages.run._train")
    assert (out / "detector.safetensors").is_file()
    assert not (out / "discoveries").exists()
    return own, out


def test_settings_given_between_training_and_discovery_are_taken_up(
    trained_only: tuple[Path, Path],
):
    own, out = trained_only
    run_rncdl(*words(own, out), "discover.heads=[5]", "discover.steps=4")
    discovered = RunFolder(out).discovery("main")
    assert discovered.settings().discover.heads == (5,)
    assert discovered.load_heads()["novel.0.prototypes"].shape[0] == 5


def test_a_pool_that_changed_before_discovery_is_taken_as_it_is_and_later_refused(
    trained_only: tuple[Path, Path],
):
    own, out = trained_only
    pool = json.loads((own / "unlabelled.json").read_text())
    pool["images"] = pool["images"][:-2]
    (own / "unlabelled.json").write_text(json.dumps(pool))
    said = run_rncdl(*words(own, out))
    assert "unlabelled.json has changed since the plan was made; discovery takes" in said
    pool["images"] = pool["images"][:-2]
    (own / "unlabelled.json").write_text(json.dumps(pool))
    assert "has changed since" in run_rncdl(*words(own, out), code=2)


def test_labels_that_changed_in_the_middle_are_refused(trained_only: tuple[Path, Path]):
    own, out = trained_only
    with (own / "labelled.json").open("a") as file:
        file.write(" ")
    said = run_rncdl(*words(own, out), code=2)
    assert f"{own / 'labelled.json'} has changed since {out} was begun" in said
    (own / "labelled.json").unlink()
    assert "labelled.json: cannot read the file" in run_rncdl(*words(own, out), code=2)


def test_a_run_of_single_stages_is_refused(trained: Path, world: Path):
    said = run_rncdl("run", world / "labelled.json", "--out", trained, code=2)
    assert "did not begin" in said


def test_an_unknown_size_is_refused(world: Path, tmp_path: Path):
    said = run_rncdl(*words(world, tmp_path / "run"), "--size", "tinny", code=2)
    assert "Did you mean 'tiny'?" in said


def test_train_says_at_once_what_it_takes_and_warns_of_a_training_without_end(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    files = ["train", "--labelled", world / "labelled.json", *SETTINGS, "train.steps=1", "--run"]
    said = run_rncdl(*files, tmp_path / "short")
    assert said.splitlines()[0].endswith("1 steps.")
    assert "warning" not in said
    monkeypatch.setattr("rncdl.stages.train.MANY_IMAGES", 1)
    monkeypatch.setattr("rncdl.stages.train.HOPELESS_S", 0)
    said = run_rncdl(*files, tmp_path / "long")
    assert "1 steps of 4 images: about" in said
    names = [tmp_path / name / "detector.safetensors" for name in ("short", "long")]
    assert names[0].read_bytes() == names[1].read_bytes()  # the trial taught it nothing
