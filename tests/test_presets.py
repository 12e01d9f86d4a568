"""The paper's presets say what the paper says, and run with the full-size network."""

from collections.abc import Generator
from pathlib import Path

import pytest
import torch

from rncdl.classes import ClassSplit
from rncdl.config import DetectorSettings, Settings, resolve_settings
from rncdl.data.annotations import load_annotations
from rncdl.data.datasets import BadImage
from rncdl.data.shapes import World, draw_world
from rncdl.data.viewed_images import Pool
from rncdl.detector.losses import supervised_losses
from rncdl.detector.model import Detector
from rncdl.detector.training_steps import open_training_loader
from rncdl.discovery.extraction import choose_regions, extract_features
from rncdl.discovery.feeding import DiscoveryBatch, batch_of_extracted
from rncdl.discovery.filling import region_choice, view_images
from rncdl.discovery.training import train_heads
from rncdl.models import build_heads
from rncdl.training.journal import read_journal
from rncdl.training.optimizer import make_sgd
from rncdl.training.processes import join_processes
from rncdl.training.schedule import Schedule, set_rate

NUM_KNOWN = {"coco-half-lvis": 80, "lvis-vg": 1203}
VARIANTS = ("", "-authors-code", "-long")
PRESETS = [setting + variant for setting in NUM_KNOWN for variant in VARIANTS]

SMALL = [
    "device=cpu",
    "data.short_sides_px=[64]",
    "data.long_side_px=64",
    "data.eval_short_side_px=64",
    "data.workers=0",
    "detector.proposals_before_nms=50",
    "detector.proposals_after_nms=20",
    "detector.roi_samples=16",
    "train.batch_size=2",
    "predict.proposals_before_nms=50",
    "discover.steps=1",
    "discover.log_every=1",
    "discover.batch_images=2",
    "discover.labelled_images=2",
    "discover.regions_per_image=10",
    "discover.memory_batches=1",
    "discover.max_rounds=20",
]


def values(settings: Settings, dotted: dict[str, object]) -> dict[str, object]:
    dumped = settings.model_dump()
    return {key: dumped[key.split(".")[0]][key.split(".")[1]] for key in dotted}


APPENDIX = {
    "detector.backbone": "resnet50",
    "detector.norm": "batch",
    "data.short_sides_px": (640, 672, 704, 736, 768, 800),
    "data.long_side_px": 1333,
    "train.steps": 180_000,
    "train.batch_size": 16,
    "train.rate": 0.01,
    "train.rate_at_start": 0.001,
    "train.warmup_steps": 1000,
    "train.drop_at": (120_000, 160_000),
    "train.weight_decay": 1e-4,
    "discover.heads": (3000,),
    "discover.steps": 15_000,
    "discover.batch_images": 16,
    "discover.labelled_images": 16,
    "discover.alpha": 0.5,
    "discover.rate": 0.01,
    "discover.rate_at_start": 1e-5,
    "discover.rate_at_end": 1e-3,
    "discover.warmup_steps": 3000,
    "discover.regions_per_image": 50,
    "discover.region_nms": None,
    "discover.augmentation": "weak",
    "discover.memory_batches": 100,
    "discover.sharpness": 20,
    "discover.prior": "lognormal",
    "discover.prior_sigma": 0.5,
    "discover.pseudo_labels": "sinkhorn",
    "discover.swap": True,
    "discover.projection": True,
    "predict.max_detections": 300,
    "predict.min_score": 1e-4,
}
AUTHORS = {
    "train.rate": 0.02,
    "predict.proposal_nms": 0.9,
    "discover.augmentation": "simclr",
    "discover.sharpness": 10,
    "discover.order": "random",
}
LONG = {
    "discover.steps": 25_000,
    "discover.rate": 0.015,
    "discover.batch_images": 32,
    "discover.labelled_images": 32,
}


@pytest.mark.parametrize("setting", NUM_KNOWN)
def test_presets_hold_the_papers_values(setting: str):
    """Also when a default changes some day."""
    assert values(resolve_settings(setting), APPENDIX) == APPENDIX
    assert values(resolve_settings(f"{setting}-long"), APPENDIX) == {**APPENDIX, **LONG}
    assert values(resolve_settings(f"{setting}-authors-code"), AUTHORS) == AUTHORS
    repeats = resolve_settings(setting).data.repeat_threshold
    assert repeats == (0.001 if setting == "lvis-vg" else 0)


