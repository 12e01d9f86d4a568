"""Ways to get the input wrong: each ends with exit code 2 and a message that names it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from PIL import Image

from tests.pipeline.tiny import run_rncdl

Values = dict[str, Any]


def good() -> Values:
    return {
        "images": [{"id": 1, "file_name": "a.png", "height": 32, "width": 48}],
        "categories": [{"id": 7, "name": "cat"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 7, "bbox": [2, 3, 10, 12]}],
    }


def drop(key: str) -> Callable[[Values], Any]:
    return lambda values: {name: value for name, value in values.items() if name != key}


def put(key: str, value: Any) -> Callable[[Values], Any]:
    return lambda values: {**values, key: value}


def inside(group: str, **changes: Any) -> Callable[[Values], Any]:
    """The first entry of a list changed; None takes a field away."""

    def change(values: Values) -> Values:
        entry = {**values[group][0], **changes}
        kept = {key: value for key, value in entry.items() if value is not None}
        return {**values, group: [kept, *values[group][1:]]}

    return change


def put_null(group: str, key: str) -> Callable[[Values], Any]:
    """A field of the first entry is null."""
    return lambda values: {**values, group: [{**values[group][0], key: None}, *values[group][1:]]}


def twice(group: str) -> Callable[[Values], Any]:
    return lambda values: {**values, group: values[group] * 2}


FILES: dict[str, tuple[Callable[[Values], Any], str]] = {
    "a list": (lambda values: [values], "`data` - at `$[0]`"),
    "a number": (lambda _: 3, "Expected `object`, got `int`"),
    "a text": (lambda _: "labels", "Expected `object`, got `str`"),
    "null": (lambda _: None, "Expected `object`, got `null`"),
    "nothing in it": (lambda _: {}, "`images`"),
    "no images": (drop("images"), "`images`"),
    "no annotations": (drop("annotations"), "`annotations`"),
    "no categories": (drop("categories"), "`categories`"),
    "images are a number": (put("images", 3), "`$.images`"),
    "images are a dict": (put("images", {"1": {}}), "`$.images`"),
    "annotations are a text": (put("annotations", "none"), "`$.annotations`"),
    "categories are null": (put("categories", None), "`$.categories`"),
    "an image is a number": (put("images", [3]), "`$.images[0]`"),
    "an annotation is a list": (put("annotations", [[1, 2]]), "`$.annotations[0]`"),
    "a category is a text": (put("categories", ["cat"]), "`$.categories[0]`"),
    "empty images": (put("images", []), "`images`"),
    "empty annotations": (put("annotations", []), "`annotations`"),
    "empty categories": (put("categories", []), "`categories`"),
    "an image without id": (inside("images", id=None), "`id` - at `$.images[0]`"),
    "an image without name": (inside("images", file_name=None), "`file_name`"),
    "an image whose id is a text": (inside("images", id="one"), "`$.images[0].id`"),
    "an image whose id is a fraction": (inside("images", id=1.5), "`$.images[0].id`"),
    "an image whose id is huge": (inside("images", id=2**64), "`$.images[0].id`"),
    "an image whose name is a number": (inside("images", file_name=3), "`$.images[0].file_name`"),
    "an image of height 0": (inside("images", height=0), "`height` 0"),
    "an image of negative width": (inside("images", width=-4), "`width` -4"),
    "an image whose height is a text": (inside("images", height="32"), "`$.images[0].height`"),
    "an image whose width is a list": (inside("images", width=[48]), "`$.images[0].width`"),
    "an image id twice": (twice("images"), "`images`"),
    "a category without id": (inside("categories", id=None), "`id` - at `$.categories[0]`"),
    "a category without name": (inside("categories", name=None), "`name` - at `$.categories[0]`"),
    "a category whose id is a list": (inside("categories", id=[7]), "`$.categories[0].id`"),
    "a category whose name is a number": (inside("categories", name=7), "`$.categories[0].name`"),
    "a category id twice": (twice("categories"), "`categories`"),
    "an annotation without image": (inside("annotations", image_id=None), "`image_id`"),
    "an annotation without category": (inside("annotations", category_id=None), "`category_id`"),
    "an annotation without box": (inside("annotations", bbox=None), "`bbox`"),
    "a box of no numbers": (inside("annotations", bbox=[]), "`$.annotations[0].bbox`"),
    "a box of three numbers": (inside("annotations", bbox=[1, 2, 3]), "`$.annotations[0].bbox`"),
    "a box of five": (inside("annotations", bbox=[1, 2, 3, 4, 5]), "`$.annotations[0].bbox`"),
    "a box of texts": (inside("annotations", bbox=["a"] * 4), "`$.annotations[0].bbox[0]`"),
    "a box of lists": (inside("annotations", bbox=[[1], 2, 3, 4]), "`$.annotations[0].bbox[0]`"),
    "a box that is a dict": (inside("annotations", bbox={"x": 1}), "`$.annotations[0].bbox`"),
    "a box that is a text": (inside("annotations", bbox="1,2,3,4"), "`$.annotations[0].bbox`"),
    "all boxes with null": (inside("annotations", bbox=[1, 2, None, 4]), "not finite"),
    "all boxes with NaN": (inside("annotations", bbox=[1, 2, float("nan"), 4]), "not finite"),
    "all boxes without area": (inside("annotations", bbox=[1, 2, 0, 4]), "box without area"),
    "all boxes turned over": (inside("annotations", bbox=[20, 20, -5, -5]), "box without area"),
    "all boxes outside": (inside("annotations", bbox=[100, 100, 5, 5]), "entirely outside"),
    "all boxes of another image": (inside("annotations", image_id=9), "unknown image id"),
    "all boxes of another category": (inside("annotations", category_id=9), "unknown category"),
    "a crowd that is a text": (inside("annotations", iscrowd="yes"), "`$.annotations[0].iscrowd`"),
    "an area that is a text": (inside("annotations", area="12"), "`$.annotations[0].area`"),
    "an image id that is a text": (inside("annotations", image_id="1"), "[0].image_id`"),
    "a category id that is null": (put_null("annotations", "category_id"), "[0].category_id`"),
    "an annotation id that is a text": (inside("annotations", id="one"), "`$.annotations[0].id`"),
    "negative categories that are a number": (
        inside("images", neg_category_ids=3),
        "`$.images[0].neg_category_ids`",
    ),
}


@pytest.mark.parametrize(("change", "field"), FILES.values(), ids=FILES)
def test_a_json_that_is_wrong(change: Callable[[Values], Any], field: str, tmp_path: Path):
    Image.new("RGB", (48, 32)).save(tmp_path / "a.png")
    (tmp_path / "labels.json").write_text(json.dumps(change(good())))
    message = refused(["run", tmp_path / "labels.json", "--out", tmp_path / "run"])
    assert message.startswith(f"{tmp_path / 'labels.json'}: ")
    assert field in message
    assert not (tmp_path / "run").exists()


TEXTS = {
    "empty": b"",
    "half": b'{"images": [',
    "a text": b"one, two",
    "binary": bytes(range(256)),
    "utf-16": '{"images": []}'.encode("utf-16"),
    "two values": b"{} {}",
}


@pytest.mark.parametrize("content", TEXTS.values(), ids=TEXTS)
def test_a_file_that_is_no_json(content: bytes, tmp_path: Path):
    (tmp_path / "labels.json").write_bytes(content)
    message = refused(["run", tmp_path / "labels.json", "--out", tmp_path / "run"])
    assert message.startswith(f"{tmp_path / 'labels.json'}: ")
    assert "JSON" in message


RUN = ["run", "{0}/labels.json", "--out", "{0}/run"]
WORDS = {
    "no such file": (["run", "{0}/none.json", "--out", "{0}/run"], "{0}/none.json: cannot read"),
    "a folder for the labels": (["run", "{0}", "--out", "{0}/run"], "{0}: a folder without"),
    "XML of another kind": (["run", "{0}/a.xml", "--out", "{0}/run"], "{0}/a.xml: <xml>"),
    "an image for the labels": (["run", "{0}/a.png", "--out", "{0}/run"], "{0}/a.png: not a JSON"),
    "no --out": (["run", "{0}/labels.json"], "'--out'"),
    "no labels": (["run", "--out", "{0}/run"], "'labelled'"),
    "no such option": ([*RUN, "--sise", "tiny"], "--sise"),
    "an option without value": ([*RUN, "--size"], "--size"),
    "an unknown size": ([*RUN, "--size", "big"], "--size big: no such size"),
    "an empty size": ([*RUN, "--size", ""], "--size"),
    "an unknown setting": ([*RUN, "train.stps=3"], "'train.steps'"),
    "an unknown group": ([*RUN, "trian.steps=3"], "Did you mean 'train'?"),
    "a setting without value": ([*RUN, "seed"], "'seed' is not of the form key=value"),
    "a setting that is a text": ([*RUN, "train.steps=many"], "train.steps = 'many'"),
    "a setting that is nothing": ([*RUN, "train.steps="], "train.steps = None"),
    "a setting that is a fraction": ([*RUN, "train.steps=1.5"], "train.steps = 1.5"),
    "a negative setting": ([*RUN, "train.steps=-1"], "train.steps = -1"),
    "a share above one": ([*RUN, "data.flip=2"], "data.flip = 2"),
    "a list for a number": ([*RUN, "train.batch_size=[8]"], "train.batch_size = [8]"),
    "a number for a list": ([*RUN, "discover.heads=8"], "discover.heads = 8"),
    "no clusters": ([*RUN, "discover.heads=[0]"], "discover.heads.0 = 0"),
    "one view": ([*RUN, "discover.views=1"], "discover.views = 1"),
    "an unknown choice": ([*RUN, "train.schedule=linear"], "train.schedule = 'linear'"),
    "a whole group": ([*RUN, "train=3"], "train"),
    "broken YAML": ([*RUN, "seed=["], "'seed=['"),
    "a setting of the past": ([*RUN, "train.stepss.more=3"], "train.stepss"),
    "an unknown backbone": ([*RUN, "detector.backbone=resnet51"], "resnet51"),
    "an unknown timm backbone": ([*RUN, "detector.backbone=timm:resnet_x"], "resnet_x"),
    "an unknown device": ([*RUN, "device=tpu9"], "tpu9"),
    "a GPU that is not there": ([*RUN, "device=cuda:9"], "cuda:9"),
    "an unknown class": ([*RUN, "--known", "dog"], "{0}/labels.json: Known class 'dog'"),
    "a class misspelt": ([*RUN, "--known", "catt"], "Did you mean 'cat'?"),
    "a class named twice": ([*RUN, "--known", "cat,cat"], "{0}/labels.json: Known classes named"),
    "no class at all": ([*RUN, "--known", ","], "{0}/labels.json: No known classes"),
    "an empty file of classes": ([*RUN, "--known", "{0}/nothing.txt"], "No known classes"),
    "an image for the classes": ([*RUN, "--known", "{0}/a.png"], "{0}/a.png"),
    "no such image folder": ([*RUN, "--images", "{0}/none"], "{0}/none: no such folder"),
    "a file for the image folder": ([*RUN, "--images", "{0}/a.png"], "{0}/a.png: no such folder"),
    "no such unlabelled folder": ([*RUN, "--unlabelled", "{0}/more"], "{0}/more: cannot read"),
    "an empty unlabelled folder": ([*RUN, "--unlabelled", "{0}/empty"], "{0}/empty: no images"),
    "an image as unlabelled": ([*RUN, "--unlabelled", "{0}/a.png"], "{0}/a.png: not a JSON"),
    "an empty unlabelled list": (
        [*RUN, "--unlabelled", "{0}/nothing.txt"],
        "{0}/nothing.txt: a list",
    ),
    "a folder of broken images": ([*RUN, "--unlabelled", "{0}/broken"], "{0}/broken"),
    "no such validation file": ([*RUN, "--val", "{0}/val.json"], "{0}/val.json: cannot read"),
    "an image for validation": ([*RUN, "--val", "{0}/a.png"], "{0}/a.png: not a JSON"),
    "validation without labels": ([*RUN, "--val", "{0}/images.json"], "{0}/images.json"),
    "no validation images": ([*RUN, "--val", "{0}/labels.json", "--val-images", "{0}/x"], "{0}/x"),
    "a file for --out": (["run", "{0}/labels.json", "--out", "{0}/a.png"], "--out {0}/a.png"),
    "a file above --out": (["run", "{0}/labels.json", "--out", "{0}/a.png/run"], "{0}/a.png"),
    "no such weights": ([*RUN, "detector.weights={0}/w.pth"], "detector.weights={0}/w.pth"),
    "an image for the weights": ([*RUN, "detector.weights={0}/a.png"], "{0}/a.png: cannot be read"),
    "a folder for the weights": ([*RUN, "detector.weights={0}"], "detector.weights={0}"),
    "no processes": ([*RUN, "--processes", "0"], "--processes"),
    "machines without a place to meet": ([*RUN, "--nodes", "2"], "--rendezvous"),
    "all images missing": (["run", "{0}/missing.json", "--out", "{0}/run"], "{0}/missing.json"),
    "all images broken": (["run", "{0}/torn.json", "--out", "{0}/run"], "{0}/torn.json"),
    "no run to report": (["report", "--run", "{0}/run"], "{0}/run"),
    "no run to discover in": (["discover", "--run", "{0}/run"], "{0}/run"),
    "no run to name": (["name", "--run", "{0}/run"], "{0}/run"),
    "no run to predict with": (
        ["predict", "{0}/a.png", "--run", "{0}/run", "--out", "{0}/found"],
        "{0}/run",
    ),
    "nothing to predict": (
        ["predict", "{0}/empty", "--run", "{0}/run", "--out", "{0}/found"],
        "{0}",
    ),
    "nothing to export": (["export", "coco", "--out", "{0}/found"], "--predictions"),
    "an unknown format": (["export", "word", "--predictions", "{0}", "--out", "{0}/x"], "word"),
    "no run to measure": (["evaluate", "{0}/labels.json", "--run", "{0}/run"], "{0}/run"),
    "nothing to measure": (["evaluate", "{0}/labels.json"], "--run"),
    "no run to go on with": (["train", "--run", "{0}/run", "--resume"], "{0}/run"),
    "no labels to train on": (["train", "--run", "{0}/run"], "--labelled"),
    "an unknown preset": (
        ["train", "--run", "{0}/run", "--labelled", "{0}/labels.json", "--preset", "shape"],
        "shapes",
    ),
    "no such file to check": (["prepare", "check", "{0}/none.json"], "{0}/none.json: cannot read"),
    "an empty folder to check": (["prepare", "check", "{0}/empty"], "{0}/empty: no images"),
}


@pytest.mark.parametrize(("words", "names"), WORDS.values(), ids=WORDS)
def test_a_command_that_is_wrong(words: list[str], names: str, tmp_path: Path):
    lay_out(tmp_path)
    message = refused([word.format(tmp_path) for word in words])
    assert names.format(tmp_path) in message


def lay_out(folder: Path) -> None:
    """Good labels, and much that is wrong, for the commands to name."""
    Image.new("RGB", (48, 32)).save(folder / "a.png")
    (folder / "nothing.txt").write_text("")
    (folder / "a.xml").write_text("<xml/>")
    for name in ("empty", "broken"):
        (folder / name).mkdir()
    (folder / "broken" / "b.png").write_bytes(b"no image")
    files = {
        "labels": good(),
        "images": {"images": good()["images"]},
        "missing": inside("images", file_name="none.png")(good()),
        "torn": inside("images", file_name="broken/b.png")(good()),
    }
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def test_there_are_a_hundred_ways():
    assert len(FILES) + len(TEXTS) + len(WORDS) >= 100


def refused(words: list[Any]) -> str:
    """The message with which a command ends, on one line, without what it said before.

    It must come before anything is tried out.
    """
    with patch("rncdl.stages.run.try_out", side_effect=AssertionError("not refused")):
        said = run_rncdl(*words, code=2)
    assert "Traceback" not in said
    _, sign, message = said.rpartition("error: ")
    if not sign:  # an error in the words themselves, in a frame
        _, sign, message = said.replace("│", "").partition("─ Error ─")
    assert sign
    return " ".join(message.split())
