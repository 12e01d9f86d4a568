"""The discovery phase, from the command line to files."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rncdl.classes import KnownLabels
from rncdl.config import Settings, resolve_settings
from rncdl.data.datasets import BadImage
from rncdl.data.viewed_images import Pool
from rncdl.discovery.bank import MISSING, Bank
from rncdl.discovery.extraction import choose_regions, extract_features
from rncdl.discovery.feeding import DiscoveryBatch, batch_of_extracted
from rncdl.discovery.filling import region_choice, view_images
from rncdl.discovery.step import Labelling, discovery_step
from rncdl.inputs import load_dataset
from rncdl.models import build_heads, load_detector
from rncdl.run_folder import RunFolder
from rncdl.training.checkpoints import list_checkpoints
from rncdl.training.journal import read_journal
from tests.pipeline.tiny import run_killed, run_rncdl


@pytest.fixture(scope="module")
def discovered(discovered: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of our own, to discover more in."""
    return shutil.copytree(discovered, tmp_path_factory.mktemp("discovered") / "run")


def discover(run: Path, world: Path, name: str, *more: object, **options: int) -> str:
    unlabelled = ["--unlabelled", world / "unlabelled.json"]
    return run_rncdl("discover", "--run", run, *unlabelled, "--discovery", name, *more, **options)


def heads(run: Path, name: str = "main") -> dict[str, torch.Tensor]:
    return load_file(run / "discoveries" / name / "heads.safetensors")


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert not [key for key in one if not torch.equal(one[key], other[key])]


def load_pool(run: RunFolder, world: Path) -> Pool:
    labelled = load_dataset(world / "labelled.json", None, shown=False)
    unlabelled = load_dataset(world / "unlabelled.json", None, shown=False)
    return Pool(run.split().keep_known(labelled), unlabelled.images)


def test_heads_classify_known_classes_and_clusters(discovered: Path):
    state = heads(discovered)
    assert state["known.linear.weight"].shape == (3, 32)
    assert state["known.background_weight"].shape == (32,)
    assert state["novel.0.prototypes"].shape == (8, 16)
    lengths = state["novel.0.prototypes"].norm(dim=1)
    assert torch.allclose(lengths, torch.ones(8), atol=1e-5)


def test_the_journal_shows_what_the_method_watches(discovered: Path):
    records = read_journal(discovered / "discoveries" / "main" / "journal.jsonl")
    assert [r["step"] for r in records] == [2, 4, 6, 8]
    watched = {"loss", "swapped_loss", "supervised_loss", "share_error", "clusters_in_use"}
    assert watched | {"label_entropy", "rate", "steps/s"} <= records[0].keys()
    assert records[-1]["rate"] == pytest.approx(1e-3)  # the schedule's end, in the stepped groups


def test_the_background_row_is_the_detectors(discovered: Path):
    known = load_file(discovered / "detector.safetensors")
    assert torch.equal(heads(discovered)["known.background_weight"], known["known_head.weight"][-1])


def test_frozen_means_frozen(discovered: Path, world: Path):
    """Neither parameters nor BatchNorm statistics of the detector move, online or from the bank."""
    before = (discovered / "detector.safetensors").read_bytes()
    run = RunFolder(discovered)
    discover(
        discovered, world, "online", "--online", "discover.steps=2", "discover.memory_batches=1"
    )
    assert (discovered / "detector.safetensors").read_bytes() == before
    assert run.discovery("online").load_detector() is None
    assert heads(discovered, "online").keys() == heads(discovered).keys()


def test_the_detector_in_memory_does_not_move_either(trained: Path, world: Path):
    run = RunFolder(trained)
    settings = run.settings()
    detector = load_detector(run, settings, run.split()).eval()
    before = {key: value.clone() for key, value in detector.state_dict().items()}
    pool = load_pool(run, world)
    items = [view_images(pool, settings, num_views=2)[(i, i)] for i in range(4)]
    images = [item for item in items if not isinstance(item, BadImage)]
    chosen, _ = choose_regions(detector, images, region_choice(settings))
    extract_features(detector, images, chosen)
    assert_same(before, detector.state_dict())


