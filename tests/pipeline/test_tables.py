"""Comparison and ablation tables, from a run to files."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from rncdl.cli import app
from rncdl.data.records import ImageRecord
from rncdl.discovery.bank import Bank
from rncdl.discovery.feeding import BankFeed, BatchSize
from rncdl.discovery.training import Diverged
from rncdl.errors import UserError
from rncdl.experiments import running
from rncdl.experiments.baselines import fitting
from rncdl.experiments.baselines.methods import METHODS, BaselineTask
from rncdl.experiments.setup import TableRequest
from rncdl.experiments.table_folder import TableFolder
from rncdl.run_folder import RunFolder
from rncdl.stages.ablate import ablate
from rncdl.stages.compare import Oracle, compare
from rncdl.stages.evaluate import evaluate
from rncdl.training.checkpoints import list_checkpoints
from rncdl.training.interruption import Interrupted
from tests.pipeline.tiny import run_rncdl

QUICK = ["discover.steps=2", "discover.memory_batches=1"]


@pytest.fixture(scope="module")
def run(discovered: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A discovered run of our own, whose newest discovery is `main`."""
    copy = tmp_path_factory.mktemp("tables") / "run"
    shutil.copytree(discovered, copy)
    for folder in (copy / "discoveries").iterdir():
        if folder.name != "main":
            shutil.rmtree(folder)
    return copy


def compared(
    run: Path, world: Path, *overrides: str, name: str, methods: str, seeds: str = "0,1"
) -> TableFolder:
    request = TableRequest(run=run, val=world / "val.json", overrides=overrides)
    compare(request, name=name, methods=methods, seeds=seeds, oracle=None)
    return TableFolder(RunFolder(run).table_dir("compare", name))


def ablated(
    run: Path, world: Path, *overrides: str, name: str, tables: str, clusters: str | None = None
) -> dict[str, dict[str, Any]]:
    """The lines of each table by title."""
    request = TableRequest(run=run, val=world / "val.json", overrides=overrides)
    ablate(request, name=name, tables=tables, seeds="0", clusters=clusters)
    folder = TableFolder(RunFolder(run).table_dir("ablate", name))
    tables_json = json.loads(folder.json_file.read_text())["tables"]
    return {
        table["name"]: {line["title"]: line for line in table["lines"]} for table in tables_json
    }


def test_two_processes_share_a_comparison(run: Path, world: Path):
    quick = ["baselines.crop_px=16", "baselines.steps=2", "baselines.batch_images=4"]
    words = ["--methods", "orca,rncdl-random-head", "--seeds", "0", "--name", "pair"]
    run_rncdl("compare", world / "val.json", "--run", run, *words, *quick, processes=2)
    folder = TableFolder(RunFolder(run).table_dir("compare", "pair"))
    for key in ("orca", "rncdl-random-head"):
        (outcome,) = folder.outcomes(key, [0])
        assert outcome.problem is None
        assert outcome.heads


@pytest.fixture(scope="module")
def comparison(run: Path, world: Path) -> TableFolder:
    """Three systems at two seeds."""
    return compared(
        run, world, name="main", methods="rncdl,kmeans-features,rncdl-random-head,fully-supervised"
    )


def box_ap(outcome: dict[str, Any]) -> float:
    entry = outcome["heads"][0]["ap"][0]
    assert (entry["iou_type"], entry["protocol"], entry["cut"]) == ("bbox", "fixed", "before")
    return entry["all"]["ap"]


def test_the_table_shows_mean_and_spread_of_the_rows(comparison: TableFolder):
    (table,) = json.loads(comparison.json_file.read_text())["tables"]
    by_key = {line["key"]: line for line in table["lines"]}
    for key in ("rncdl", "kmeans-features", "rncdl-random-head"):
        rows_of_key = [json.loads(comparison.row_file(key, seed).read_text()) for seed in (0, 1)]
        values = [100 * box_ap(row) for row in rows_of_key]
        shown = by_key[key]["summary"]["all AP"]
        assert shown["mean"] == pytest.approx(np.mean(values))
        assert shown["spread"] == pytest.approx(np.std(values, ddof=1))
        assert f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}" in (
            comparison.markdown_file.read_text()
        )


def test_the_table_has_the_papers_figures_and_says_what_is_left_out(comparison: TableFolder):
    text = comparison.markdown_file.read_text()
    assert "6.92 / 25.00 / 5.42" in text
    assert "left out; it needs --oracle" in text
    assert "NeurIPS 2022" in text
    assert comparison.chart_file("comparison").read_text().startswith("<svg")
    assert not (comparison.path / "unfinished" / "rncdl").exists()