def test_the_authors_code_never_changes_the_rate_of_discovery():
    discover = resolve_settings("coco-half-lvis-authors-code").discover
    schedule = Schedule(
        discover.steps,
        peak=discover.rate,
        start=discover.rate_at_start,
        end=discover.rate_at_end,
        warmup_steps=discover.warmup_steps,
        shape="cosine",
    )
    assert {schedule.rate(step) for step in (0, 1, 7_000, 14_999)} == {0.01}


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Pool:
    out = tmp_path_factory.mktemp("world") / "world"
    world = World(
        num_classes=4, num_known=2, image_px=64, num_labelled=2, num_unlabelled=1, num_val=1
    )
    draw_world(out, world, num_processes=1)
    labelled = load_annotations(out / "labelled.json").annotations
    unlabelled = load_annotations(out / "unlabelled.json").annotations
    return Pool(ClassSplit.from_labelled(labelled).keep_known(labelled), unlabelled.images)


@pytest.fixture(scope="module")
def detectors() -> dict[tuple[DetectorSettings, int], Detector]:
    """Built once for all presets that share them."""
    return {}


class OneBatch:
    """A feed that repeats itself."""

    can_prefetch = False

    def __init__(self, batch: DiscoveryBatch) -> None:
        self._batch = batch

    def batches(self, start: int = 0) -> Generator[DiscoveryBatch, None, None]:
        while True:
            yield self._batch


@pytest.mark.parametrize("preset", PRESETS)
def test_a_step_of_both_phases(
    preset: str,
    pool: Pool,
    detectors: dict[tuple[DetectorSettings, int], Detector],
    tmp_path: Path,
):
    settings = resolve_settings(preset, SMALL)
    num_known = next(k for name, k in NUM_KNOWN.items() if preset.startswith(name))
    key = (settings.detector, num_known)
    if key not in detectors:
        detectors[key] = Detector(settings.detector, num_known, masks=True)
        take_supervised_step(detectors[key], pool, settings)
    take_discovery_step(detectors[key], pool, settings, tmp_path)
    (record,) = read_journal(tmp_path / "journal.jsonl")
    assert torch.isfinite(torch.tensor(record["loss"]))


def take_supervised_step(detector: Detector, pool: Pool, settings: Settings) -> None:
    before = {name: value.clone() for name, value in detector.named_parameters()}
    detector.train()
    optimizer = make_sgd(detector, weight_decay=settings.train.weight_decay)
    set_rate(optimizer, 1e-3)  # as in a warm-up: at the peak one step may throw the network off
    with join_processes("cpu") as processes:
        loader = open_training_loader(
            pool.labels, with_masks=True, settings=settings, processes=processes, first_step=0
        )
        losses = supervised_losses(detector, next(iter(loader)).samples)
    torch.stack(list(losses.values())).sum().backward()
    optimizer.step()
    moved = {n for n, value in detector.named_parameters() if not torch.equal(value, before[n])}
    assert losses.keys() == {"rpn_objectness", "rpn_box", "box", "class", "mask"}
    assert not [n for n in moved if n.startswith(("backbone.conv1", "backbone.layer1"))]
    assert {"backbone.layer2.0.conv1.weight", "known_head.weight"} <= moved


def take_discovery_step(detector: Detector, pool: Pool, settings: Settings, folder: Path) -> None:
    detector.eval()
    dataset = view_images(pool, settings, num_views=2)
    items = [dataset[(index, index)] for index in range(len(pool))]
    images = [item for item in items if not isinstance(item, BadImage)]
    with torch.inference_mode():
        chosen, _ = choose_regions(detector, images, region_choice(settings))
        extracted = extract_features(detector, images, chosen)
    batch = batch_of_extracted(extracted, extracted[: pool.num_labelled])
    heads = build_heads(detector, settings.discover)
    assert heads.num_known + sum(heads.num_clusters) == detector.num_known + 3000
    before = heads.novel[0].prototypes.detach().clone()
    with join_processes("cpu") as processes:
        train_heads(
            heads,
            OneBatch(batch),
            settings=settings,
            folder=folder,
            processes=processes,
        )
    assert not torch.equal(heads.novel[0].prototypes, before)