def test_views_without_distortion_are_the_image_and_its_mirror_image(trained: Path, world: Path):
    """The first shares the pass that finds the regions, which changes nothing."""
    run = RunFolder(trained)
    one_side = f"data.short_sides_px=[{run.settings().data.eval_short_side_px}]"
    settings = resolve_settings(None, ["discover.augmentation=none", one_side], base=run.settings())
    detector = load_detector(run, settings, run.split()).eval()
    dataset = view_images(load_pool(run, world), settings, num_views=3)
    images = [
        item for item in (dataset[(i, i)] for i in range(3)) if not isinstance(item, BadImage)
    ]
    for image in images:
        assert [image.is_plain(view) for view in image.views] == [True, False, True]
        assert torch.equal(image.views[0].image, image.plain)
        assert torch.equal(image.views[1].image, image.plain.flip(-1))
    passes = []
    detector.backbone.register_forward_hook(
        lambda _, arguments, __: passes.append(len(arguments[0]))
    )
    with torch.no_grad():
        chosen, maps = choose_regions(detector, images, region_choice(settings))
        apart = extract_features(detector, images, chosen)
        assert sum(passes) == 3 + 9
        shared = extract_features(detector, images, chosen, plain_maps=maps)
        assert sum(passes) == 3 + 9 + 6
    for one, other in zip(apart, shared, strict=True):
        torch.testing.assert_close(one.features, other.features, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            one.matched_features, other.matched_features, rtol=1e-4, atol=1e-5
        )
        assert not torch.allclose(one.features[0], one.features[1], rtol=1e-2)


def test_bank_and_online_give_the_same_loss(discovered: Path, world: Path):
    """The same regions and views, once through the disk in float16 and once directly."""
    run = RunFolder(discovered)
    settings = run.settings()
    pool = load_pool(run, world)
    detector = load_detector(run, settings, run.split()).eval()
    bank = Bank(run.bank_dir)
    dataset = view_images(pool, settings, num_views=settings.discover.views)
    indices = [0, 3, 17, 20]
    images = [dataset[(index, settings.seed * 1_000_003 + index)] for index in indices]
    with torch.no_grad():
        viewed = [image for image in images if not isinstance(image, BadImage)]
        chosen, _ = choose_regions(detector, viewed, region_choice(settings))
        direct = batch_of_extracted(*[extract_features(detector, viewed, chosen)] * 2)
    counts, matched = bank.counts(), bank.matched_counts()
    stored = DiscoveryBatch(
        views=(
            torch.cat([bank.read(i, 0, count=counts[i]) for i in indices]).float(),
            torch.cat([bank.read(i, 1, count=counts[i]) for i in indices]).float(),
        ),
        labelled=torch.cat(
            [bank.read_matched(i, 0, count=matched[i])[0] for i in indices if i < 16]
        ).float(),
        labels=torch.cat([bank.read_matched(i, 0, count=matched[i])[1] for i in indices if i < 16]),
    )
    assert torch.equal(stored.labels, direct.labels)
    assert len(stored.views[0]) == len(direct.views[0]) > 0
    losses = [_loss(batch, detector, settings) for batch in (stored, direct)]
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)


def _loss(batch: DiscoveryBatch, detector, settings: Settings) -> float:
    torch.manual_seed(0)
    fresh = build_heads(detector, settings.discover).train()
    empty = torch.zeros(0, batch.views[0].shape[1])
    loss, _, _ = discovery_step(
        fresh,
        batch,
        memories=(empty, empty),
        labelling=Labelling(),
        alpha=0.5,
    )
    return loss.item()


def test_a_later_discovery_reuses_the_bank(discovered: Path, world: Path):
    features = discovered / "bank" / "features.f16"
    before = features.stat().st_mtime_ns
    said = discover(discovered, world, "two_heads", "discover.heads=[5,9]", "discover.alpha=0")
    assert features.stat().st_mtime_ns == before
    assert "bank:" not in said
    state = heads(discovered, "two_heads")
    assert state["novel.0.prototypes"].shape[0] == 5
    assert state["novel.1.prototypes"].shape[0] == 9


def test_a_bank_of_other_views_is_refused(discovered: Path, world: Path):
    said = discover(discovered, world, "strong", "discover.augmentation=simclr", code=2)
    assert "augmentation: 'weak', now 'simclr'" in said
    assert not RunFolder(discovered).discovery("strong").exists  # the name is still free


