"""The Python API: the page's examples, and that functions do what the commands do."""

import json
import re
import shutil
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import rncdl
from rncdl.config import dump_settings, resolve_settings
from rncdl.naming.edits import ClusterState, Edit
from rncdl.naming.store import DecisionStore
from rncdl.run_folder import RunFolder
from tests.pipeline.tiny import REPOSITORY, SETTINGS, run_rncdl


@dataclass(frozen=True)
class Played:
    """What is left after all examples of docs/python.md were run, one after the other."""

    folder: Path
    names: dict[str, Any]
    said: list[str]
    """what each of them printed"""


@pytest.fixture(scope="module")
def played(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp("python")
    for name, source in {"labels": "labelled", "val": "val"}.items():
        shutil.copy(world / f"{source}.json", folder / f"{name}.json")
    (folder / "photos").symlink_to(world, target_is_directory=True)
    (folder / "more_photos").mkdir()
    unlabelled = json.loads((world / "unlabelled.json").read_text())["images"]
    for image in unlabelled[:6]:
        shutil.copy(world / image["file_name"], folder / "more_photos")
    drawn = Image.open(world / unlabelled[0]["file_name"]).convert("RGB")
    drawn.resize((150, 40)).save(folder / "photo.jpg")
    settings = resolve_settings(overrides=SETTINGS)
    (folder / "mine.yaml").write_text(dump_settings(settings))
    page = (REPOSITORY / "docs" / "python.md").read_text()
    names: dict[str, Any] = {}
    said = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for example in re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE):
            with redirect_stdout(StringIO()) as screen:
                exec(example, names)
            said.append(screen.getvalue())
    return Played(folder, names, said)


def test_a_run_made_in_python_is_the_commands_run(played: Played, trained: Path):
    run = played.folder / played.names["run"]
    for name in ("detector.safetensors", "classes.json", "settings.yaml"):
        assert (run / name).read_bytes() == (trained / name).read_bytes()
    assert RunFolder(run).discovery_names() == ["main"]


def test_the_example_finds_the_same_in_a_file_a_picture_an_array_and_a_tensor(played: Played):
    regions, of_many = played.names["regions"], played.names["of_many"]
    assert len(played.said[1].splitlines()) == len(regions) > 0
    assert re.match(r"\S+ 0\.\d\d at \[[\d., ]+\]\n", played.said[1])
    assert played.names["masks"].shape == (int(played.names["is_novel"].sum()), 40, 150)
    first, *others = of_many
    assert len(others) == 3
    for other in others:
        assert other.names == first.names
        assert torch.equal(other.boxes_xyxy, first.boxes_xyxy)
        assert torch.equal(other.features, first.features)


def test_clusters_are_what_the_bank_and_the_heads_say(played: Played):
    found: list[rncdl.Cluster] = played.names["found"]
    assert [one.number for one in found] == list(range(8))
    assert [one.name for one in found] == [f"novel_{number:04d}" for number in range(8)]
    assert not any(one.is_named or one.is_ignored for one in found)
    assert sum(one.size for one in found) > 0
    known = RunFolder(played.folder / "runs" / "mine").split().known
    for one in found:
        assert one.num_images <= one.size
        assert len(one.examples) == min(4, one.num_images)
        assert len({example.image for example in one.examples}) == len(one.examples)
        assert one.nearest_known in known
        assert len(one.nearest_clusters) == 3
        assert one.number not in one.nearest_clusters
        for example in one.examples:
            width, height = Image.open(example.image).size
            x0, y0, x1, y1 = example.box_xyxy
            assert 0 <= x0 < x1 <= width + 1e-3
            assert 0 <= y0 < y1 <= height + 1e-3
    assert re.match(r"novel_\d{4}: \d+ regions in \d+ images, \d+% like ", played.said[2])


def test_the_report_is_the_one_in_the_run_folder(played: Played):
    written = RunFolder(played.folder / "runs" / "mine").evaluation("val", "main").report_json
    expected = json.loads(written.read_text())
    assert expected.pop("title") == "val.json, main"
    assert json.loads(json.dumps(played.names["everything"])) == expected
    ap = played.names["ap"]
    assert f"novel {ap.novel.ap}," in played.said[3]


def test_the_example_exports_both(played: Played):
    content = json.loads(
        (played.folder / "found_coco" / "annotations" / "instances_default.json").read_text()
    )
    assert len(content["images"]) == 6
    assert all(one["score"] > 0.2 for one in content["annotations"])
    assert (played.folder / "detector.onnx").stat().st_size > 1e6


def test_a_missing_image_is_one_sentence(played: Played):
    assert re.fullmatch(r"image: missing\.jpg: cannot read.*\n", played.said[5])