def test_a_row_is_what_discover_and_evaluate_give(run: Path, world: Path, comparison: TableFolder):
    """The run's own discovery has the same settings and seed 0."""
    report = evaluate(
        run, world / "val.json", images=None, name="main", train_labels=None, overrides=[]
    )
    assert report is not None
    (outcome,) = comparison.outcomes("rncdl", [0])
    expected = report.to_dict()
    of_head = [e for e in expected["ap"] if e["system"] == "head0" and e["iou_type"] == "bbox"]
    for ours, theirs in zip(outcome.heads[0]["ap"], of_head, strict=True):
        assert {**ours, "system": None} == {**theirs, "system": None}
    assert outcome.heads[0]["clusters"]["scores"] == expected["clusters"]["head0"]["scores"]


def test_a_second_call_runs_nothing_and_a_removed_row_that_row_alone(
    run: Path, world: Path, comparison: TableFolder, monkeypatch: pytest.MonkeyPatch
):
    measured = []

    def counting_measure(detector: Any, classifiers: Any, *rest: Any, **options: Any) -> Any:
        measured.append(list(classifiers))
        return original(detector, classifiers, *rest, **options)

    original = running.measure
    monkeypatch.setattr(running, "measure", counting_measure)
    methods = "rncdl,kmeans-features,rncdl-random-head,fully-supervised"
    before = comparison.markdown_file.read_text()
    compared(run, world, name="main", methods=methods)
    assert measured == []
    removed = comparison.row_file("kmeans-features", 1)
    removed.unlink()
    compared(run, world, name="main", methods=methods)
    assert measured == [["seed1"]]
    assert removed.is_file()
    assert comparison.markdown_file.read_text() == before


def test_a_stop_keeps_finished_rows_and_says_how_to_go_on(
    run: Path, world: Path, monkeypatch: pytest.MonkeyPatch
):
    def stop(*_: Any, **__: Any) -> None:
        raise Interrupted("Stopped.", 130)

    monkeypatch.setattr("rncdl.experiments.systems.train_discovery", stop)
    with pytest.raises(Interrupted, match="same command"):
        compared(run, world, name="stopped", methods="kmeans-features,rncdl", seeds="0")
    folder = TableFolder(RunFolder(run).table_dir("compare", "stopped"))
    assert folder.missing_seeds("kmeans-features", [0]) == []
    assert folder.missing_seeds("rncdl", [0]) == [0]


def test_a_stopped_baseline_goes_on_with_the_same_command(
    run: Path, world: Path, monkeypatch: pytest.MonkeyPatch
):
    """Stopped in the training of the second seed: both end as in a table made without a stop."""

    def begin(name: str) -> TableFolder:
        quick = ("baselines.features=bank", "baselines.steps=3", "baselines.batch_images=4")
        return compared(run, world, *quick, name=name, methods="orca")

    def ask_to_stop(step: int, saving: Any, **options: Any) -> None:
        if step == 2 and saving.folder.parent.name == "seed1":
            os.kill(os.getpid(), signal.SIGINT)
        go_on(step, saving, **options)

    go_on = fitting.save_or_stop
    folder = TableFolder(RunFolder(run).table_dir("compare", "parted"))
    with monkeypatch.context() as patched:
        patched.setattr(fitting, "save_or_stop", ask_to_stop)
        with pytest.raises(Interrupted, match="same command") as stop:
            begin("parted")
    assert stop.value.exit_code == 128 + signal.SIGINT
    saved = list_checkpoints(folder.training("orca", 1).path / "orca")
    assert [path.name for path in saved] == ["step_00000002.pt"]
    expected = begin("whole").outcomes("orca", [0, 1])
    found = begin("parted").outcomes("orca", [0, 1])
    assert [one.heads for one in found] == [one.heads for one in expected]
    assert not (folder.path / "unfinished" / "orca").exists()


def test_a_baseline_that_diverges_is_a_row_that_says_so(
    run: Path, world: Path, monkeypatch: pytest.MonkeyPatch
):
    def diverge(task: BaselineTask) -> Any:
        raise Diverged("pandas, step 3: the loss is not finite.")

    monkeypatch.setattr("rncdl.experiments.systems.METHODS", {**METHODS, "pandas": diverge})
    folder = compared(run, world, name="lost", methods="pandas", seeds="0")
    (outcome,) = folder.outcomes("pandas", [0])
    assert outcome.problem == "diverged: pandas, step 3: the loss is not finite."


def test_the_ceiling_is_a_run_with_all_classes(run: Path, world: Path):
    compare(
        TableRequest(run=run, val=world / "val.json"),
        name="ceiling",
        methods="fully-supervised",
        seeds="3,4",
        oracle=Oracle(world / "oracle.json", steps=2),
    )
    folder = TableFolder(RunFolder(run).table_dir("compare", "ceiling"))
    assert folder.ceiling.split().num_known == 6
    assert folder.ceiling.settings().train.steps == 2
    (outcome,) = folder.outcomes("fully-supervised", [3, 4])
    assert outcome.seed == 3
    assert outcome.heads[0]["ap"][0]["known"]["num_classes"] <= 3