def test_a_bank_that_was_interrupted_is_completed_to_the_same_bytes(
    discovered: Path, world: Path, tmp_path: Path
):
    run = tmp_path / "copy"
    subprocess.run(["cp", "-r", discovered, run], check=True)
    (run / "bank" / "features.f16").write_bytes(
        b"\0" * (run / "bank" / "features.f16").stat().st_size
    )
    np.full(28, MISSING, dtype=np.int32).tofile(run / "bank" / "counts.i32")
    discover(run, world, "again", "discover.steps=1")
    for name in ("features.f16", "boxes.f32", "matched_features.f16", "counts.i32"):
        assert (run / "bank" / name).read_bytes() == (discovered / "bank" / name).read_bytes()


def test_a_killed_discovery_resumes_bit_for_bit(discovered: Path, world: Path):
    words = ["discover", "--run", discovered, "--unlabelled", world / "unlabelled.json"]
    words += ["--discovery", "killed"]
    run_killed(*words, after="rncdl.training.saving.save_checkpoint")
    assert not (discovered / "discoveries" / "killed" / "heads.safetensors").exists()
    run_rncdl(*words, "--resume")
    assert_same(heads(discovered, "killed"), heads(discovered))


def test_a_killed_distillation_resumes_bit_for_bit(discovered: Path, world: Path):
    """Killed while its labels are still growing sharper."""
    distilled = ["discover.pseudo_labels=distilled", "discover.checkpoint_every=1"]
    discover(discovered, world, "distilled_whole", *distilled)
    words = ["discover", "--run", discovered, "--unlabelled", world / "unlabelled.json"]
    words += ["--discovery", "distilled_killed"]
    run_killed(*words, *distilled, after="rncdl.training.saving.save_checkpoint")
    run_rncdl(*words, "--resume")
    assert_same(heads(discovered, "distilled_killed"), heads(discovered, "distilled_whole"))


@pytest.mark.parametrize("way", ["--online", "discover.single_phase=true"])
def test_a_killed_discovery_without_a_bank_resumes_bit_for_bit(
    discovered: Path, world: Path, way: str
):
    """How it was begun need not be said again, and its images follow those it has seen."""
    quick = ["discover.steps=4", "discover.checkpoint_every=2", "discover.memory_batches=1"]
    quick += ["discover.rate=0.001", "discover.warmup_steps=0"]
    names = [f"{way[-5:-1]}_{end}" for end in ("whole", "killed")]
    discover(discovered, world, names[0], way, *quick)
    words = ["discover", "--run", discovered, "--unlabelled", world / "unlabelled.json"]
    words += ["--discovery", names[1]]
    run_killed(*words, way, *quick, after="rncdl.training.saving.save_checkpoint")
    run_rncdl(*words, "--resume")
    assert_same(*(heads(discovered, name) for name in names))
    detectors = [RunFolder(discovered).discovery(name).load_detector() for name in names]
    assert (detectors[0] is None) == (way == "--online")
    assert_same(*(detector or {} for detector in detectors))


def test_two_processes_share_the_pool(discovered: Path, world: Path):
    discover(discovered, world, "pair", processes=2)
    records = read_journal(discovered / "discoveries" / "pair" / "journal.jsonl")
    assert [r["step"] for r in records] == [2, 4, 6, 8]
    ranks = discovered / "discoveries" / "pair" / "checkpoints"
    states = [
        torch.load(list_checkpoints(ranks / f"rank_{rank}")[-1], weights_only=True)
        for rank in range(2)
    ]
    first, second = (state["trained"] for state in states)
    parameters = [key for key in first if "running" not in key and "num_batches" not in key]
    assert not [key for key in parameters if not torch.equal(first[key], second[key])]
    memories = [state["memories"][0]["features"] for state in states]
    assert not torch.equal(*memories)  # each process remembers its own images
    # Each has seen other rows; what is saved has seen both.
    name = "novel.0.projection.1.running_mean"
    means = [state[f"0.{name}"] for state in (first, second)]
    assert not torch.equal(*means)
    torch.testing.assert_close(heads(discovered, "pair")[name], (means[0] + means[1]) / 2)
    heads_file = discovered / "discoveries" / "pair" / "heads.safetensors"
    heads_file.unlink()
    said = discover(discovered, world, "pair", "--resume", code=2)
    assert "begun by 2 processes" in said
    assert "--processes 2" in said


