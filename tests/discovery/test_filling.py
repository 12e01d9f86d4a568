"""Making the bank: who takes which images, interruptions, and what a bank depends on."""

import json
import types
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import BaseModel

from rncdl.classes import ClassSplit
from rncdl.config import LEARNING_SETTINGS, Settings, resolve_settings
from rncdl.data.viewed_images import Pool
from rncdl.detector.model import Detector
from rncdl.discovery import filling
from rncdl.discovery.bank import MISSING, UNREADABLE, Bank, BankShape, _layout
from rncdl.discovery.filling import (
    bank_origin,
    open_bank,
    region_choice,
    require_origin,
    share_batches,
    view_images,
)
from rncdl.discovery.recipe import BankRecipe
from rncdl.errors import UserError
from rncdl.inputs import load_dataset
from rncdl.models import load_detector
from rncdl.run_folder import RunFolder, TrainingInputs
from rncdl.stages.resuming import FIXED_IN_DISCOVERY
from rncdl.training.processes import Processes
from tests.pipeline.tiny import SETTINGS
from tests.two_processes import run_in_two_processes

ALONE = Processes(rank=0, count=1, device=torch.device("cpu"))
NUM_IMAGES, NUM_LABELLED = 13, 5
SIDES_PX = (64, 80, 96)
FILES = ("features.f16", "boxes.f32", "objectness.f32", "counts.i32")
FILES_OF_LABELLED = ("matched_features.f16", "matched_labels.i32", "matched_counts.i32")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with an untrained detector, beside images of many shapes, of which one is broken."""
    folder = tmp_path_factory.mktemp("pool")
    rng = np.random.default_rng(0)
    for part, numbers in (
        ("labelled", range(NUM_LABELLED)),
        ("unlabelled", range(NUM_LABELLED, NUM_IMAGES)),
    ):
        images, annotations = [], []
        for number in numbers:
            height, width = SIDES_PX[number % 3], SIDES_PX[number // 3 % 3]
            pixels = rng.integers(0, 255, (height // 8, width // 8, 3), dtype=np.uint8)
            path = folder / f"{number}.png"
            Image.fromarray(pixels).resize((width, height)).save(path)
            images.append({"id": number, "file_name": path.name, "height": height, "width": width})
            annotations.append(
                {"id": number, "image_id": number, "category_id": 1, "bbox": [8, 8, 30, 40],
                 "area": 1200, "iscrowd": 0}
            )  # fmt: skip
        content = {
            "images": images,
            "annotations": annotations if part == "labelled" else [],
            "categories": [{"id": 1, "name": "thing"}],
        }
        (folder / f"{part}.json").write_text(json.dumps(content))
    (folder / "10.png").write_bytes(b"not an image")
    settings = resolve_settings(
        overrides=[*SETTINGS, "predict.batch_size=2", "data.on_bad_image=skip"]
    )
    made = RunFolder(folder / "run")
    made.begin(settings, TrainingInputs(str(folder / "labelled.json")), ClassSplit(("thing",)))
    torch.manual_seed(0)
    detector = Detector(settings.detector, 1, masks=False)
    made.save_detector(detector.state_dict(), has_masks=False)
    return made


def pool_of(run: RunFolder) -> Pool:
    folder = run.path.parent
    labelled = load_dataset(folder / "labelled.json", None, shown=False)
    unlabelled = load_dataset(folder / "unlabelled.json", None, shown=False)
    return Pool(run.split().keep_known(labelled), unlabelled.images)


def fill(processes: Processes, run: RunFolder, folder: Path) -> list[int]:
    """Make the bank in `folder`, or complete it; how many regions its images have."""
    settings = run.settings()
    detector = load_detector(run, settings, run.split())
    with one_thread():
        bank = open_bank(
            folder, detector, pool_of(run), run=run, settings=settings, processes=processes
        )
    return bank.counts().tolist()


@contextmanager
def one_thread() -> Iterator[None]:
    """As each of two processes has: sums are then rounded alike. Later tests have theirs again."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def fill_and_fail(
    processes: Processes, run: RunFolder, folder: Path, impossible: Path
) -> tuple[list[int], str]:
    """What `fill` returns, and the error where it is impossible."""
    counts = fill(processes, run, folder)
    try:
        fill(processes, run, impossible)
    except UserError as error:
        return counts, str(error)
    return counts, "no error"


def content(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in (*FILES, *FILES_OF_LABELLED)}


