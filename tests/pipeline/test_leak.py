"""Novel labels never reach training, on the code that the commands really call."""

import functools
import json
import shutil
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import torch

from rncdl.data.records import AnnotationSet
from rncdl.detector.training import train_detector
from rncdl.discovery.filling import open_bank
from rncdl.discovery.object_bank import open_object_bank
from rncdl.discovery.online import train_heads_online
from rncdl.discovery.training import train_heads
from rncdl.experiments.baselines.methods import METHODS
from tests.pipeline.tiny import SETTINGS, TEACHER, WITH_MASK_STEPS, run_rncdl

TRAINERS = (train_detector, open_bank, open_object_bank, train_heads, train_heads_online)
COMPARED = ("kmeans-features", "weng")
"""One that reads the bank and one that looks at images; all baselines are given the same."""
QUICK = [
    *("train.steps=4", "discover.steps=4"),
    *("baselines.crop_px=16", "baselines.steps=2", "baselines.batch_images=4"),
    "baselines.crops_per_image=4",
]


def known_of(world: Path) -> str:
    categories = json.loads((world / "labelled.json").read_text())["categories"]
    return ",".join(category["name"] for category in categories)


def with_every_label(world: Path, folder: Path, *, scrambled: bool) -> Path:
    """The world's files with novel classes annotated in all of them, or with nonsense there.

    In the place of each novel annotation then stands one of another novel class, elsewhere.
    """
    known = set(known_of(world).split(","))
    rng = np.random.default_rng(0)
    folder.mkdir()
    val = json.loads((world / "val.json").read_text())
    novel = [c["id"] for c in val["categories"] if c["name"] not in known]
    unlabelled = json.loads((world / "unlabelled.json").read_text())
    unlabelled["categories"] = val["categories"]
    unlabelled["annotations"] = [
        {"id": number, "image_id": image["id"], "category_id": novel[number % len(novel)],
         "bbox": [3, 4, 20, 30], "area": 600, "iscrowd": 0}
        for number, image in enumerate(unlabelled["images"], 1)
    ]  # fmt: skip
    labelled = json.loads((world / "oracle.json").read_text())
    assert any(annotation["category_id"] in novel for annotation in labelled["annotations"])
    for name, dataset in (("labelled", labelled), ("unlabelled", unlabelled), ("val", val)):
        for annotation in dataset["annotations"]:
            if scrambled and annotation["category_id"] in novel:
                annotation["category_id"] = int(rng.choice(novel))
                x, y = (float(number) for number in rng.uniform(0, 40, 2))
                corners = [x, y, x + 15, y, x + 15, y + 18, x, y + 18]
                annotation.update(bbox=[x, y, 15, 18], area=270, segmentation=[corners])
        (folder / f"{name}.json").write_text(json.dumps(dataset))
    return folder


def train_and_discover(files: Path, images: Path, run: Path, *, known: str) -> None:
    run_rncdl(
        *("train", "--run", run, "--labelled", files / "labelled.json", "--images", images),
        *("--known", known, "--val", files / "val.json", "--val-images", images),
        *(*SETTINGS, *QUICK, *WITH_MASK_STEPS, "train.evaluate_every=2"),
    )
    run_rncdl(
        *("discover", "--run", run, "--unlabelled", files / "unlabelled.json"),
        *("--unlabelled-images", images),
    )
    run_rncdl(
        *("discover", "--run", run, "--unlabelled", files / "unlabelled.json"),
        *("--unlabelled-images", images, "--discovery", "taught", *TEACHER, "discover.heads=[3]"),
    )
    run_rncdl(
        *("discover", "--run", run, "--unlabelled", files / "unlabelled.json"),
        *("--unlabelled-images", images, "--discovery", "alike", *TEACHER),
        "discover.neighbours=2",
    )


@pytest.mark.usefixtures("objects_everywhere")
def test_scrambled_novel_labels_change_no_training_artefact(world: Path, tmp_path: Path):
    artefacts = []
    for scrambled in (False, True):
        files = with_every_label(world, tmp_path / f"files{scrambled}", scrambled=scrambled)
        run = tmp_path / f"run{scrambled}"
        train_and_discover(files, world, run, known=known_of(world))
        run_rncdl("evaluate", files / "val.json", "--images", world, "--run", run)
        artefacts.append(
            {
                path.relative_to(run): path.read_bytes()
                for path in [
                    run / "detector.safetensors",
                    *sorted((run / "train" / "objects").glob("part_*")),
                    *sorted((run / "train" / "mask_objects").glob("part_*")),
                    run / "discoveries" / "main" / "heads.safetensors",
                    run / "discoveries" / "taught" / "heads.safetensors",
                    run / "discoveries" / "alike" / "heads.safetensors",
                    *sorted((run / "bank").glob("*.[fi]*")),
                    *sorted((run / "object_bank").glob("*.[fi]*")),
                ]
            }
        )
    assert artefacts[0].keys() == artefacts[1].keys()
    assert [p for p in artefacts[0] if artefacts[0][p] != artefacts[1][p]] == []


