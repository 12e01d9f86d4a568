"""`rncdl promote`: from people's names to a file that the next training takes."""

import json
import math
import re
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.ops import box_iou

from rncdl.discovery.bank import Bank
from rncdl.naming.decisions import NOT_AN_OBJECT
from rncdl.naming.edits import ClusterState, Edit, RegionKey
from rncdl.naming.store import DecisionStore
from rncdl.prediction.predictor import load
from rncdl.run_folder import RunFolder
from tests.pipeline.tiny import SETTINGS, TEACHER, run_rncdl

FEW = ("--min-score", 0, "--min-per-class", 1)


@pytest.fixture
def run(evaluated: Path, tmp_path: Path) -> Path:
    return shutil.copytree(evaluated, tmp_path / "run")


def decide(
    run: Path, clusters: dict[int, ClusterState], regions: dict[RegionKey, int | None] | None = None
) -> None:
    path = RunFolder(run).discovery("main").decisions_file(0)
    with DecisionStore(path, num_clusters=8, heads="any") as store:
        store.decide(Edit("decided", clusters, regions or {}))


def named(*clusters: int, name: str = "cup") -> dict[int, ClusterState]:
    return dict.fromkeys(clusters, ClusterState(name))


def promote(run: Path, out: Path, *words: object) -> dict[str, Any]:
    run_rncdl("promote", "--run", run, "--out", out, *words)
    return json.loads(out.read_text())


def test_without_names_nothing_is_promoted(run: Path, tmp_path: Path):
    words = ("promote", "--run", run, "--out", tmp_path / "labels.json", *FEW)
    assert "no cluster has a name yet" in run_rncdl(*words, code=2)
    decide(run, {0: ClusterState(ignored=True), 1: ClusterState("novel_0001")})
    assert "no cluster has a name yet" in run_rncdl(*words, code=2)
    assert not (tmp_path / "labels.json").exists()


def test_named_clusters_become_labels_beside_the_old_ones(run: Path, world: Path, tmp_path: Path):
    known = RunFolder(run).split().known
    decide(run, named(*range(1, 8)) | {0: ClusterState(ignored=True)})
    content = promote(run, tmp_path / "labels.json", *FEW)
    old = json.loads((world / "labelled.json").read_text())
    names = [category["name"] for category in content["categories"]]
    assert names == [*known, "cup"]
    kept = content["annotations"][: len(old["annotations"])]
    for before, after in zip(
        sorted(old["annotations"], key=lambda one: (one["image_id"], one["id"])), kept, strict=True
    ):
        assert after == {**before, "origin": "labelled"}
    added = content["annotations"][len(kept) :]
    assert {one["origin"] for one in added} == {"detected"}
    assert all(one["segmentation"]["counts"] for one in added)
    num_old = len(old["images"])
    assert content["images"][:num_old] == [
        {**image, "file_name": str(world / image["file_name"])} for image in old["images"]
    ]
    cup = content["categories"][-1]["id"]
    new_images = {image["id"] for image in content["images"][num_old:]}
    assert new_images
    assert new_images <= {one["image_id"] for one in added if one["category_id"] == cup}
    in_labelled = [one for one in added if one["image_id"] not in new_images]
    assert {one["category_id"] for one in in_labelled} == {cup}


def new_scores(content: dict[str, Any], known: Collection[str]) -> dict[str, list[float]]:
    """The scores of the new labels of each new class."""
    name_of = {category["id"]: category["name"] for category in content["categories"]}
    scores: dict[str, list[float]] = {}
    for one in content["annotations"]:
        if name_of[one["category_id"]] not in known:
            scores.setdefault(name_of[one["category_id"]], []).append(one["score"])
    return scores


def test_clusters_without_a_name_become_classes_when_asked(run: Path, tmp_path: Path):
    known = RunFolder(run).split().known
    every = promote(run, tmp_path / "every.json", *FEW, "--unnamed")
    assert (every["info"]["unnamed"], every["info"]["best_share"]) == (True, 1.0)
    names = new_scores(every, known)
    assert names
    assert names.keys() <= {f"found_{cluster:04d}" for cluster in range(8)}
    assert [one["name"] for one in every["categories"]] == [*known, *sorted(names)]
    given = min(names)
    decide(run, named(int(given[-4:])))
    decided = new_scores(promote(run, tmp_path / "decided.json", *FEW, "--unnamed"), known)
    assert decided.keys() == {"cup" if name == given else name for name in names}
    cup_alone = promote(run, tmp_path / "cup.json", *FEW)
    assert new_scores(cup_alone, known).keys() == {"cup"}
    assert not cup_alone["info"]["unnamed"]
    decide(run, dict.fromkeys(range(8), ClusterState(ignored=True)))
    words = ("promote", "--run", run, "--out", tmp_path / "none.json", *FEW, "--unnamed")
    assert "No region of a cluster is left" in run_rncdl(*words, code=2)