@pytest.mark.parametrize(
    "override",
    [
        "discover.pseudo_labels=kmeans",
        "discover.pseudo_labels=distilled",
        "discover.classifier=linear",
        "discover.projection=false",
        "discover.swap=false",
        "discover.memory_batches=0",
        "discover.prior=uniform",
        "discover.order=random",
        "discover.order=fixed",
    ],
)
def test_every_ablation_runs_from_the_bank(discovered: Path, world: Path, override: str):
    name = override.replace("discover.", "").replace("=", "_")
    discover(discovered, world, name, override, "discover.steps=2")
    losses = [r["loss"] for r in read_journal(discovered / "discoveries" / name / "journal.jsonl")]
    assert all(torch.isfinite(torch.tensor(losses)))


@pytest.mark.parametrize(
    ("name", "override", "moved"),
    [
        ("roi", "discover.frozen=roi_heads_free", {"box_head"}),
        ("free", "discover.frozen=nothing", {"box_head", "backbone", "pyramid"}),
        ("single", "discover.single_phase=true", {"box_head", "backbone", "rpn_head", "mask_head"}),
    ],
)
def test_ablations_free_what_they_say(
    discovered: Path, world: Path, name: str, override: str, moved: set[str]
):
    discover(
        discovered, world, name, override, "discover.steps=2", "discover.memory_batches=1",
        "discover.rate=0.001", "discover.rate_at_start=0.001", "discover.warmup_steps=0",
    )  # fmt: skip
    changed = RunFolder(discovered).discovery(name).load_detector()
    assert changed is not None
    before = load_file(discovered / "detector.safetensors")
    parts = {key.split(".")[0] for key in before if not torch.equal(before[key], changed[key])}
    assert moved <= parts
    if name == "roi":
        assert parts == {"box_head"}


def test_annotations_of_an_unlabelled_file_are_never_read(
    discovered: Path, world: Path, tmp_path: Path
):
    """A pool file full of labels gives the same heads as one with none."""
    labelled = json.loads((world / "oracle.json").read_text())
    unlabelled = json.loads((world / "unlabelled.json").read_text())
    names = {image["file_name"] for image in unlabelled["images"]}
    images = [image for image in labelled["images"] if image["file_name"] in names]
    labelled["images"] = sorted(images, key=lambda image: image["file_name"])
    ids = {image["id"] for image in images}
    labelled["annotations"] = [a for a in labelled["annotations"] if a["image_id"] in ids]
    assert labelled["annotations"]
    path = tmp_path / "labelled_pool.json"
    path.write_text(json.dumps(labelled))
    pool = ["--unlabelled", path, "--unlabelled-images", world]
    run_rncdl("discover", "--run", discovered, *pool, "--discovery", "from_labelled")
    assert_same(heads(discovered, "from_labelled"), heads(discovered))


def test_known_labels_are_all_that_a_pool_holds(trained: Path, world: Path):
    pool = load_pool(RunFolder(trained), world)
    assert isinstance(pool.labels, KnownLabels)
    boxes, labels = pool.annotations_of(len(pool) - 1)
    assert len(boxes) == len(labels) == 0


def test_settings_of_the_discovery_are_saved(discovered: Path):
    saved = RunFolder(discovered).discovery("main").settings()
    assert saved == resolve_settings(base=RunFolder(discovered).settings())


def test_settings_given_when_a_discovery_goes_on_are_its_own(discovered: Path, world: Path):
    folder = RunFolder(discovered).discovery("longer")
    discover(discovered, world, "longer")
    folder.heads_file.unlink()
    refused = discover(discovered, world, "longer", "--resume", "discover.heads=[9]", code=2)
    assert "discover.heads: [8], now [9]" in refused
    said = discover(discovered, world, "longer", "--resume", "discover.steps=10")
    assert "discover.steps: 8, now 10" in said
    assert folder.settings().discover.steps == 10
    assert read_journal(folder.journal)[-1]["step"] == 10
    folder.heads_file.unlink()
    others = ["--unlabelled", world / "val.json", "--discovery", "longer", "--resume"]
    assert "other images" in run_rncdl("discover", "--run", discovered, *others, code=2)
