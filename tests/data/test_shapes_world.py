import errno
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_mask

from rncdl.data.shapes import World, draw_world
from rncdl.errors import UserError

SMALL: dict[str, Any] = {"num_labelled": 60, "num_unlabelled": 60, "num_val": 30, "image_px": 96}
TINY: dict[str, Any] = {"num_labelled": 3, "num_unlabelled": 2, "num_val": 2, "image_px": 64}


def _read(folder: Path, name: str):
    return json.loads((folder / name).read_text())


def _bytes(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    draw_world(folder, World(**SMALL), num_processes=1)
    return folder


def test_same_bytes_for_any_number_of_processes(world, tmp_path):
    draw_world(tmp_path, World(**SMALL), num_processes=2)
    assert _bytes(tmp_path) == _bytes(world)


def test_another_seed_gives_other_pictures_and_other_known_classes(world, tmp_path):
    draw_world(tmp_path, World(seed=1, **TINY), num_processes=1)
    other = _bytes(tmp_path)
    assert not set(other.values()) & set(_bytes(world).values())
    names = [
        {c["name"] for c in _read(d, "labelled.json")["categories"]} for d in (world, tmp_path)
    ]
    assert names[0] != names[1]


def test_pictures_are_where_the_files_say(world):
    files = [_read(world, n) for n in ("labelled.json", "unlabelled.json", "val.json")]
    images = [image for file in files for image in file["images"]]
    assert len({image["id"] for image in images}) == len(images) == 150
    assert {i["file_name"] for i in images} == {
        f"images/{p.name}" for p in (world / "images").iterdir()
    }
    for image in images:
        with Image.open(world / image["file_name"]) as picture:
            assert picture.size == (image["width"], image["height"]) == (96, 96)
            assert picture.mode == "RGB"


def test_labelled_holds_known_classes_only(world):
    labelled, oracle = _read(world, "labelled.json"), _read(world, "oracle.json")
    known = {c["id"] for c in labelled["categories"]}
    assert len(known) == 8
    assert {a["category_id"] for a in labelled["annotations"]} <= known
    ids = {image["id"] for image in labelled["images"]}
    assert len(ids) == 60

    def plain(annotations):
        return [
            {k: v for k, v in a.items() if k != "id"}
            for a in annotations
            if a["image_id"] in ids and a["category_id"] in known
        ]

    assert plain(labelled["annotations"]) == plain(oracle["annotations"])


def test_unlabelled_holds_pictures_only(world):
    unlabelled = _read(world, "unlabelled.json")
    assert len(unlabelled["images"]) == 60
    assert unlabelled["annotations"] == unlabelled["categories"] == []


def test_training_files_say_nothing_of_novel_classes(world):
    known = {c["name"] for c in _read(world, "labelled.json")["categories"]}
    novel = {c["name"] for c in _read(world, "val.json")["categories"]} - known
    assert len(novel) == 12
    for name in ("labelled.json", "unlabelled.json"):
        assert not [n for n in novel if n in (world / name).read_text()]


def test_oracle_covers_both_halves_of_the_training_pictures(world):
    halves = _read(world, "labelled.json")["images"] + _read(world, "unlabelled.json")["images"]
    assert _read(world, "oracle.json")["images"] == halves


@pytest.mark.parametrize("name", ["labelled.json", "val.json", "oracle.json"])
def test_boxes_and_areas_are_those_of_the_masks(world, name):
    file = _read(world, name)
    assert len({a["id"] for a in file["annotations"]}) == len(file["annotations"]) > 100
    category_ids = {c["id"] for c in file["categories"]}
    image_ids = {i["id"] for i in file["images"]}
    for annotation in file["annotations"]:
        rle = annotation["segmentation"]
        assert annotation["bbox"] == coco_mask.toBbox(rle).tolist()
        assert annotation["area"] == coco_mask.area(rle)
        assert annotation["iscrowd"] == 0
        assert annotation["category_id"] in category_ids
        assert annotation["image_id"] in image_ids


def test_two_to_six_objects_of_many_sizes(world):
    oracle = _read(world, "oracle.json")
    per_image = Counter(a["image_id"] for a in oracle["annotations"])
    assert 1 <= min(per_image.values()) <= 2
    assert 5 <= max(per_image.values()) <= 6
    longest = np.array([max(a["bbox"][2:]) for a in oracle["annotations"]]) / 96
    assert longest.min() < 0.23
    assert longest.max() > 0.5


def test_val_has_the_fields_of_lvis(world):
    val, oracle = _read(world, "val.json"), _read(world, "oracle.json")
    present: dict[int, set[int]] = {image["id"]: set() for image in val["images"]}
    for annotation in val["annotations"]:
        present[annotation["image_id"]].add(annotation["category_id"])
    for image in val["images"]:
        negatives = set(image["neg_category_ids"])
        assert negatives | present[image["id"]] == set(range(1, 21))
        assert not negatives & present[image["id"]]
        assert image["not_exhaustive_category_ids"] == []
    seen = Counter(c for _, c in {(a["image_id"], a["category_id"]) for a in oracle["annotations"]})
    objects = Counter(a["category_id"] for a in oracle["annotations"])
    assert {c["frequency"] for c in val["categories"]} == {"r", "c", "f"}
    for category in val["categories"]:
        assert category["image_count"] == seen[category["id"]]
        assert category["instance_count"] == objects[category["id"]]
    by_letter = {
        letter: [c["image_count"] for c in val["categories"] if c["frequency"] == letter]
        for letter in "rcf"
    }
    assert max(by_letter["r"]) < min(by_letter["c"])
    assert max(by_letter["c"]) < min(by_letter["f"])


def test_frequencies_have_a_long_tail_with_known_and_novel_at_both_ends(world):
    val = _read(world, "val.json")
    known = {c["id"] for c in _read(world, "labelled.json")["categories"]}
    ranked = sorted(val["categories"], key=lambda c: -c["instance_count"])
    counts = [c["instance_count"] for c in ranked]
    assert 5 < counts[0] / counts[-1] < 20
    for half in (ranked[:10], ranked[10:]):
        assert 0 < sum(c["id"] in known for c in half) < 10
    assert sum(c["id"] in known for c in ranked[:10]) >= 5


def test_a_balanced_world_has_no_tail(tmp_path):
    draw_world(tmp_path, World(num_classes=4, num_known=2, imbalance=1, **SMALL))
    counts = [c["instance_count"] for c in _read(tmp_path, "val.json")["categories"]]
    assert max(counts) < 1.2 * min(counts)
    assert {c["frequency"] for c in _read(tmp_path, "val.json")["categories"]} == {"f"}


def test_a_finished_world_is_left_as_it_is(tmp_path):
    draw_world(tmp_path, World(**TINY), num_processes=1)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    draw_world(tmp_path, World(**TINY), num_processes=1)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before
    with pytest.raises(UserError, match="seed = 0 there, 3 here"):
        draw_world(tmp_path, World(seed=3, **TINY), num_processes=1)


@pytest.mark.parametrize("num_processes", [1, 2])
def test_an_interrupted_world_is_not_finished_and_can_be_drawn_again(tmp_path, num_processes):
    def stop(drawn: int, total: int) -> None:
        assert total == 7
        if drawn == 4:
            raise KeyboardInterrupt

    broken, whole = tmp_path / "broken", tmp_path / "whole"
    with pytest.raises(KeyboardInterrupt):
        draw_world(broken, World(**TINY), num_processes=num_processes, progress=stop)
    assert not list(broken.glob("*.json"))
    (broken / "images" / "stale.jpg").touch()
    draw_world(broken, World(**TINY), num_processes=num_processes)
    draw_world(whole, World(**TINY), num_processes=1)
    assert _bytes(broken) == _bytes(whole)


def test_progress_counts_every_picture(tmp_path):
    heard: list[tuple[int, int]] = []
    draw_world(tmp_path, World(**TINY), num_processes=1, progress=lambda *step: heard.append(step))
    assert heard == [(n, 7) for n in range(1, 8)]


def test_a_directory_with_other_things_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="not a drawn world"):
        draw_world(tmp_path, World(**TINY))
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_path_that_cannot_be_a_directory_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write the drawn world"):
        draw_world(tmp_path / "file" / "world", World(**TINY))