def test_an_interrupted_training_and_discovery_go_on(world: Path, trained: Path, tmp_path: Path):
    """Given one after the other, from a list of pools, with settings by name."""
    run = shutil.copytree(trained, tmp_path / "run")
    (run / "detector.safetensors").unlink()
    assert rncdl.train(run, resume=True) == run
    assert (run / "detector.safetensors").read_bytes() == (
        trained / "detector.safetensors"
    ).read_bytes()
    pools = [world / "unlabelled.json"]
    rncdl.discover(run, pools, discovery="few", settings={"discover": {"heads": [5]}})
    assert rncdl.load(run).num_novel == 5
    with pytest.raises(rncdl.UserError, match="this discovery is finished"):
        rncdl.discover(run, discovery="few", resume=True)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "give the labelled json"),
        ({"resume": True, "known": ["star"]}, "give settings alone"),
        ({"labelled": "no.json"}, r"no\.json"),
        ({"labelled": "no.json", "settings": {"train.stepps": 3}}, "did you mean.*train.steps"),
    ],
)
def test_what_cannot_be_trained_is_told(arguments: dict[str, Any], reason: str, tmp_path: Path):
    with pytest.raises(rncdl.UserError, match=f"(?i){reason}"):
        rncdl.train(tmp_path / "run", **arguments)
    assert not (tmp_path / "run").exists()


def test_known_classes_may_be_a_list(world: Path, trained: Path, tmp_path: Path):
    known = RunFolder(trained).split().known[:2]
    with pytest.raises(rncdl.UserError, match="'sart' is not among"):
        rncdl.train(tmp_path / "run", world / "labelled.json", known=["sart"])
    words = [*SETTINGS, "train.steps=1", "train.warmup_steps=1"]
    run = rncdl.train(tmp_path / "run", world / "labelled.json", known=list(known), settings=words)
    assert rncdl.load(run).known == known


def test_peoples_names_are_the_clusters_names(discovered: Path, tmp_path: Path):
    run = shutil.copytree(discovered, tmp_path / "run")
    before = rncdl.clusters(run, examples=0)
    with DecisionStore(
        RunFolder(run).discovery("main").decisions_file(0), num_clusters=8, heads="any"
    ) as store:
        store.decide(Edit("name", {1: ClusterState("owl"), 3: ClusterState(ignored=True)}))
    after = rncdl.clusters(run, discovery="main", examples=0)
    assert [one.name for one in after if one.is_named] == ["owl"]
    assert [one.number for one in after if one.is_ignored] == [3]
    assert [one.size for one in after] == [one.size for one in before]
    assert np.allclose([one.promise for one in after], [one.promise for one in before])
    assert {one.examples for one in after} == {()}


def test_clusters_that_cannot_be_shown_are_told(trained: Path, discovered: Path, tmp_path: Path):
    with pytest.raises(rncdl.UserError, match="no finished discovery"):
        rncdl.clusters(trained)
    with pytest.raises(rncdl.UserError, match=r"head 1: .* heads 0 to 0"):
        rncdl.clusters(discovered, head=1)
    run = shutil.copytree(discovered, tmp_path / "run", ignore=shutil.ignore_patterns("bank"))
    with pytest.raises(rncdl.UserError, match="no bank"):
        rncdl.clusters(run)


def files_below(out: Path) -> dict[str, bytes]:
    """All but the notes, which name the folder."""
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file() and ".rncdl" not in path.parts
    }


def test_an_export_is_that_of_the_command(discovered: Path, world: Path, tmp_path: Path):
    images = sorted((world / "images").glob("val*"))[:2]
    run_rncdl(
        *("export", "yolo", *images, "predict.max_detections=7", "--run", discovered),
        *("--out", tmp_path / "a", "--only", "novel", "--shape", "box", "--min-score", 0),
        *("--val-share", 0.5, "--keep-overlapping"),
    )
    out = rncdl.export(
        "yolo",
        tmp_path / "b",
        run=discovered,
        images=images,
        settings={"predict.max_detections": 7},
        only="novel",
        shape="box",
        min_score=0,
        val_share=0.5,
        keep_overlapping=True,
    )
    assert out == tmp_path / "b"
    ours, theirs = files_below(out), files_below(tmp_path / "a")
    assert any(content for name, content in ours.items() if name.startswith("labels/"))
    assert {name: c.replace(b"/b", b"/a") for name, c in ours.items()} == theirs


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("coco", {}, "either run= and images=, or predictions="),
        ("coco", {"run": "runs/mine"}, "either run= and images="),
        ("coco", {"predictions": "found", "only": "new"}, "only='new' is none of all, known, nov"),
        ("coco", {"predictions": "found", "min_score": 3}, "min_score=3 is not between 0 and 1"),
        ("cocoa", {"predictions": "found"}, "'cocoa' is no format.*'coco'"),
        ("onnx", {}, "onnx takes run="),
        ("onnx", {"run": "runs/mine", "shape": "box"}, "onnx takes run="),
    ],
)
def test_what_cannot_be_exported_is_told(
    name: str, options: dict[str, Any], reason: str, tmp_path: Path
):
    with pytest.raises(rncdl.UserError, match=reason):
        rncdl.export(name, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
