"""Maps computed once: the same training as without, whatever interrupted them; never stale ones."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rncdl.classes import KnownLabels
from rncdl.config import Settings, resolve_settings
from rncdl.data.samples import Sample
from rncdl.detector import map_cache
from rncdl.detector.map_cache import MapCache, open_map_cache, stack_maps
from rncdl.detector.model import Detector
from rncdl.detector.training import train_detector
from rncdl.detector.training_steps import open_training_loader
from rncdl.errors import UserError
from rncdl.run_folder import RunFolder
from rncdl.training.journal import read_journal
from rncdl.training.processes import Processes
from tests.detector.test_training import draw_images, labels_in
from tests.pipeline.tiny import SETTINGS

NUM_IMAGES = 6
HALF_PRECISION = 2e-3
ALONE = Processes(rank=0, count=1, device=torch.device("cpu"))


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> KnownLabels:
    folder = tmp_path_factory.mktemp("images")
    draw_images(folder, NUM_IMAGES)
    return labels_in(folder)


def settings_with(*overrides: str, cache: Path | None = None) -> Settings:
    fixed = ["data.short_sides_px=[64]", "train.augmentation=none", "detector.frozen_blocks=all"]
    named = ["null" if cache is None else str(cache)]
    return resolve_settings(
        overrides=[*SETTINGS, *fixed, f"train.map_cache={named[0]}", *overrides]
    )


def new_detector(settings: Settings, seed: int = 0) -> Detector:
    torch.manual_seed(seed)
    return Detector(settings.detector, 1, masks=True).train()


def fill(labels: KnownLabels, settings: Settings, seed: int = 0) -> MapCache:
    detector = new_detector(settings, seed)
    cache = open_map_cache(detector, labels, settings=settings, processes=ALONE)
    assert cache is not None
    return cache


def files_of(cache: MapCache) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in cache.folder.glob("*.safetensors")}


def test_without_a_folder_nothing_is_kept(labels: KnownLabels) -> None:
    settings = settings_with()
    detector = new_detector(settings)
    assert open_map_cache(detector, labels, settings=settings, processes=ALONE) is None


def test_maps_are_those_of_the_image_as_it_is_shown(labels: KnownLabels, tmp_path: Path) -> None:
    settings = settings_with(cache=tmp_path)
    cache = fill(labels, settings)
    loader = open_training_loader(
        labels, with_masks=True, settings=settings, processes=ALONE, first_step=0, cache=cache
    )
    detector = new_detector(settings)
    samples: list[Sample] = []
    for batch in loader:
        samples += batch.samples
        if len(samples) >= 4 * NUM_IMAGES:
            break
    assert {sample.is_mirrored for sample in samples} == {False, True}
    for sample in samples:
        assert sample.maps is not None
        expected = detector.backbone(detector.batch_images([sample.image]).pixels)
        for found, wanted in zip(sample.maps, expected, strict=True):
            torch.testing.assert_close(
                found.float(), wanted[0], rtol=HALF_PRECISION, atol=HALF_PRECISION
            )


def losses_of(labels: KnownLabels, settings: Settings, run: Path) -> list[dict[str, Any]]:
    train_detector(
        new_detector(settings), labels, settings=settings, run=RunFolder(run), processes=ALONE
    )
    return read_journal(run / "train" / "journal.jsonl")


def test_cached_and_uncached_training_have_the_same_losses(
    labels: KnownLabels, tmp_path: Path
) -> None:
    steps = ["train.steps=4", "train.log_every=1", "train.warmup_steps=0"]
    plain = losses_of(labels, settings_with(*steps), tmp_path / "plain")
    cached = losses_of(labels, settings_with(*steps, cache=tmp_path / "maps"), tmp_path / "cached")
    assert len(plain) == len(cached) == 4
    for one, other in zip(plain, cached, strict=True):
        # The RPN's samples are drawn whatever it says; regions are chosen by its scores, and a
        # change in the last digit may choose another one.
        for name in ("rpn_objectness", "rpn_box"):
            assert other[name] == pytest.approx(one[name], rel=0.01)
        assert other["loss"] == pytest.approx(one["loss"], rel=0.1)


def test_training_looks_at_no_image_again(
    labels: KnownLabels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_with("train.steps=2", cache=tmp_path / "maps")
    fill(labels, settings)
    detector = new_detector(settings)

    def refuse(pixels: Tensor) -> list[Tensor]:
        raise AssertionError("the backbone was asked again")

    monkeypatch.setattr(detector.backbone, "forward", refuse)
    train_detector(
        detector, labels, settings=settings, run=RunFolder(tmp_path / "run"), processes=ALONE
    )


class Stopped(Exception):
    """Something ended the filling."""


def test_a_half_written_cache_is_completed(
    labels: KnownLabels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = files_of(fill(labels, settings_with(cache=tmp_path / "whole")))
    assert len(whole) == NUM_IMAGES

    settings = settings_with(cache=tmp_path / "half")
    computed: list[Tensor] = []
    compute = map_cache._compute

    def compute_some(detector: Detector, image: Tensor, settings: Settings) -> list[Tensor]:
        if len(computed) == 2:
            raise Stopped
        computed.append(image)
        return compute(detector, image, settings)

    monkeypatch.setattr(map_cache, "_compute", compute_some)
    with pytest.raises(Stopped):
        fill(labels, settings)
    left = files_of(MapCache(tmp_path / "half"))
    assert left == {name: whole[name] for name in left}
    assert len(left) == 2
    # What a killed process was writing is not taken for a file.
    other = sorted(whole.keys() - left.keys())[0]
    (tmp_path / "half" / f".{other}.7.tmp").write_bytes(b"half of it")

    monkeypatch.setattr(map_cache, "_compute", compute)
    assert files_of(fill(labels, settings)) == whole


def test_labels_of_some_of_the_images_share_their_maps(
    labels: KnownLabels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_with(cache=tmp_path / "maps")
    fewer = replace(
        labels, annotations=replace(labels.annotations, images=labels.annotations.images[2:])
    )
    some = files_of(fill(fewer, settings))
    assert len(some) == NUM_IMAGES - 2
    computed: list[Tensor] = []
    compute = map_cache._compute

    def count(detector: Detector, image: Tensor, settings: Settings) -> list[Tensor]:
        computed.append(image)
        return compute(detector, image, settings)

    monkeypatch.setattr(map_cache, "_compute", count)
    every = files_of(fill(labels, settings))
    assert len(computed) == 2
    assert every.items() >= some.items()


def test_an_image_of_another_size_has_other_maps(tmp_path: Path) -> None:
    cache = MapCache(tmp_path)
    assert cache.file_of("a.jpg", (4, 5)) != cache.file_of("a.jpg", (5, 4))
    assert cache.file_of("a.jpg", (4, 5)) == cache.file_of(Path("a.jpg").absolute(), (4, 5))


def test_processes_share_the_images(labels: KnownLabels, tmp_path: Path) -> None:
    settings = settings_with(cache=tmp_path)
    detector, images = new_detector(settings), labels.annotations.images
    written = []
    for rank in range(2):
        processes = Processes(rank=rank, count=2, device=torch.device("cpu"))
        before = files_of(MapCache(tmp_path)).keys()
        map_cache._fill(
            MapCache(tmp_path), detector, images, settings=settings, processes=processes
        )
        written.append(files_of(MapCache(tmp_path)).keys() - before)
    assert [len(names) for names in written] == [NUM_IMAGES // 2] * 2


@pytest.mark.parametrize(
    ("changed", "seed", "named"),
    [
        ("seed=0", 1, "weights"),
        ("data.short_sides_px=[48]", 0, "short_side_px"),
        ("detector.pixel_mean=[0,0,0]", 0, "pixels"),
        ("data.flip=0", 0, "mirrored"),
        ("train.precision=bfloat16", 0, "precision"),
    ],
)
def test_maps_of_another_origin_are_refused(
    labels: KnownLabels, tmp_path: Path, changed: str, seed: int, named: str
) -> None:
    fill(labels, settings_with(cache=tmp_path))
    with pytest.raises(UserError, match=rf"made from something else.*\n  {named}: "):
        fill(labels, settings_with(changed, cache=tmp_path), seed)


@pytest.mark.parametrize(
    ("changed", "needed"),
    [
        ("detector.frozen_blocks=2", r"detector\.frozen_blocks=all"),
        ("data.short_sides_px=[56,64]", r"one size in data\.short_sides_px \(now \[56, 64\]\)"),
        ("train.augmentation=weak", r"train\.augmentation=none \(now weak\)"),
    ],
)
def test_maps_that_would_change_are_refused(
    labels: KnownLabels, tmp_path: Path, changed: str, needed: str
) -> None:
    with pytest.raises(UserError, match=needed):
        fill(labels, settings_with(changed, cache=tmp_path / "maps"))
    assert not (tmp_path / "maps").exists()


def test_a_damaged_file_is_named(labels: KnownLabels, tmp_path: Path) -> None:
    settings = settings_with(cache=tmp_path)
    image = labels.annotations.images[3]
    path = fill(labels, settings).file_of(image.path, (image.height, image.width))
    path.write_bytes(b"nonsense")
    with pytest.raises(UserError, match=rf"{path.name}: cannot be read"):
        train_detector(
            new_detector(settings),
            labels,
            settings=settings,
            run=RunFolder(tmp_path / "run"),
            processes=ALONE,
        )


def test_what_the_maps_take_is_known_before(labels: KnownLabels, tmp_path: Path) -> None:
    settings = settings_with(cache=tmp_path)
    images = labels.annotations.images
    expected = map_cache._num_bytes(new_detector(settings), images, settings)
    total = sum(len(content) for content in files_of(fill(labels, settings)).values())
    assert expected <= total <= expected + 1000 * NUM_IMAGES  # names and shapes in each file


def test_a_full_disk_is_an_error_before_anything_is_written(
    labels: KnownLabels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(map_cache, "_num_bytes", lambda *_: 10**18)
    with pytest.raises(UserError, match=r"the maps need 1000000000\.0 GB"):
        fill(labels, settings_with(cache=tmp_path))
    assert not files_of(MapCache(tmp_path))


def test_smaller_images_end_in_zeros() -> None:
    torch.manual_seed(0)
    detector = new_detector(settings_with())
    sizes = [(40, 70), (100, 33)]
    images = [torch.randint(0, 256, (3, *size), dtype=torch.uint8) for size in sizes]
    alone = [[m[0] for m in detector.backbone(detector.batch_images([i]).pixels)] for i in images]
    stacked = stack_maps(alone, torch.device("cpu"))
    together = detector.backbone(detector.batch_images(images).pixels)
    assert [m.shape for m in stacked] == [m.shape for m in together]
    for level, found in enumerate(stacked):
        for row, own in zip(found, alone, strict=True):
            height, width = own[level].shape[1:]
            assert torch.equal(row[:, :height, :width], own[level])
            assert row.sum() == pytest.approx(own[level].sum().item(), rel=1e-3)