def test_of_each_new_class_the_best_share_is_kept(run: Path, world: Path, tmp_path: Path):
    known = RunFolder(run).split().known
    words = (*FEW, "--unnamed")
    every = new_scores(promote(run, tmp_path / "every.json", *words), known)
    half = promote(run, tmp_path / "half.json", *words, "--best-share", 0.5)
    kept = new_scores(half, known)
    assert half["info"]["best_share"] == 0.5
    assert kept.keys() == every.keys()
    for name, scores in every.items():
        best = sorted(scores, reverse=True)
        count = math.ceil(len(scores) / 2)
        # In the file scores are rounded, so what lies on the threshold may look the same.
        on_threshold = best.count(best[count - 1])
        assert count <= len(kept[name]) < count + on_threshold
        assert sorted(kept[name], reverse=True) == best[: len(kept[name])]
    assert max(map(len, every.values())) > 1
    num_old = len(json.loads((world / "labelled.json").read_text())["images"])
    fresh = {one["id"] for one in half["categories"] if one["name"] in kept}
    added = {image["id"] for image in half["images"][num_old:]}
    assert added <= {one["image_id"] for one in half["annotations"] if one["category_id"] in fresh}


def test_few_clusters_without_a_name_are_told_in_one_line(run: Path, tmp_path: Path):
    words = ("promote", "--run", run, "--out", tmp_path / "labels.json", "--min-score", 0)
    said = run_rncdl(*words, "--unnamed", "--min-per-class", 10_000, code=2)
    assert said.count("left out") == 1
    assert "clusters without a name: left out" in said
    assert "No region of a cluster is left" in said


def test_a_region_that_was_moved_to_a_cluster_without_a_name_is_of_its_class(
    run: Path, tmp_path: Path
):
    before = promote(run, tmp_path / "before.json", *FEW, "--unnamed")
    bank = Bank(RunFolder(run).bank_dir)
    (key, *_) = regions_on_labels(before, bank)
    decide(run, {8: ClusterState()}, {key: 8})
    content = promote(run, tmp_path / "labels.json", *FEW, "--unnamed")
    assert on_region(content, bank, key) == [("found_0008", "placed")]


def test_nothing_is_overwritten(run: Path, tmp_path: Path):
    decide(run, named(1))
    out = tmp_path / "labels.json"
    out.write_text("mine")
    words = ("promote", "--run", run, "--out", out, *FEW)
    assert "is not overwritten" in run_rncdl(*words, code=2)
    assert out.read_text() == "mine"


def test_rare_classes_are_told_and_left_out(run: Path, tmp_path: Path):
    decide(run, named(*range(8)))
    words = ("promote", "--run", run, "--out", tmp_path / "labels.json", "--min-score", 0.001)
    said = run_rncdl(*words, "--min-per-class", 10_000, code=2)
    assert "cup: left out, for only" in said
    assert "lower --min-score" in said


def test_what_people_moved_is_honoured(run: Path, tmp_path: Path):
    """Of two regions that lie on labels, one is said to be no object and one to be a vase."""
    decide(run, named(*range(8)))
    before = promote(run, tmp_path / "before.json", *FEW)
    bank = Bank(RunFolder(run).bank_dir)
    no_object, vase = regions_on_labels(before, bank)[:2]
    assert [on_region(before, bank, key) for key in (no_object, vase)] == [
        [("cup", "detected")]
    ] * 2
    decide(run, {8: ClusterState("vase")}, {no_object: NOT_AN_OBJECT, vase: 8})
    content = promote(run, tmp_path / "labels.json", *FEW)
    assert on_region(content, bank, no_object) == []
    assert on_region(content, bank, vase) == [("vase", "placed")]
    placed = promote(run, tmp_path / "placed.json", *FEW, "--only-placed")
    assert [one["origin"] for one in placed["annotations"]].count("placed") == 1
    assert "cup" not in [category["name"] for category in placed["categories"]]


