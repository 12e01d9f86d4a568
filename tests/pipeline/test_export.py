"""`rncdl export` straight from images."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rncdl.naming.edits import ClusterState, Edit
from rncdl.naming.store import DecisionStore
from rncdl.run_folder import RunFolder
from tests.pipeline.tiny import SETTINGS, run_killed, run_rncdl

ALL = ("--min-score", 0, "--keep-overlapping")


@pytest.fixture(scope="module")
def photos(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two images of one name in two folders."""
    folder = tmp_path_factory.mktemp("photos")
    for name, source in zip("ab", sorted((world / "images").glob("val*")), strict=False):
        (folder / name).mkdir()
        Image.open(source).save(folder / name / "1 ü.png")
    return folder


def files_below(out: Path) -> dict[str, bytes]:
    """All but the notes, which name the folder."""
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file() and ".rncdl" not in path.parts
    }


def read(out: Path) -> dict[str, Any]:
    return json.loads((out / "annotations" / "instances_default.json").read_text())


def test_images_and_predictions_of_them_give_the_same_export(
    discovered: Path, photos: Path, tmp_path: Path
):
    words = ("--run", discovered, "--discovery", "main")
    run_rncdl("predict", photos, *words, "--out", tmp_path / "found")
    found = json.loads((tmp_path / "found" / "predictions.json").read_text())
    run_rncdl("export", "coco", "--predictions", tmp_path / "found", "--out", tmp_path / "a", *ALL)
    for _ in range(2):  # the second time, nothing is left to do
        run_rncdl("export", "coco", photos, *words, "--out", tmp_path / "b", *ALL)
    assert files_below(tmp_path / "a") == files_below(tmp_path / "b")
    content = read(tmp_path / "b")
    assert [image["file_name"] for image in content["images"]] == ["a__1 ü.png", "b__1 ü.png"]
    names = {category["id"]: category["name"] for category in content["categories"]}
    assert found
    for entry, before in zip(content["annotations"], found, strict=True):
        assert names[entry["category_id"]] == before["name"]
        for key in ("image_id", "score", "segmentation"):
            assert entry[key] == before[key]
        assert np.abs(np.subtract(entry["bbox"], before["bbox"])).max() < 1e-2


def test_images_below_the_export_are_not_looked_at(discovered: Path, photos: Path, tmp_path: Path):
    mine = shutil.copytree(photos, tmp_path / "mine")
    for _ in range(2):
        run_rncdl("export", "yolo", mine, "--run", discovered, "--out", mine / "yolo")
    labels = sorted(path.name for path in (mine / "yolo" / "labels").rglob("*.txt"))
    assert labels == ["a__1 ü.txt", "b__1 ü.txt"]


def test_an_unreadable_image_is_told_and_the_rest_exported(
    discovered: Path, photos: Path, tmp_path: Path
):
    broken = tmp_path / "broken.png"
    broken.write_bytes((photos / "a" / "1 ü.png").read_bytes()[:300])
    words = ("export", "voc", photos, broken, "--run", discovered, "--out", tmp_path / "out")
    assert "1 images were not exported" in run_rncdl(*words, code=3)
    (line,) = (tmp_path / "out" / "skipped_images.jsonl").read_text().splitlines()
    assert json.loads(line)["path"] == str(broken)
    assert len(list((tmp_path / "out" / "Annotations").iterdir())) == 2


@pytest.mark.parametrize(
    "after", ["rncdl.prediction.folder.BatchLog.write", "rncdl.exports.folder.ExportFolder.begin"]
)
def test_a_killed_export_goes_on_to_the_same_files(
    discovered: Path, photos: Path, tmp_path: Path, after: str
):
    """Killed once while it detects, once when the first detections are to be exported."""
    words = ("export", "cvat", photos, "predict.batch_size=1", "--run", discovered, *ALL)
    run_killed(*words, "--out", tmp_path / "cut", after=after)
    assert not (tmp_path / "cut" / "annotations.xml").exists()
    for name in ("cut", "whole"):
        run_rncdl(*words, "--out", tmp_path / name)
    assert files_below(tmp_path / "cut") == files_below(tmp_path / "whole")


def test_other_images_are_refused_and_overwrite_exports_them(
    discovered: Path, photos: Path, tmp_path: Path
):
    words = ("--run", discovered, "--out", tmp_path / "out", *ALL)
    run_rncdl("export", "coco", photos / "a", *words)
    before = files_below(tmp_path / "out")
    said = run_rncdl("export", "coco", photos / "b", *words, code=2)
    assert "images: '1 readable" in said
    assert files_below(tmp_path / "out") == before
    run_rncdl("export", "coco", photos / "b", *words, "--overwrite")
    assert [image["width"] for image in read(tmp_path / "out")["images"]] == [64]
    assert files_below(tmp_path / "out") != before


def test_peoples_decisions_reach_the_export(discovered: Path, photos: Path, tmp_path: Path):
    """Two clusters of one name, one that is a known class after all, and one ignored."""
    run = shutil.copytree(discovered, tmp_path / "run", ignore=shutil.ignore_patterns("bank"))
    known = RunFolder(run).split().known
    with DecisionStore(
        RunFolder(run).discovery("main").decisions_file(0), num_clusters=8, heads="any"
    ) as store:
        states = {1: ClusterState("cup & saucer"), 5: ClusterState("cup & saucer")}
        states |= {2: ClusterState(known[0]), 0: ClusterState(ignored=True)}
        store.decide(Edit("name", states))
    words = (photos, "predict.max_detections=1000", "--run", run, *ALL)
    run_rncdl("export", "coco", *words, "--out", tmp_path / "named")
    content = read(tmp_path / "named")
    kinds = [(one["name"], one["supercategory"], one["clusters"]) for one in content["categories"]]
    assert kinds == [
        (known[0], "known", [2]),
        *((name, "known", []) for name in known[1:]),
        ("cup & saucer", "novel", [1, 5]),
        *((f"novel_{cluster:04d}", "novel", [cluster]) for cluster in (3, 4, 6, 7)),
    ]
    exported = {one["category_id"] for one in content["annotations"]}
    assert exported == {one["id"] for one in content["categories"]}
    run_rncdl("export", "yolo", *words, "--only", "novel", "--out", tmp_path / "yolo")
    assert "0: cup & saucer\n" in (tmp_path / "yolo" / "data.yaml").read_text()
    run_rncdl("export", "coco", *words, "--raw", "--out", tmp_path / "raw")
    assert [one["clusters"] for one in read(tmp_path / "raw")["categories"]][3:] == [
        [cluster] for cluster in range(8)
    ]


def test_what_is_exported_can_be_checked_converted_and_trained_on(
    discovered: Path, photos: Path, tmp_path: Path
):
    yolo = tmp_path / "yolo"
    run_rncdl("export", "yolo", photos, "--run", discovered, "--out", yolo, *ALL)
    assert "nothing wrong" in run_rncdl("prepare", "check", yolo)
    said = run_rncdl("prepare", "convert", yolo, "--out", tmp_path / "labels.json")
    assert "2 images" in said
    runs = [tmp_path / "of_yolo", tmp_path / "of_coco"]
    for run, labels in zip(runs, (yolo, tmp_path / "labels.json"), strict=True):
        run_rncdl("train", "--run", run, "--labelled", labels, *SETTINGS, "train.steps=1")
    weights = [RunFolder(run).detector_file.read_bytes() for run in runs]
    assert weights[0] == weights[1]
    assert RunFolder(runs[0]).split() == RunFolder(runs[1]).split()
