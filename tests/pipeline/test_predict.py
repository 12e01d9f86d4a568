"""Prediction on anyone's images, from the command line and from Python."""

import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools.coco import COCO

import rncdl
from rncdl.config import resolve_settings
from rncdl.data.given_images import GivenImage
from rncdl.models import build_heads, load_detector
from rncdl.naming.edits import ClusterState, Edit
from rncdl.naming.store import DecisionStore
from rncdl.prediction import inference as passes
from rncdl.prediction.predictor import HeadChoice, Predictor
from rncdl.regions import Regions
from rncdl.run_folder import RunFolder
from rncdl.stages import predict as stage
from rncdl.stages.evaluate import evaluate, evaluate_predictions
from rncdl.training.interruption import Interrupted
from tests.pipeline.tiny import run_killed, run_rncdl

FILES = ("predictions.json", "images.json", "made_with.json")


@pytest.fixture(scope="module")
def photos(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven images of several kinds, the last of which is broken behind its header."""
    folder = tmp_path_factory.mktemp("photos")
    drawn = [Image.open(path) for path in sorted((world / "images").glob("val*"))[:3]]
    drawn[0].save(folder / "1.png")
    drawn[1].convert("L").save(folder / "2.png")
    drawn[2].convert("RGBA").save(folder / "3.png")
    drawn[0].resize((150, 40)).save(folder / "4.jpg")
    drawn[1].resize((31, 97)).save(folder / "sub.jpg")
    (folder / "deep").mkdir()
    drawn[2].save(folder / "deep" / "10.png")
    whole = (folder / "1.png").read_bytes()
    (folder / "9.png").write_bytes(whole[: len(whole) // 2])
    return folder


@pytest.fixture(scope="module")
def predictor(discovered: Path) -> Predictor:
    return rncdl.load(discovered, discovery="main")


def predict(words: list[Any], run: Path, out: Path, **options: Any) -> int:
    chosen = {key: options.pop(key) for key in ("discovery", "head", "raw") if key in options}
    choice = HeadChoice(**{"discovery": "main", **chosen})
    asked = {"min_score": None, "draw": False, "overwrite": False, **options}
    return stage.predict([str(word) for word in words], run, out=out, choice=choice, **asked)


def read(out: Path) -> list[dict[str, Any]]:
    return json.loads((out / "predictions.json").read_text())


def without_discovery(run: Path, to: Path) -> Path:
    shutil.copytree(run, to, ignore=shutil.ignore_patterns("discoveries", "bank", "evaluations"))
    return to


def assert_same(one: Regions, other: Regions) -> None:
    assert one.names == other.names
    assert torch.equal(one.boxes_xyxy, other.boxes_xyxy)
    assert one.scores is not None
    assert other.scores is not None
    assert torch.equal(one.scores, other.scores)
    assert one.rles == other.rles


def assert_found_again(one: Regions, other: Regions) -> None:
    """Every region of one is in the other, but for rounding: nearly equal scores change places.

    Those that score like the last one may have been cut off.
    """
    assert one.names is not None
    assert other.names is not None
    assert one.scores is not None
    assert other.scores is not None
    apart = (one.boxes_xyxy[:, None] - other.boxes_xyxy).abs().amax(2)
    apart = apart.maximum((one.scores[:, None] - other.scores).abs())
    is_other = torch.tensor([[mine != their for their in other.names] for mine in one.names])
    nearest = apart.masked_fill(is_other, torch.inf).amin(1)
    sure = one.scores > one.scores.min() + 1e-4
    assert sure.any()
    assert (nearest[sure] < 1e-2).all(), nearest


def test_an_empty_folder_is_an_error_and_makes_nothing(discovered: Path, tmp_path: Path):
    with pytest.raises(rncdl.UserError, match=f"No images at {tmp_path}"):
        predict([tmp_path], discovered, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_images_in_python_give_no_records(predictor: Predictor):
    assert predictor.predict([]) == []


def test_a_broken_image_is_told_and_the_rest_goes_on(
    discovered: Path, photos: Path, tmp_path: Path
):
    """One is broken behind its header, one in it; both kinds end in the same report."""
    (tmp_path / "no.jpg").write_text("no image")
    words = [photos, str(tmp_path / "*.jpg"), "predict.max_detections=5"]
    out = tmp_path / "out"
    said = run_rncdl(
        "predict", *words, "--run", discovered, "--discovery", "main", "--out", out, code=3
    )
    broken = {str(photos / "9.png"), str(tmp_path / "no.jpg")}
    assert all(f"warning: {path}: broken" in said for path in broken)
    skipped = [json.loads(line) for line in (out / "skipped_images.jsonl").read_text().splitlines()]
    assert {bad["path"] for bad in skipped} == broken
    images = json.loads((out / "images.json").read_text())["images"]
    found = [os.path.relpath(image["file_name"], photos) for image in images]
    assert found == ["1.png", "2.png", "3.png", "4.jpg", "deep/10.png", "sub.jpg"]
    assert [image["id"] for image in images] == [1, 2, 3, 4, 6, 7]  # 5 is the broken one's
    assert (images[3]["width"], images[3]["height"]) == (150, 40)
    per_image = np.bincount([entry["image_id"] for entry in read(out)])
    assert set(per_image[[1, 2, 3, 4, 6, 7]].tolist()) == {5}
    assert predict(words, discovered, out) == 2


def test_the_pair_of_files_is_what_cocos_tools_read(discovered: Path, photos: Path, tmp_path: Path):
    """Every output has its best box in either image, however little it has learned."""
    words = [photos / "4.jpg", photos / "sub.jpg", "predict.max_detections=1000"]
    predict(words, discovered, tmp_path / "out", min_score=0.0)
    coco = COCO(str(tmp_path / "out" / "images.json"))
    results = coco.loadRes(str(tmp_path / "out" / "predictions.json"))
    names = [category["name"] for category in coco.loadCats(coco.getCatIds())]
    assert names[:3] == list(RunFolder(discovered).split().known)
    assert names[3:] == [f"novel_{cluster:04d}" for cluster in range(8)]
    for entry in results.anns.values():
        width, height = (150, 40) if entry["image_id"] == 1 else (31, 97)
        category = coco.cats[entry["category_id"]]
        assert entry["name"] == category["name"]
        assert entry["cluster"] == category["cluster"]
        number = None if entry["cluster"] is None else f"novel_{entry['cluster']:04d}"
        assert entry["name"] == (number or names[entry["category_id"] - 1])
        x, y, w, h = entry["bbox"]
        assert min(x, y) >= 0
        assert x + w <= width + 1e-3
        assert y + h <= height + 1e-3
        assert results.annToMask(entry).shape == (height, width)
        assert "within_cut" not in entry
    seen = {(entry["image_id"], entry["name"]) for entry in results.anns.values()}
    assert seen == {(image, name) for image in (1, 2) for name in names}


def test_python_and_the_command_line_find_the_same(
    discovered: Path, predictor: Predictor, photos: Path, tmp_path: Path
):
    files = [photos / name for name in ("1.png", "2.png", "3.png", "4.jpg", "sub.jpg")]
    predict(files, discovered, tmp_path / "out")
    entries = read(tmp_path / "out")
    for image_id, regions in enumerate(predictor.predict(files), 1):
        of_image = [entry for entry in entries if entry["image_id"] == image_id]
        assert regions.names == [entry["name"] for entry in of_image]
        assert regions.scores is not None
        assert regions.rles is not None
        assert regions.scores.tolist() == [entry["score"] for entry in of_image]
        corners = [[x, y, x + w, y + h] for x, y, w, h in (entry["bbox"] for entry in of_image)]
        assert torch.allclose(regions.boxes_xyxy, torch.tensor(corners), atol=1e-4)
        counts = [entry["segmentation"]["counts"] for entry in of_image]
        assert [rle["counts"].decode() for rle in regions.rles] == counts


def test_every_kind_of_input_gives_the_same(predictor: Predictor, photos: Path):
    picture = Image.open(photos / "1.png").convert("RGB")
    array = np.array(picture)
    tensor = torch.from_numpy(array).permute(2, 0, 1)
    kinds: list[GivenImage] = [
        str(photos / "1.png"),
        picture,
        array,
        array / 255,
        tensor,
        tensor / 255,
    ]
    first = predictor.predict(photos / "1.png")
    assert len(first) == 20
    for kind in kinds:
        assert_same(predictor.predict(kind), first)


def test_grey_and_transparent_images_are_those_that_a_viewer_shows(
    predictor: Predictor, photos: Path
):
    grey = np.array(Image.open(photos / "2.png"))
    assert grey.ndim == 2
    assert_same(predictor.predict(photos / "2.png"), predictor.predict(np.dstack([grey] * 3)))
    opaque = np.array(Image.open(photos / "3.png"))[:, :, :3]
    assert_same(predictor.predict(photos / "3.png"), predictor.predict(opaque))


def test_a_batch_gives_what_its_images_give_alone(predictor: Predictor, photos: Path):
    files = [photos / name for name in ("1.png", "2.png", "3.png", "deep/10.png", "1.png")]
    for file, regions in zip(files, predictor.predict(files), strict=True):
        alone = predictor.predict(file)
        assert_found_again(regions, alone)
        assert_found_again(alone, regions)


def test_records_are_complete_and_in_the_images_pixels(predictor: Predictor, photos: Path):
    regions = predictor.predict(photos / "4.jpg", features=True)
    assert regions.masks is not None
    assert regions.masks.shape == (len(regions), 40, 150)
    assert regions.features is not None
    assert regions.features.shape == (len(regions), 32)
    assert not regions.features.is_inference()
    assert regions.labels is not None
    assert regions.names == [predictor.names[label] for label in regions.labels.tolist()]
    assert regions.boxes_xyxy[:, 2].max() > 64  # beyond the network's own frame
    lean = predictor.predict(photos / "4.jpg", masks=False)
    assert lean.masks is None
    assert lean.features is None
    assert torch.equal(lean.boxes_xyxy, regions.boxes_xyxy)


def test_only_scores_above_the_least_are_kept(
    discovered: Path, predictor: Predictor, photos: Path, tmp_path: Path
):
    everything = predictor.predict(photos / "1.png")
    assert everything.scores is not None
    least = everything.scores.median().item()
    kept = predictor.predict(photos / "1.png", min_score=least)
    assert_same(kept, everything[everything.scores > least])
    predict([photos / "1.png"], discovered, tmp_path / "out", min_score=least)
    assert [entry["name"] for entry in read(tmp_path / "out")] == kept.names


def test_a_wrong_item_is_told_by_its_place(predictor: Predictor, photos: Path):
    good = photos / "1.png"
    with pytest.raises(rncdl.UserError, match=r"^images\[6\]: an array of shape \(3, 4, 5\)"):
        predictor.predict([good] * 6 + [np.zeros((3, 4, 5), np.uint8)])
    with pytest.raises(rncdl.UserError, match=r"^image: missing.jpg: cannot read"):
        predictor.predict("missing.jpg")
    with pytest.raises(rncdl.UserError, match="min_score"):
        predictor.predict(good, min_score=2)


def test_a_run_without_a_discovery_finds_its_known_classes_as_evaluation_does(
    world: Path, trained: Path, tmp_path: Path
):
    """The same AP as `rncdl evaluate` gives, once ids are those of the validation file."""
    run = without_discovery(trained, tmp_path / "run")
    predict([world / "images" / "val*"], run, tmp_path / "out", discovery=None)
    val = json.loads((world / "val.json").read_text())
    listed = json.loads((tmp_path / "out" / "images.json").read_text())
    assert [category["cluster"] for category in listed["categories"]] == [None] * 3
    image_ids = {Path(image["file_name"]).name: image["id"] for image in val["images"]}
    category_ids = {category["name"]: category["id"] for category in val["categories"]}
    file_of = {image["id"]: Path(image["file_name"]).name for image in listed["images"]}
    entries = [
        entry
        | {
            "image_id": image_ids[file_of[entry["image_id"]]],
            "category_id": category_ids[entry["name"]],
        }
        for entry in read(tmp_path / "out")
    ]
    mapped = tmp_path / "mapped.json"
    mapped.write_text(json.dumps(entries))
    known = ",".join(RunFolder(run).split().known)
    settings: dict[str, Any] = {"images": None, "train_labels": None}
    found = evaluate_predictions(
        mapped, world / "val.json", known=known, overrides=["predict.max_detections=20"], **settings
    )
    report = evaluate(run, world / "val.json", name=None, overrides=[], **settings)
    assert report is not None
    assert entries
    for ours, theirs in zip(found, (score.result for score in report.scores), strict=True):
        assert ours.known.ap == pytest.approx(theirs.known.ap, abs=1e-6)
        assert ours.known.ap50 == pytest.approx(theirs.known.ap50, abs=1e-6)


def test_each_novel_head_can_be_chosen(discovered: Path, photos: Path, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(discovered, run, ignore=shutil.ignore_patterns("bank"))
    folder = RunFolder(run)
    settings = resolve_settings(base=folder.settings(), overrides=["discover.heads=[5,9]"])
    heads = build_heads(load_detector(folder, settings, folder.split()), settings.discover)
    folder.discovery("two").begin(settings, None)
    folder.discovery("two").save_heads(heads.state_dict())
    newest = rncdl.load(run)
    assert newest.discovery == "two"
    assert (newest.num_novel, rncdl.load(run, head=1).num_novel) == (5, 9)
    predict([photos / "1.png"], run, tmp_path / "out", discovery="two", head=1)
    listed = json.loads((tmp_path / "out" / "images.json").read_text())
    assert listed["categories"][-1] == {
        "id": 12, "name": "novel_0008", "cluster": 8, "clusters": [8]
    }  # fmt: skip
    with pytest.raises(rncdl.UserError, match="head 2 was asked for, but discovery 'two' has 2"):
        rncdl.load(run, head=2)
    with pytest.raises(rncdl.UserError, match="no discovery here"):
        rncdl.load(run, discovery="three")
    shutil.rmtree(run / "discoveries")
    with pytest.raises(rncdl.UserError, match="head 1 was asked for, but there is no discovery"):
        rncdl.load(run, head=1)


def test_decisions_count_at_once_unless_clusters_are_wanted_as_they_are(
    discovered: Path, photos: Path, tmp_path: Path
):
    run = shutil.copytree(discovered, tmp_path / "run", ignore=shutil.ignore_patterns("bank"))
    known = RunFolder(run).split().known
    before = rncdl.load(run)
    everything = [photos / "1.png", "predict.max_detections=1000"]
    with DecisionStore(
        RunFolder(run).discovery("main").decisions_file(0), num_clusters=8, heads="any"
    ) as store:
        states = {1: ClusterState("cup"), 5: ClusterState("cup"), 2: ClusterState(known[0])}
        store.decide(Edit("name", {**states, 0: ClusterState(ignored=True)}))
    assert rncdl.load(run, raw=True).names == before.names
    after = rncdl.load(run)
    assert after.names[:4] == [*known, "cup"]
    assert after.clusters[:4] == [(2,), (), (), (1, 5)]
    regions = after.predict(photos / "1.png", min_score=0.0)
    assert regions.names is not None
    assert regions.clusters == [after.clusters[after.names.index(name)] for name in regions.names]
    predict(everything, run, tmp_path / "named", min_score=0.0)
    entries = read(tmp_path / "named")
    assert {(e["name"], e["cluster"], *e["clusters"]) for e in entries} >= {("cup", 1, 1, 5)}
    assert {e["name"] for e in entries}.isdisjoint({"novel_0000", "novel_0001", "novel_0002"})
    with pytest.raises(rncdl.UserError, match=r"decisions: '.*', now None"):
        predict(everything, run, tmp_path / "named", min_score=0.0, raw=True)
    predict(everything, run, tmp_path / "raw", min_score=0.0, raw=True)
    assert {e["name"] for e in read(tmp_path / "raw")} == set(before.names)


def test_drawings_differ_from_their_images(discovered: Path, photos: Path, tmp_path: Path):
    words = [photos / "1.png", photos / "deep", photos / "4.jpg"]
    predict(words, discovered, tmp_path / "out", draw=True, min_score=0.0)
    drawings = sorted((tmp_path / "out" / "drawings").iterdir())
    assert [path.name for path in drawings] == ["000001_1.jpg", "000002_10.jpg", "000003_4.jpg"]
    for path, source in zip(drawings, ("1.png", "deep/10.png", "4.jpg"), strict=True):
        with Image.open(path) as drawn, Image.open(photos / source) as plain:
            enlarged = plain.convert("RGB").resize(drawn.size, Image.Resampling.BICUBIC)
            assert drawn.width % plain.width == 0
            assert np.abs(np.asarray(drawn, float) - np.asarray(enlarged, float)).max() > 100


def test_drawings_made_below_the_images_are_not_taken_for_images(
    discovered: Path, photos: Path, tmp_path: Path
):
    folder = tmp_path / "mine"
    shutil.copytree(photos, folder, ignore=shutil.ignore_patterns("9.png", "sub*", "deep"))
    for _ in range(2):
        assert predict([folder], discovered, folder / "out", draw=True) == 0
    assert len(list((folder / "out" / "drawings").iterdir())) == 4


def interrupt_after(calls: int, end: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the stage's detection end its process's work at a later batch."""
    detect_samples, left = passes.detect_samples, iter(range(calls))

    def detect_or_end(*arguments: Any, **options: Any) -> Any:
        if next(left, None) is None:
            end()
        return detect_samples(*arguments, **options)

    monkeypatch.setattr(passes, "detect_samples", detect_or_end)


def count_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the batches that the stage detects from now on, added as they come."""
    detect_samples, sizes = passes.detect_samples, []

    def detect_and_count(inference: Any, samples: Any) -> Any:
        sizes.append(len(samples))
        return detect_samples(inference, samples)

    monkeypatch.setattr(passes, "detect_samples", detect_and_count)
    return sizes


def crash() -> None:
    raise MemoryError


@pytest.mark.parametrize(
    ("end", "raised"),
    [(crash, MemoryError), (lambda: os.kill(os.getpid(), signal.SIGINT), Interrupted)],
    ids=["crash", "ctrl-c"],
)
def test_an_interrupted_prediction_goes_on_to_the_same_bytes(
    discovered: Path,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: Callable[[], None],
    raised: type[BaseException],
):
    words = [photos, "predict.batch_size=2"]
    assert predict(words, discovered, tmp_path / "whole", draw=True) == 1
    with monkeypatch.context() as patch:
        interrupt_after(2, end, patch)
        with pytest.raises(raised):
            predict(words, discovered, tmp_path / "cut", draw=True)
    partial = tmp_path / "cut" / "predictions.0.partial"
    assert not (tmp_path / "cut" / "predictions.json").exists()
    with partial.open("ab") as file:
        file.write(b'{"image_id": 7, "categ')
    calls = count_calls(monkeypatch)
    assert predict(words, discovered, tmp_path / "cut", draw=True) == 1
    # Of 4 batches the crash leaves 2 to do; Ctrl-C lets the batch at hand end.
    assert len(calls) == (2 if raised is MemoryError else 1)
    for name in (*FILES, "skipped_images.jsonl"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    drawn = [sorted((tmp_path / name / "drawings").iterdir()) for name in ("cut", "whole")]
    assert [path.read_bytes() for path in drawn[0]] == [path.read_bytes() for path in drawn[1]]
    assert not partial.exists()


def test_a_killed_prediction_goes_on_to_the_same_bytes(
    discovered: Path, world: Path, tmp_path: Path
):
    words = [world / "images", "predict.batch_size=1"]
    options = ["--run", discovered, "--discovery", "main", "--out", tmp_path / "cut"]
    run_killed("predict", *words, *options, after="rncdl.prediction.folder.BatchLog.write", times=3)
    assert (tmp_path / "cut" / "predictions.0.partial").is_file()
    assert not (tmp_path / "cut" / "predictions.json").exists()
    for name in ("cut", "whole"):
        predict(words, discovered, tmp_path / name)
    for name in FILES:
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_finished_prediction_is_left_as_it_is(
    discovered: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    predict([photos / "1.png"], discovered, tmp_path / "out")
    before = (tmp_path / "out" / "predictions.json").stat().st_mtime_ns
    interrupt_after(0, crash, monkeypatch)
    predict([photos / "1.png"], discovered, tmp_path / "out")
    assert (tmp_path / "out" / "predictions.json").stat().st_mtime_ns == before


def test_other_runs_settings_and_images_are_refused(
    discovered: Path, trained: Path, photos: Path, tmp_path: Path
):
    out = tmp_path / "out"
    predict([photos / "1.png"], discovered, out)
    first = read(out)
    other = without_discovery(trained, tmp_path / "other")
    changes: list[tuple[list[Any], Path, dict[str, Any], str]] = [
        ([photos / "2.png"], discovered, {}, "images: '1 readable"),
        ([photos / "1.png", "predict.nms=0.3"], discovered, {}, "nms: 0.5, now 0.3"),
        ([photos / "1.png"], discovered, {"min_score": 0.5}, "min_score: 0.0001, now 0.5"),
        ([photos / "1.png"], discovered, {"draw": True}, "draw: False, now True"),
        ([photos / "1.png"], other, {"discovery": None}, "discovery: 'main', now None"),
    ]
    for words, run, options, reason in changes:
        with pytest.raises(rncdl.UserError, match=re.escape(reason)):
            predict(words, run, out, **options)
        assert read(out) == first
    predict([photos / "2.png"], discovered, out, overwrite=True)
    assert read(out) != first


def test_two_processes_share_the_images(
    discovered: Path, predictor: Predictor, world: Path, tmp_path: Path
):
    words = ["predict", str(world / "images" / "val*"), "--discovery", "main"]
    words += ["predict.batch_size=1"]  # as below; in other batches sums are rounded otherwise
    run_rncdl(*words, "--run", discovered, "--out", tmp_path / "out", processes=2)
    entries = read(tmp_path / "out")
    listed = json.loads((tmp_path / "out" / "images.json").read_text())["images"]
    assert len(listed) == 8
    for image in listed:
        names = [entry["name"] for entry in entries if entry["image_id"] == image["id"]]
        assert names == predictor.predict(image["file_name"]).names
