"""The demo, made small, alone and in two processes; and the launcher with the real command."""

from pathlib import Path

import pytest

from rncdl.run_folder import RunFolder
from rncdl.stages.demo import DemoSize, run_demo
from tests.pipeline.tiny import REPOSITORY, SETTINGS, run_rncdl, run_torchrun

# A detector of a few steps has few regions to be sure of.
EVERY_REGION = "teacher.gate=0"
TINY = DemoSize(
    classes=6,
    known=3,
    image_px=64,
    labelled=12,
    unlabelled=8,
    val=6,
    detector_steps=4,
    ceiling_steps=2,
    overrides=(*SETTINGS, EVERY_REGION),
)


def test_the_demo_goes_on_where_it_stopped_and_says_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run_demo(tmp_path, seed=0, size=TINY)
    table = (tmp_path / "report.md").read_text().split("Took")[0]
    heads = RunFolder(tmp_path / "run").discovery("main").heads_file.read_bytes()
    for name in ("k-means", "random novel head", "RNCDL", "fully supervised"):
        assert name in table
    assert "<html" in (tmp_path / "report.html").read_text()[:200]
    said = capsys.readouterr().err
    assert [f"{number}/6" in said for number in range(1, 7)] == [True] * 6

    (tmp_path / "report.html").unlink()
    run_demo(tmp_path, seed=0, size=TINY)
    assert (tmp_path / "report.html").is_file()
    assert (tmp_path / "report.md").read_text().split("Took")[0] == table
    assert RunFolder(tmp_path / "run").discovery("main").heads_file.read_bytes() == heads


def test_two_processes_share_the_demo(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys; from pathlib import Path\n"
        f"sys.path.insert(0, {str(REPOSITORY)!r})\n"
        "from rncdl.stages.demo import run_demo\n"
        "from tests.pipeline.test_demo import TINY\n"
        "if __name__ == '__main__':\n"
        "    run_demo(Path(sys.argv[1]), seed=0, size=TINY)\n"
    )
    said = run_torchrun(script, tmp_path / "demo")
    assert said.count("write the report") == 1  # one process talks
    assert (tmp_path / "demo" / "report.html").is_file()


def test_processes_are_started_by_an_option(world: Path, tmp_path: Path):
    words = ["train", "--run", tmp_path / "run", "--labelled", world / "labelled.json", *SETTINGS]
    said = run_rncdl("--processes", 2, *words, "train.steps=2")
    assert said.count("detector.safetensors") == 1
    assert (tmp_path / "run" / "detector.safetensors").is_file()


def test_a_mistake_is_told_once_and_the_exit_code_kept(world: Path, tmp_path: Path):
    words = ["train", "--run", tmp_path / "odd", "--labelled", world / "labelled.json", *SETTINGS]
    said = run_rncdl("--processes", 2, *words, "train.batch_size=5", code=2)
    assert said.count("train.batch_size = 5 cannot be shared evenly by 2 processes") == 1
    assert "Traceback" not in said