def test_a_full_disk_is_reported_and_leaves_nothing_that_looks_finished(tmp_path, monkeypatch):
    def no_room(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", no_room)
    with pytest.raises(UserError, match="No space left"):
        draw_world(tmp_path, World(**TINY), num_processes=1)
    assert not (tmp_path / "world.json").exists()
    assert not (tmp_path / "val.json").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_classes", 1),
        ("num_classes", 1001),
        ("num_known", 20),
        ("imbalance", 0.5),
        ("num_val", 0),
    ],
)
def test_settings_out_of_range_are_named(tmp_path, name, value):
    with pytest.raises(UserError, match=f"{name} = {value}"):
        draw_world(tmp_path / "world", World(**{name: value}))
    assert not (tmp_path / "world").exists()


def test_a_thousand_classes_all_appear(tmp_path):
    world = World(num_classes=1000, num_known=300, image_px=64)
    draw_world(tmp_path, replace(world, num_labelled=400, num_unlabelled=10, num_val=5))
    val = _read(tmp_path, "val.json")
    assert len({c["name"] for c in val["categories"]}) == 1000
    assert sum(c["image_count"] > 0 for c in val["categories"]) > 950


class TestDifficulty:
    """What tells the classes apart: neither colour nor size, but shape and texture."""

    @pytest.fixture(scope="class")
    def objects(self, tmp_path_factory):
        folder = tmp_path_factory.mktemp("balanced")
        draw_world(folder, World(imbalance=1, num_labelled=240, num_unlabelled=1, num_val=120))
        return [self._load(folder, name) for name in ("oracle.json", "val.json")]

    @staticmethod
    def _load(folder: Path, name: str):
        file = _read(folder, name)
        pictures = {
            i["id"]: np.asarray(Image.open(folder / i["file_name"]).convert("RGB"))
            for i in file["images"]
        }
        crops = []
        for annotation in file["annotations"]:
            x, y, width, height = annotation["bbox"]
            mask = coco_mask.decode(annotation["segmentation"]).astype(bool)
            window = slice(y, y + height), slice(x, x + width)
            crops.append((pictures[annotation["image_id"]][window], mask[window]))
        return crops, np.array([a["category_id"] for a in file["annotations"]])

    @staticmethod
    def _accuracy(objects, describe) -> float:
        """Share of validation objects whose nearest class mean is their own class's."""
        (train, train_labels), (val, val_labels) = objects
        train_x, val_x = (np.array([describe(*o) for o in split]) for split in (train, val))
        scale = train_x.std(axis=0).mean() if train_x.shape[1] > 10 else train_x.std(axis=0)
        means = np.array([train_x[train_labels == c].mean(axis=0) for c in range(1, 21)]) / scale
        distance = ((val_x[:, None] / scale - means) ** 2).sum(axis=2)
        return float((distance.argmin(axis=1) + 1 == val_labels).mean())

    def test_colour_is_not_enough(self, objects):
        def histogram(rgb, mask):
            bins = (rgb[mask] // 43).astype(int) @ (36, 6, 1)
            return np.sqrt(np.bincount(bins, minlength=216) / len(bins))

        assert 0.05 < self._accuracy(objects, histogram) < 0.4

    def test_size_is_not_enough(self, objects):
        def size(rgb, mask):
            return np.log([mask.sum(), *mask.shape])

        assert self._accuracy(objects, size) < 0.25

    def test_shape_and_texture_are(self, objects):
        def shape_and_texture(rgb, mask):
            small = Image.fromarray(mask.astype(np.uint8) * 255).resize((16, 16))
            shape = np.asarray(small, dtype=float).ravel()
            grey = Image.fromarray(rgb).convert("L").resize((32, 32))
            down, across = np.gradient(np.asarray(grey, dtype=float))
            direction = (np.arctan2(down, across) % np.pi / np.pi * 8).astype(int) % 8
            cell = np.arange(32) // 8
            bins = direction + 8 * (cell[:, None] * 4 + cell)
            texture = np.bincount(bins.ravel(), np.hypot(down, across).ravel(), minlength=128)
            return np.concatenate(
                [shape / np.linalg.norm(shape), np.sqrt(texture / (texture.sum() + 1e-6))]
            )

        assert self._accuracy(objects, shape_and_texture) > 0.6


@pytest.fixture(scope="module")
def photographs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    for shade in (10, 200):
        Image.new("RGB", (90, 70), (shade, 0, 255 - shade)).save(folder / f"{shade}.png")
    return folder


def test_the_kind_world_says_nothing_of_harder_ones(world):
    assert {"num_styles", "photographs"}.isdisjoint(_read(world, "world.json"))


@pytest.mark.parametrize("harder", [{"num_styles": 4}, {"photographs": True}], ids=str)
def test_a_harder_world_has_the_same_objects_drawn_otherwise(harder, photographs, tmp_path):
    if "photographs" in harder:
        harder = {"photographs": photographs}
    draw_world(tmp_path / "kind", World(**TINY), num_processes=1)
    draw_world(tmp_path / "hard", World(**harder, **TINY), num_processes=1)
    kind, hard = (_read(tmp_path / name, "val.json") for name in ("kind", "hard"))
    assert kind["categories"] == hard["categories"]
    same = [(tmp_path / "kind" / i["file_name"]).read_bytes() for i in kind["images"]]
    assert [(tmp_path / "hard" / i["file_name"]).read_bytes() for i in hard["images"]] != same
    draw_world(
        tmp_path / "hard", World(**harder, **TINY), num_processes=1
    )  # finished: left as it is
    with pytest.raises(UserError, match="other settings"):
        draw_world(tmp_path / "hard", World(**TINY), num_processes=1)


def test_photographs_lie_behind_the_objects(photographs, tmp_path):
    draw_world(tmp_path, World(photographs=photographs, **TINY), num_processes=1)
    corners = set()
    for path in (tmp_path / "images").iterdir():
        pixels = np.asarray(Image.open(path)).astype(int)
        corners.add(min((10, 200), key=lambda shade: abs(np.median(pixels[..., 0]) - shade)))
        assert np.median(pixels[..., 1]) < 90
    assert corners <= {10, 200}


def test_an_empty_folder_of_photographs_is_named(tmp_path):
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match="none"):
        draw_world(
            tmp_path / "world", World(photographs=tmp_path / "none", **TINY), num_processes=1
        )


@pytest.mark.parametrize("num_styles", [0, 5])
def test_there_are_four_styles(num_styles, tmp_path):
    with pytest.raises(UserError, match="num_styles"):
        draw_world(tmp_path, World(num_styles=num_styles, **TINY), num_processes=1)
