"""Ways to get the input wrong: each ends with exit code 2 and a message that names it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def twice(group: str) -> Callable[[Values], Any]:
    return lambda values: {**values, group: values[group] * 2}


FILES: dict[str, Callable[[Values], Any]] = {
    "a list": lambda values: [values],
    "a number": lambda _: 3,
    "a text": lambda _: "labels",
    "null": lambda _: None,
    "nothing in it": lambda _: {},
    "no images": drop("images"),
    "no annotations": drop("annotations"),
    "no categories": drop("categories"),
    "images are a number": put("images", 3),
    "images are a dict": put("images", {"1": {}}),
    "annotations are a text": put("annotations", "none"),
    "categories are null": put("categories", None),
    "an image is a number": put("images", [3]),
    "an annotation is a list": put("annotations", [[1, 2]]),
    "a category is a text": put("categories", ["cat"]),
    "empty images": put("images", []),
    "empty annotations": put("annotations", []),
    "empty categories": put("categories", []),
    "an image without id": inside("images", id=None),
    "an image without name": inside("images", file_name=None),
    "an image whose id is a text": inside("images", id="one"),
    "an image whose name is a number": inside("images", file_name=3),
    "an image of height 0": inside("images", height=0),
    "an image of negative width": inside("images", width=-4),
    "an image whose height is a text": inside("images", height="tall"),
    "an image id twice": twice("images"),
    "a category without id": inside("categories", id=None),
    "a category without name": inside("categories", name=None),
    "a category whose id is a list": inside("categories", id=[7]),
    "a category whose name is a number": inside("categories", name=7),
    "a category id twice": twice("categories"),
    "an annotation without image": inside("annotations", image_id=None),
    "an annotation without category": inside("annotations", category_id=None),
    "an annotation without box": inside("annotations", bbox=None),
    "a box of three numbers": inside("annotations", bbox=[1, 2, 3]),
    "a box of five numbers": inside("annotations", bbox=[1, 2, 3, 4, 5]),
    "a box of texts": inside("annotations", bbox=["a", "b", "c", "d"]),
    "a box that is a dict": inside("annotations", bbox={"x": 1}),
    "a box with null": inside("annotations", bbox=[1, 2, None, 4]),
    "all boxes without area": inside("annotations", bbox=[1, 2, 0, 4]),
    "all boxes outside": inside("annotations", bbox=[100, 100, 5, 5]),
    "all boxes of another image": inside("annotations", image_id=9),
    "all boxes of another category": inside("annotations", category_id=9),
    "a crowd that is a text": inside("annotations", iscrowd="yes"),
}


@pytest.mark.parametrize("change", FILES.values(), ids=FILES)
def test_a_json_that_is_wrong(change: Callable[[Values], Any], tmp_path: Path):
    Image.new("RGB", (48, 32)).save(tmp_path / "a.png")
    (tmp_path / "labels.json").write_text(json.dumps(change(good())))
    refused(["run", tmp_path / "labels.json", "--out", tmp_path / "run"], names="labels.json")
    assert not (tmp_path / "run").exists()


TEXTS = {
    "empty": b"",
    "half": b'{"images": [',
    "not json": b"<xml/>",
    "binary": bytes(range(256)),
    "utf-16": '{"images": []}'.encode("utf-16"),
    "two values": b"{} {}",
}


@pytest.mark.parametrize("content", TEXTS.values(), ids=TEXTS)
def test_a_file_that_is_no_json(content: bytes, tmp_path: Path):
    (tmp_path / "labels.json").write_bytes(content)
    refused(["run", tmp_path / "labels.json", "--out", tmp_path / "run"], names="labels.json")


WORDS = {
    "no such file": (["run", "{0}/none.json", "--out", "{0}/run"], "none.json"),
    "a folder for the labels": (["run", "{0}", "--out", "{0}/run"], "{0}"),
    "no --out": (["run", "{0}/labels.json"], "--out"),
    "no labels": (["run", "--out", "{0}/run"], "Missing argument"),
    "no such option": (["run", "{0}/labels.json", "--out", "{0}/run", "--sise", "tiny"], "--sise"),
    "an unknown size": (["run", "{0}/labels.json", "--out", "{0}/run", "--size", "big"], "big"),
    "an unknown setting": (["run", "{0}/labels.json", "--out", "{0}/run", "train.stps=3"], "stps"),
    "a setting without value": (["run", "{0}/labels.json", "--out", "{0}/run", "seed"], "seed"),
    "a setting that is a text": (
        ["run", "{0}/labels.json", "--out", "{0}/run", "train.steps=many"],
        "train.steps",
    ),
    "a negative setting": (
        ["run", "{0}/labels.json", "--out", "{0}/run", "train.steps=-1"],
        "train.steps",
    ),
    "a whole group": (["run", "{0}/labels.json", "--out", "{0}/run", "train=3"], "train"),
    "broken YAML": (["run", "{0}/labels.json", "--out", "{0}/run", "seed=["], "seed"),
    "an unknown device": (["run", "{0}/labels.json", "--out", "{0}/run", "device=tpu9"], "tpu9"),
    "an unknown class": (["run", "{0}/labels.json", "--out", "{0}/run", "--known", "dog"], "dog"),
    "no such unlabelled folder": (
        ["run", "{0}/labels.json", "--out", "{0}/run", "--unlabelled", "{0}/more"],
        "more",
    ),
    "an empty unlabelled folder": (
        ["run", "{0}/labels.json", "--out", "{0}/run", "--unlabelled", "{0}/empty"],
        "empty",
    ),
    "no such validation file": (
        ["run", "{0}/labels.json", "--out", "{0}/run", "--val", "{0}/val.json"],
        "val.json",
    ),
    "an image for validation": (
        ["run", "{0}/labels.json", "--out", "{0}/run", "--val", "{0}/a.png"],
        "a.png",
    ),
    "a file for --out": (["run", "{0}/labels.json", "--out", "{0}/a.png"], "a.png"),
    "no such weights": (
        ["run", "{0}/labels.json", "--out", "{0}/run", "detector.weights={0}/w.pth"],
        "w.pth",
    ),
    "no run to report": (["report", "--run", "{0}/run"], "run"),
    "no run to discover in": (["discover", "--run", "{0}/run"], "run"),
    "no run to predict with": (
        ["predict", "{0}/a.png", "--run", "{0}/run", "--out", "{0}/found"],
        "run",
    ),
    "no run to go on with": (["train", "--run", "{0}/run", "--resume"], "run"),
    "no labels to train on": (["train", "--run", "{0}/run"], "--labelled"),
}


@pytest.mark.parametrize(("words", "names"), WORDS.values(), ids=WORDS)
def test_a_command_that_is_wrong(words: list[str], names: str, tmp_path: Path):
    Image.new("RGB", (48, 32)).save(tmp_path / "a.png")
    (tmp_path / "labels.json").write_text(json.dumps(good()))
    (tmp_path / "empty").mkdir()
    refused([word.format(tmp_path) for word in words], names=names.format(tmp_path))


def refused(words: list[Any], *, names: str) -> None:
    said = run_rncdl(*words, code=2)
    assert "Traceback" not in said
    assert names in "".join(said.split("\n"))