def regions_on_labels(content: dict[str, Any], bank: Bank) -> list[RegionKey]:
    """Regions of labelled images that share most of their box with one new label and no old one."""
    keys = []
    for index in range(bank.shape.num_labelled):
        for region in range(int(bank.counts()[index])):
            found = [origin for _, origin in on_region(content, bank, (index, region), iou=0.1)]
            on_label = on_region(content, bank, (index, region), iou=0.7)
            if found == ["detected"] and len(on_label) == 1:
                keys.append((index, region))
                break
    return keys


def on_region(
    content: dict[str, Any], bank: Bank, key: RegionKey, *, iou: float = 0.5
) -> list[tuple[str, str]]:
    """Class and origin of the labels that overlap a region of a labelled image."""
    index, region = key
    image_id = content["images"][index]["id"]
    own = [one for one in content["annotations"] if one["image_id"] == image_id]
    boxes = torch.tensor([one["bbox"] for one in own], dtype=torch.float32).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    shown = bank.read_boxes(index, count=region + 1)[region:]
    name_of = {category["id"]: category["name"] for category in content["categories"]}
    return [
        (name_of[one["category_id"]], one["origin"])
        for one, overlap in zip(own, box_iou(shown, boxes)[0].tolist(), strict=True)
        if overlap >= iou
    ]


def test_two_processes_write_the_same_labels(run: Path, tmp_path: Path):
    decide(run, named(*range(8)))
    alone = promote(run, tmp_path / "alone.json", *FEW)
    words = ("promote", "--run", run, "--out", tmp_path / "shared.json", *FEW)
    run_rncdl(*words, processes=2)
    shared = json.loads((tmp_path / "shared.json").read_text())
    assert shared["images"] == alone["images"]
    columns = [[one["image_id"] for one in content["annotations"]] for content in (alone, shared)]
    assert columns[0] == columns[1]
    np.testing.assert_allclose(
        [one["bbox"] for one in alone["annotations"]],
        [one["bbox"] for one in shared["annotations"]],
        atol=1e-2,
    )


def test_the_next_round_trains_and_discovers_with_the_new_class(
    run: Path, world: Path, tmp_path: Path
):
    decide(run, named(*range(8)))
    content = promote(run, tmp_path / "labels.json", *FEW)
    second = tmp_path / "second"
    words = ("--labelled", tmp_path / "labels.json", "--start-from", run)
    run_rncdl("train", "--run", second, *words, *SETTINGS)
    assert RunFolder(second).split().known == (*RunFolder(run).split().known, "cup")
    run_rncdl("discover", "--run", second, "--unlabelled", world / "unlabelled.json")
    shape = Bank(RunFolder(second).bank_dir).shape
    assert shape.num_labelled == len(content["images"])
    assert shape.num_images == Bank(RunFolder(run).bank_dir).shape.num_images
    # The report and the table of rounds say what it has brought.
    assert "Round by round" not in report_of(run)
    run_rncdl("evaluate", world / "val.json", "--run", second, "--discovery", "trained")
    said = run_rncdl("rounds", "--run", second)
    rows = re.findall(r"(\d)\. (run|second): (detector of \d|discovered)", said)
    assert rows == [
        ("1", "run", "detector of 3"),
        ("1", "run", "discovered"),
        ("2", "second", "detector of 4"),
    ]
    html = report_of(second)
    assert '<th scope="row">2. second: detector of 4 classes</th>' in html


def test_a_teacher_takes_classes_without_a_name_for_known_ones(
    run: Path, world: Path, tmp_path: Path
):
    content = promote(run, tmp_path / "labels.json", *FEW, "--unnamed")
    found = list(new_scores(content, RunFolder(run).split().known))
    second = tmp_path / "second"
    words = ("--labelled", tmp_path / "labels.json", "--start-from", run)
    run_rncdl("train", "--run", second, *words, *SETTINGS)
    pool = ("--unlabelled", world / "unlabelled.json")
    run_rncdl("discover", "--run", second, *pool, *TEACHER, "discover.heads=[3]")
    run_rncdl("evaluate", world / "val.json", "--run", second)
    report = json.loads(RunFolder(second).evaluation("val", "main").report_json.read_text())
    assert report["clusters"]["head0"]["num_clusters"] == 3 + len(found)
    assert report["clusters"]["knownonly"]["num_clusters"] == len(found)
    assert load(second).known == (*RunFolder(run).split().known, *sorted(found))


def report_of(run: Path) -> str:
    run_rncdl("report", "--run", run)
    return (run / "report.html").read_text()


def test_a_run_that_nobody_measured_has_no_rounds_to_show(trained: Path):
    assert "run `rncdl evaluate`" in run_rncdl("rounds", "--run", trained, code=2)