@pytest.fixture(scope="module")
def whole(run: RunFolder) -> Path:
    """A bank that one process made without interruption."""
    folder = run.path / "bank"
    counts = fill(ALONE, run, folder)
    assert counts[10] == UNREADABLE
    assert MISSING not in counts
    assert max(counts) > 0
    return folder


def interrupt(run: RunFolder, folder: Path, monkeypatch: pytest.MonkeyPatch, *, after: int) -> None:
    """Fill a bank until so many batches are extracted."""
    extract, calls = filling._extract, []

    def stop(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) > 2 + after:  # two passes measure the speed
            raise KeyboardInterrupt
        return extract(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(filling, "_extract", stop)
        with pytest.raises(KeyboardInterrupt):
            fill(ALONE, run, folder)


def test_a_bank_is_the_same_whoever_made_it_and_however_often_interrupted(
    run: RunFolder, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Begun by one process, interrupted, a hole torn into it, completed by two.

    A bank that cannot be made is an error of both; neither is left waiting for the other.
    """
    folder = tmp_path / "bank"
    interrupt(run, folder, monkeypatch, after=4)
    begun = Bank(folder)
    assert (begun.counts() != MISSING).sum() == 8
    assert not begun.is_settled
    counts = begun.counts()
    begun.save_counts()
    features = begun.read(2, 0, count=int(counts[2]))
    counts[2] = counts[7] = MISSING
    counts.tofile(folder / "counts.i32")
    for index in (2, 7):
        zeros = torch.zeros_like(features).numpy()
        Bank(folder, writable=True)._features.write((index, 0), zeros)
    assert content(folder) != content(whole)

    taken = tmp_path / "taken"
    taken.touch()
    returned = run_in_two_processes(fill_and_fail, tmp_path, run, folder, taken)

    assert content(folder) == content(whole)
    assert not list(folder.glob("finished_*"))
    for counts_seen, said in returned:
        assert counts_seen == Bank(whole).counts().tolist()
        assert "taken: cannot make a bank here" in said


def test_a_finished_bank_is_not_touched(run: RunFolder, whole: Path):
    before = {path: path.stat().st_mtime_ns for path in whole.iterdir()}
    fill(ALONE, run, whole)
    assert {path: path.stat().st_mtime_ns for path in whole.iterdir()} == before


class Fellows:
    """A pool by its numbers alone."""

    def __init__(self, num_images: int, num_labelled: int) -> None:
        self.num_images, self.num_labelled = num_images, num_labelled

    def __len__(self) -> int:
        return self.num_images


def shares(
    missing: np.ndarray, *, num_images: int, num_labelled: int, batch_size: int, count: int
) -> list[list[list[int]]]:
    pool: Any = Fellows(num_images, num_labelled)
    return [
        share_batches(
            missing,
            pool,
            batch_size=batch_size,
            processes=Processes(rank, count, torch.device("cpu")),
        )
        for rank in range(count)
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("share_missing", [0.02, 0.5, 1.0])
def test_every_batch_with_a_missing_image_is_somebodys(count: int, share_missing: float):
    rng = np.random.default_rng(0)
    missing = np.flatnonzero(rng.random(1003) < share_missing)
    found = shares(missing, num_images=1003, num_labelled=400, batch_size=4, count=count)
    batches = sorted(batch for share in found for batch in share)
    wanted = sorted({index // 4 for index in missing.tolist()})
    assert batches == [list(range(4 * n, min(4 * n + 4, 1003))) for n in wanted]
    if share_missing == 1.0:
        for share in found:
            jumps = [b[0] - a[-1] for a, b in pairwise(share)]
            assert sum(jump != 1 for jump in jumps) <= 1  # two ranges: labelled and not
        for kind in (lambda i: i < 400, lambda i: i >= 400):
            sizes = [sum(kind(batch[0]) for batch in share) for share in found]
            assert max(sizes) - min(sizes) <= max(2, sum(sizes) / count / 4)


@pytest.mark.parametrize("count", [2, 8])
def test_no_two_processes_write_into_one_page(count: int):
    """With the paper's sizes, in any of the files."""
    shape = BankShape(
        num_images=100_000,
        num_labelled=50_000,
        num_views=4,
        regions_per_image=50,
        matched_per_image=128,
        num_features=1024,
    )
    found = shares(
        np.arange(100_000), num_images=100_000, num_labelled=50_000, batch_size=4, count=count
    )
    for name, (dimensions, dtype) in _layout(shape).items():
        slot = int(np.prod(dimensions[1:])) * np.dtype(dtype).itemsize
        pages: dict[int, int] = {}
        for rank, share in enumerate(found):
            own = np.array([index for batch in share for index in batch])
            own = own[own < dimensions[0]]
            edges = own[np.flatnonzero(np.diff(own, prepend=-2, append=-2)[:-1] != 1)]
            ends = own[np.flatnonzero(np.diff(own, append=-2) != 1)]
            for first, last in zip(edges.tolist(), ends.tolist(), strict=True):
                for page in {first * slot // 4096, ((last + 1) * slot - 1) // 4096}:
                    assert pages.setdefault(page, rank) == rank, f"page {page} of {name}"


def other_value(value: Any, annotation: Any) -> Any:
    """A value of the same kind as `value`, but another."""
    if get_origin(annotation) is Literal:
        return next(one for one in get_args(annotation) if one != value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1 if isinstance(value, int) else value / 2 + 0.1
    if isinstance(value, tuple):
        return tuple(one + 1 for one in value)
    if isinstance(value, str):
        return f"{value}x"
    return 0.5 if get_origin(annotation) is types.UnionType else "other"


def changed_settings() -> dict[str, Settings]:
    """The defaults, with each setting changed in turn."""
    base, found = Settings(), {}
    for group, value in base:
        if not isinstance(value, BaseModel):
            annotation = type(base).model_fields[group].annotation
            found[group] = base.model_copy(update={group: other_value(value, annotation)})
            continue
        for name, inner in value:
            annotation = type(value).model_fields[name].annotation
            new = value.model_copy(update={name: other_value(inner, annotation)})
            found[f"{group}.{name}"] = base.model_copy(update={group: new})
    return found


CHANGED = changed_settings()


def noted(settings: Settings) -> dict[str, Any]:
    return BankRecipe.from_settings(settings).noted()


def test_all_that_filling_reads_is_noted(run: RunFolder):
    """Whatever setting changes the choice of regions, the views or the network's pass."""
    pool = pool_of(run)

    def read(settings: Settings) -> list[Any]:
        views = vars(view_images(pool, settings, num_views=settings.discover.views))
        taken = {name: value for name, value in views.items() if name not in ("_pool", "_reader")}
        network = settings.detector.model_dump(exclude=set(LEARNING_SETTINGS))
        return [region_choice(settings), taken, network, settings.train.precision, settings.seed]

    lenient = "data.on_bad_image"  # decides whether a broken image is an error, not what is in it
    depends = {key for key, one in CHANGED.items() if read(one) != read(Settings())} - {lenient}
    assert depends == {key for key, one in CHANGED.items() if noted(one) != noted(Settings())}
    assert {
        "detector.proposals_after_nms",
        "detector.roi_sampling_ratio",
        "train.precision",
        "discover.views",
        "predict.proposals_before_nms",
    } <= depends


def test_what_a_bank_depends_on_cannot_change_when_its_discovery_is_resumed():
    depends = {key for key, one in CHANGED.items() if noted(one) != noted(Settings())}
    assert depends <= FIXED_IN_DISCOVERY
    assert set(CHANGED) >= FIXED_IN_DISCOVERY


def test_a_bank_of_other_matches_is_refused(run: RunFolder, whole: Path):
    pool = pool_of(run)
    require_origin(Bank(whole), run, pool, run.settings())
    other = resolve_settings(base=run.settings(), overrides=["detector.proposals_after_nms=30"])
    with pytest.raises(UserError, match=r"detector\.proposals_after_nms: 40, now 30"):
        require_origin(Bank(whole), run, pool, other)


def test_a_bank_that_noted_less_is_judged_by_the_settings_of_its_run(
    run: RunFolder, whole: Path, tmp_path: Path
):
    """As banks of earlier versions did: without the detector's settings and the precision."""
    pool, settings = pool_of(run), run.settings()
    full = bank_origin(run, pool, settings)
    older = {key: value for key, value in full.items() if not key.startswith("detector.")}
    del older["precision"]
    Bank.create(tmp_path / "older", Bank(whole).shape, older)
    bank = Bank(tmp_path / "older")
    require_origin(bank, run, pool, settings)
    for override in ("detector.proposals_after_nms=30", "train.precision=bfloat16", "seed=1"):
        other = resolve_settings(base=settings, overrides=[override])
        with pytest.raises(UserError, match="made from something else"):
            require_origin(bank, run, pool, other)