def test_rows_that_need_other_regions_have_their_own_banks(run: Path, world: Path):
    found = ablated(run, world, *QUICK, name="regions", tables="nms,proposals")
    folder = TableFolder(RunFolder(run).table_dir("ablate", "regions"))
    banks = {path.name for path in (folder.path / "banks").iterdir()}
    assert banks == {"nms_0.8", "nms_0.9", "nms_0.99", "regions_30"}
    assert list(found["proposals"]) == [
        "4 proposals (paper: 20)", "10 proposals (paper: 50)",
        "20 proposals (paper: 100)", "30 proposals (paper: 150)",
    ]  # fmt: skip
    lines = [line for table in found.values() for line in table.values()]
    assert all(len(line["seeds"]) == 1 for line in lines)
    assert {
        found["nms"]["no NMS"]["key"],
        found["proposals"]["10 proposals (paper: 50)"]["key"],
    } == {"rncdl"}


def test_fewer_regions_are_the_first_ones_of_the_bank(run: Path):
    bank = Bank(RunFolder(run).bank_dir)
    images = [ImageRecord(i, Path(), 1, 1) for i in range(bank.shape.num_images)]
    most, few = (
        next(BankFeed(bank, images, size=BatchSize(1, 1, number), seed=0).batches())
        for number in (None, 4)
    )
    assert len(most.views[0]) > 4
    for all_rows, first_rows in zip(most.views, few.views, strict=True):
        assert torch.equal(first_rows, all_rows[:4])


def test_every_component_has_its_row(run: Path, world: Path):
    found = ablated(run, world, *QUICK, name="components", tables="components")["components"]
    assert found["without MoCo pretraining"]["left_out"]
    made = [line for line in found.values() if not line["left_out"]]
    assert len(made) == 11
    assert all(line["seeds"] for line in made)
    assert found["FC instead of cosine classifier"]["published"]["diverged"]


def test_heads_trained_at_once_are_shown_one_by_one(run: Path, world: Path):
    found = ablated(run, world, *QUICK, name="heads", tables="heads", clusters="4,6")["heads"]
    together = [line for title, line in found.items() if title.endswith("at once")]
    assert [line["head"] for line in together] == [0, 1]
    assert len({line["key"] for line in together}) == 1
    sizes = [n["clusters"]["num_clusters"] for n in together[0]["seeds"][0]["heads"]]
    assert sizes == [4, 6]


def test_rows_that_diverge_are_reported_as_diverged(run: Path, world: Path):
    found = ablated(
        run,
        world,
        "discover.rate=1e6",
        "discover.warmup_steps=0",
        "discover.max_rounds=20",
        name="wild",
        tables="alpha",
    )["alpha"]
    assert all(line["diverged"] for line in found.values() if line["title"] != "α = 0")
    assert found["α = 0.5"]["seeds"][0]["problem"].startswith("diverged: ")
    folder = TableFolder(RunFolder(run).table_dir("ablate", "wild"))
    assert "| α = 0.5 | diverged |" in folder.markdown_file.read_text()
    assert not list((folder.path / "unfinished").iterdir())


def refusal(*words: object) -> str:
    """What the command line objects to."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert isinstance(result.exception, UserError), result.output
    return str(result.exception)


def test_a_table_of_other_settings_is_refused(run: Path, world: Path, comparison: TableFolder):
    said = refusal("compare", world / "val.json", "--run", run, "discover.alpha=0.25")
    assert str(comparison.path) in said
    assert "discover.alpha=0.25" in said
    assert "--name" in said


def test_a_run_that_noted_no_images_asks_for_them(run: Path, world: Path, tmp_path: Path):
    bare = tmp_path / "bare"
    shutil.copytree(run, bare, ignore=shutil.ignore_patterns("discoveries", "compare", "ablate"))
    with pytest.raises(UserError, match="--unlabelled"):
        compared(bare, world, name="main", methods="rncdl")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("compare", "--methods", "kmeans-feature"), "Did you mean 'kmeans-features'"),
        (("ablate", "--table", "alfa"), "Did you mean 'alpha'"),
        (("ablate", "--seeds", "0,x"), "--seeds='0,x'"),
    ],
)
def test_a_slip_on_the_command_line_is_explained(
    run: Path, world: Path, words: tuple[str, ...], expected: str
):
    assert expected in refusal(*words, "--run", run, world / "val.json")
