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


def put_null(group: str, key: str) -> Callable[[Values], Any]:
    """A field of the first entry is null."""
    return lambda values: {**values, group: [{**values[group][0], key: None}, *values[group][1:]]}


def twice(group: str) -> Callable[[Values], Any]:
    return lambda values: {**values, group: values[group] * 2}


FILES: dict[str, tuple[Callable[[Values], Any], str]] = {
    "a list": (lambda values: [values], "Expected `object`, got `array`"),
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
    "not json": b"<xml/>",
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
    message = refused([word.format(tmp_path) for word in words])
    assert names.format(tmp_path) in message


def refused(words: list[Any]) -> str:
    """The message with which a command ends, on one line, without what it said before."""
    said = run_rncdl(*words, code=2)
    assert "Traceback" not in said
    _, sign, message = said.rpartition("error: ")
    if not sign:  # an error in the words themselves, in a frame
        _, sign, message = said.replace("│", "").partition("─ Error ─")
    assert sign
    return " ".join(message.split())