@pytest.mark.usefixtures("objects_everywhere")
def test_labels_made_without_people_hold_no_label_that_evaluation_reads(
    world: Path, tmp_path: Path
):
    """Whatever novel labels the files hold: the run may be evaluated before it is promoted."""
    known = known_of(world)
    made = []
    for scrambled in (False, True):
        files = with_every_label(world, tmp_path / f"files{scrambled}", scrambled=scrambled)
        run, out = tmp_path / f"run{scrambled}", tmp_path / f"promoted{scrambled}.json"
        train_and_discover(files, world, run, known=known)
        run_rncdl("evaluate", files / "val.json", "--images", world, "--run", run)
        run_rncdl(
            *("promote", "--run", run, "--out", out, "--unnamed"),
            *("--min-score", 0, "--min-per-class", 1, "--best-share", 0.5),
        )
        content = json.loads(out.read_text())
        novel = novel_labels(files, known.split(","))
        names = {category["name"] for category in content["categories"]}
        assert names > set(known.split(","))
        assert not names & {name for name, _ in novel}
        boxes = {box_of(one) for one in content["annotations"] if one["origin"] != "labelled"}
        assert boxes
        assert not boxes & {box for _, box in novel}
        made.append([content["categories"], content["annotations"], content["images"]])
    assert made[0] == made[1]


def novel_labels(files: Path, known: Collection[str]) -> set[tuple[str, tuple[float, ...]]]:
    """Class and box of every novel label of the files."""
    found = set()
    for name in ("labelled", "unlabelled", "val"):
        content = json.loads((files / f"{name}.json").read_text())
        name_of = {category["id"]: category["name"] for category in content["categories"]}
        found |= {(name_of[one["category_id"]], box_of(one)) for one in content["annotations"]}
    return {(name, box) for name, box in found if name not in known}


def box_of(annotation: dict[str, Any]) -> tuple[float, ...]:
    """To a tenth of a pixel."""
    return tuple(round(number, 1) for number in annotation["bbox"])


def reachable(value: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """The value and all that it holds, closes over or is bound to."""
    plain = (str, bytes, int, float, Path, torch.Tensor, np.ndarray, type, type(sys), type(None))
    if id(value) in seen or isinstance(value, plain):
        return
    seen[id(value)] = value
    yield value
    held: list[Any] = []
    if isinstance(value, dict):
        held += value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        held += value
    elif isinstance(value, FunctionType):
        held += [cell.cell_contents for cell in value.__closure__ or ()]
    elif isinstance(value, functools.partial):
        held += [value.func, *value.args, *value.keywords.values()]
    else:
        held += [getattr(value, "__self__", None), *getattr(value, "__dict__", {}).values()]
    for one in held:
        yield from reachable(one, seen)


def names_given(*arguments: Any) -> set[str]:
    """Class names of every dataset within reach of the arguments."""
    found = (one for one in reachable(arguments, {}) if isinstance(one, AnnotationSet))
    return {category.name for annotations in found for category in annotations.categories}


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """Class names that each training function was given, wherever it is called from."""
    noted: dict[str, set[str]] = {}

    def watch(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def watched(*arguments: Any, **named: Any) -> Any:
            noted.setdefault(name, set()).update(names_given(*arguments, *named.values()))
            return function(*arguments, **named)

        return watched

    for trainer in TRAINERS:
        watched = watch(trainer, trainer.__name__)
        for module in [m for name, m in sys.modules.items() if name.startswith("rncdl.")]:
            for name, value in list(vars(module).items()):
                if value is trainer:
                    monkeypatch.setattr(module, name, watched)
    for key, method in METHODS.items():
        monkeypatch.setitem(METHODS, key, watch(method, key))
    return noted


def test_no_training_is_given_a_dataset_with_novel_classes(
    world: Path, tmp_path: Path, given: dict[str, set[str]]
):
    known = known_of(world)
    files = with_every_label(world, tmp_path / "files", scrambled=False)
    run = tmp_path / "run"
    run_rncdl(
        *("train", "--run", run, "--labelled", files / "labelled.json", "--images", world),
        *("--known", known, *SETTINGS, *QUICK),
    )
    pool = ("--unlabelled", files / "unlabelled.json", "--unlabelled-images", world)
    run_rncdl("discover", "--run", run, *pool)
    run_rncdl("discover", "--run", run, *pool, "--discovery", "online", "--online")
    taught = ("--discovery", "taught", *TEACHER, "discover.heads=[3]")
    run_rncdl("discover", "--run", run, *pool, *taught)
    shutil.rmtree(run / "bank")
    seen_by_stages = {name: given.pop(name) for name in list(given)}
    run_rncdl(
        *("compare", files / "val.json", "--images", world, "--run", run, "--discovery", "main"),
        *("--methods", ",".join([*COMPARED, "rncdl"]), "--seeds", "0"),
    )
    assert seen_by_stages.keys() == {trainer.__name__ for trainer in TRAINERS}
    assert given.keys() == {"open_bank", "train_heads", *COMPARED}
    for names in (*seen_by_stages.values(), *given.values()):
        assert names <= set(known.split(","))
    with_labels = (seen_by_stages["train_detector"], given["open_bank"], given["weng"])
    assert all(names == set(known.split(",")) for names in with_labels)
