"""Evaluation, from the command line to files."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np

from rncdl.naming.edits import ClusterState, Edit
from rncdl.naming.store import DecisionStore
from rncdl.run_folder import RunFolder
from tests.pipeline.tiny import run_rncdl


def test_a_trained_run_gets_known_ap(world: Path, trained: Path, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns("bank", "discoveries"))
    said = run_rncdl("evaluate", world / "val.json", "--run", run)
    assert "the detector as trained" in said
    folder = RunFolder(run).evaluation("val", None)
    report = json.loads(folder.report_json.read_text())
    kinds = {entry["iou_type"]: entry for entry in report["ap"]}
    assert kinds.keys() == {"bbox", "segm"}
    assert kinds["bbox"]["known"]["num_classes"] > 0
    assert report["proposal_recall"]["all"]["num_annotations"] > 0
    assert report["settings"]["train"]["steps"] == 6
    assert "torch" in report["versions"]


def test_the_detector_as_trained_can_be_measured_after_a_discovery(evaluated: Path):
    report = json.loads(RunFolder(evaluated).evaluation("val", None).report_json.read_text())
    assert {entry["system"] for entry in report["ap"]} == {"trained"}


def test_a_discovery_gets_every_table_of_the_paper(world: Path, discovered: Path, tmp_path: Path):
    run = shutil.copytree(discovered, tmp_path / "run")
    run_rncdl("evaluate", world / "val.json", "--run", run, "--discovery", "main")
    folder = RunFolder(run).evaluation("val", "main")
    report = json.loads(folder.report_json.read_text())
    readings = {
        (entry["system"], entry["protocol"], entry["cut"], entry["iou_type"])
        for entry in report["ap"]
    }
    expected = {
        ("head0", protocol, cut, kind)
        for protocol in ("fixed", "paper")
        for cut in ("before", "after")
        for kind in ("bbox", "segm")
    }
    assert expected <= readings
    assert ("knownonly", None, "before", "bbox") in readings
    clustering = report["clusters"]["head0"]["scores"]["all"]
    assert 0 < clustering["accuracy"] <= clustering["purity"] <= 1
    assert 0 <= report["clusters"]["head0"]["novel_called_known"] <= 1
    novel = next(e for e in report["ap"] if e["system"] == "head0")["novel"]["ap"]
    assert report["clusters"]["head0"]["bound"]["novel"] >= novel
    assert all(0 < report["mask_iou"][group] < 1 for group in ("known", "novel", "all"))
    for entry in report["ap"]:
        assert entry["all"]["ap"] is not None
    lines = folder.assignment("head0_fixed").read_text().splitlines()
    assert len(lines) == 1 + 3 + 8
    assert [line.split(",")[1] for line in lines[1:4]] == ["known"] * 3
    assert folder.classes("head0_fixed_bbox").is_file()
    assert "mAPr" in folder.report_md.read_text()


def test_saved_predictions_can_be_evaluated_without_a_model(
    world: Path, evaluated: Path, tmp_path: Path
):
    folder = RunFolder(evaluated).evaluation("val", "main")
    predictions = Path(shutil.copy(folder.predictions("head0_fixed"), tmp_path))
    known = ",".join(RunFolder(evaluated).split().known)
    said = run_rncdl(
        "--processes", 2, "evaluate", world / "val.json", "--predictions", predictions,
        "--known", known, "predict.max_detections=20",
    )  # fmt: skip
    assert said.count(f"{predictions.name}, bbox") == 1
    report = json.loads(folder.report_json.read_text())
    boxes = next(e for e in report["ap"] if e["system"] == "head0")
    assert f"{100 * boxes['all']['ap']:.2f}" in said


def test_two_processes_find_what_one_finds(world: Path, discovered: Path, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(discovered, run)
    reports = []
    for processes in (1, 2):
        run_rncdl(
            *("evaluate", world / "val.json", "--run", run, "--discovery", "main"),
            "predict.batch_size=1",
            processes=processes,
        )
        reports.append(json.loads(RunFolder(run).evaluation("val", "main").report_json.read_text()))
    assert reports[0]["ap"] == reports[1]["ap"]
    assert reports[0]["clusters"] == reports[1]["clusters"]
    assert reports[0]["proposal_recall"] == reports[1]["proposal_recall"]
    assert reports[0]["mask_iou"] == reports[1]["mask_iou"]


def test_foreground_scores_change_the_order(world: Path, discovered: Path, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(discovered, run)
    scores = []
    for score in ("softmax", "foreground"):
        run_rncdl(
            *("evaluate", world / "val.json", "--run", run, "--discovery", "main"),
            f"predict.score={score}",
        )
        path = RunFolder(run).evaluation("val", "main").predictions("head0_fixed")
        scores.append(np.array([d["score"] for d in json.loads(path.read_text())]))
    assert scores[1].max() < scores[0].max()


def test_clusters_count_as_the_classes_that_people_named(
    world: Path, discovered: Path, tmp_path: Path
):
    """Two clusters are one class of the file, one a known class, one of no class, one ignored."""
    run = shutil.copytree(discovered, tmp_path / "run", ignore=shutil.ignore_patterns("bank"))
    known = RunFolder(run).split().known
    categories = json.loads((world / "val.json").read_text())["categories"]
    novel = next(one["name"] for one in categories if one["name"] not in known)
    states = {1: ClusterState(novel.upper()), 5: ClusterState(novel.upper())}
    states |= {2: ClusterState(known[0]), 3: ClusterState("unheard of")}
    states |= {0: ClusterState(ignored=True)}
    with DecisionStore(
        RunFolder(run).discovery("main").decisions_file(0), num_clusters=8, heads="any"
    ) as store:
        store.decide(Edit("name", states))
    run_rncdl("evaluate", world / "val.json", "--run", run)
    folder = RunFolder(run).evaluation("val", "main", decided=True)
    with folder.assignment("head0_named").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["name"], row["class"]) for row in rows] == [
        *((name, name) for name in known),
        (novel.upper(), novel),
        ("unheard of", ""),
        *((f"novel_{cluster:04d}", "") for cluster in (4, 6, 7)),
    ]
    report = json.loads(folder.report_json.read_text())
    assert {entry["protocol"] for entry in report["ap"]} == {None, "fixed", "named"}
    assert report["clusters"]["head0"]["num_clusters"] == 5
    assert RunFolder(run).evaluations_of("main") == {}
    run_rncdl("evaluate", world / "val.json", "--run", run, "--raw")
    raw = json.loads(RunFolder(run).evaluation("val", "main").report_json.read_text())
    assert raw["clusters"]["head0"]["num_clusters"] == 8
    assert {entry["protocol"] for entry in raw["ap"]} == {None, "fixed", "paper"}
