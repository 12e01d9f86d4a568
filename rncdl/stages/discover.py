"""`rncdl discover`: the second phase."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from rncdl.config import DiscoverSettings, Settings, resolve_settings
from rncdl.data.annotations import load_images_or_annotations, without_labels
from rncdl.data.records import ImageRecord
from rncdl.data.viewed_images import Pool
from rncdl.detector.model import Detector
from rncdl.discovery.bank import Bank
from rncdl.discovery.feeding import BankFeed
from rncdl.discovery.filling import open_bank, require_origin
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.discovery.online import train_heads_online
from rncdl.discovery.training import train_heads
from rncdl.errors import UserError
from rncdl.run_folder import DiscoveryFolder, DiscoveryInputs, RunFolder
from rncdl.stages.loading import build_heads, load_dataset, load_detector
from rncdl.stages.resuming import FIXED_IN_DISCOVERY, take_up_changes
from rncdl.stages.train import wants_masks
from rncdl.training.processes import Processes, join_processes
from rncdl.training.progress import say


def discover(
    run_path: Path,
    unlabelled: Sequence[Path],
    *,
    unlabelled_images: Path | None,
    labelled: Path | None,
    images: Path | None,
    name: str,
    preset: str | None,
    online: bool,
    resume: bool,
    overrides: Sequence[str],
) -> None:
    """Train the known and novel heads on the pool of labelled and unlabelled images."""
    run = RunFolder(run_path)
    folder = run.discovery(name)
    _require_free(folder, resume=resume)
    base = folder.settings() if resume else run.settings()
    settings = resolve_settings(preset, overrides, base=base)
    online = online or needs_online(settings.discover)
    inputs = folder.inputs() if resume else None
    if inputs is None or unlabelled or labelled:
        named = named_inputs(
            run,
            unlabelled,
            unlabelled_images=unlabelled_images,
            labelled=labelled,
            images=images,
        )
        _require_same_files(folder, inputs, named)
        inputs = named
    with join_processes(settings.device) as processes:
        pool = load_pool(run, inputs, settings=settings, shown=processes.is_main)
        if resume:
            take_up_changes(
                folder,
                base,
                settings,
                fixed=FIXED_IN_DISCOVERY,
                instead="begin another one with --discovery",
                processes=processes,
            )
        else:
            if not online:
                processes.from_main(partial(_require_usable_bank, run, pool, settings))
            processes.from_main(partial(folder.begin, settings, inputs))
        detector = starting_detector(run, settings, pool)
        if online:
            train_online(folder, detector, pool, settings=settings, processes=processes)
        else:
            bank = open_bank(
                run.bank_dir, detector, pool, run=run, settings=settings, processes=processes
            )
            train_from_bank(folder, detector, pool, bank, settings=settings, processes=processes)
        if processes.is_main:
            say(f"Heads: {folder.heads_file}")


def needs_online(discover: DiscoverSettings) -> bool:
    """Whether parts of the detector are trained too, so that no bank can hold its features."""
    return discover.single_phase or discover.frozen != "all_but_heads"


def load_pool(run: RunFolder, inputs: DiscoveryInputs, *, settings: Settings, shown: bool) -> Pool:
    """The labelled and the unlabelled images of a discovery."""
    images = Path(inputs.images) if inputs.images else None
    labels = run.split().keep_known(load_dataset(Path(inputs.labelled), images, shown=shown))
    unlabelled_images = Path(inputs.unlabelled_images) if inputs.unlabelled_images else None
    records: list[ImageRecord] = []
    for path in inputs.unlabelled:
        loaded = load_images_or_annotations(
            Path(path), unlabelled_images, on_bad_image=settings.data.on_bad_image
        )
        records.extend(without_labels(loaded.annotations).images)
    return Pool(labels, records)


def named_inputs(
    run: RunFolder,
    unlabelled: Sequence[Path],
    *,
    unlabelled_images: Path | None,
    labelled: Path | None,
    images: Path | None,
) -> DiscoveryInputs:
    """The files that were named; the labelled ones are the run's own unless others are."""
    if labelled is None:
        inputs = run.inputs()
        labelled = Path(inputs.labelled)
        images = Path(inputs.images) if inputs.images else None
    return DiscoveryInputs(
        labelled=str(labelled.resolve()),
        images=str(images.resolve()) if images else None,
        unlabelled=tuple(str(path.resolve()) for path in unlabelled),
        unlabelled_images=str(unlabelled_images.resolve()) if unlabelled_images else None,
    )


def _require_free(folder: DiscoveryFolder, *, resume: bool) -> None:
    if folder.heads_file.is_file():
        raise UserError(
            f"{folder.path}: this discovery is finished; choose another name (--discovery)."
        )
    if folder.exists and not resume:
        raise UserError(
            f"{folder.path}: already begun; continue it with --resume or choose another name "
            "(--discovery)."
        )


def _require_usable_bank(run: RunFolder, pool: Pool, settings: Settings) -> None:
    """Where there is a bank already, refuse one of another origin before the discovery begins."""
    if Bank.exists(run.bank_dir):
        require_origin(Bank(run.bank_dir), run, pool, settings)


def _require_same_files(
    folder: DiscoveryFolder, noted: DiscoveryInputs | None, named: DiscoveryInputs
) -> None:
    if noted is not None and named != noted:
        raise UserError(
            f"{folder.path}: this discovery was begun with other images ({folder.inputs_file}); "
            "resume it without naming any, or choose another name (--discovery)."
        )


def starting_detector(run: RunFolder, settings: Settings, pool: Pool) -> Detector:
    """The run's trained detector; an untrained one for the single-phase ablation."""
    split = run.split()
    if not settings.discover.single_phase:
        return load_detector(run, settings, split)
    torch.manual_seed(settings.seed)
    masks = wants_masks(settings, pool.labels)
    detector = Detector(settings.detector, split.num_known, masks=masks)
    detector.load_backbone_weights()
    return detector


def train_from_bank(
    folder: DiscoveryFolder,
    detector: Detector,
    pool: Pool,
    bank: Bank,
    *,
    settings: Settings,
    processes: Processes,
) -> DiscoveryHeads:
    """Heads trained on the bank's features, saved; goes on where the folder's training stopped.

    The bank may hold more regions of an image than the settings ask for: the best are read.
    """
    feed = BankFeed(
        bank,
        pool.images,
        batch_images=settings.discover.batch_images,
        labelled_images=settings.discover.labelled_images,
        regions_per_image=settings.discover.regions_per_image,
        partner_iou=settings.discover.partner_iou,
        seed=settings.seed,
        rank=processes.rank,
        world_size=processes.count,
    )
    torch.manual_seed(settings.seed)
    heads = build_heads(detector, settings.discover)
    train_heads(
        heads,
        feed,
        settings=settings.discover,
        seed=settings.seed,
        folder=folder.path,
        processes=processes,
    )
    processes.from_main(lambda: folder.save_heads(heads.state_dict()))
    return heads


def train_online(
    folder: DiscoveryFolder,
    detector: Detector,
    pool: Pool,
    *,
    settings: Settings,
    processes: Processes,
) -> DiscoveryHeads:
    """Heads trained on fresh views, saved, with the detector where the settings free a part of it.

    The detector is trained in place.
    """
    torch.manual_seed(settings.seed)
    heads = build_heads(detector, settings.discover)
    detector_changed = train_heads_online(
        heads, detector, pool, settings=settings, folder=folder.path, processes=processes
    )
    if detector_changed:
        processes.from_main(lambda: folder.save_detector(detector.state_dict()))
    processes.from_main(lambda: folder.save_heads(heads.state_dict()))
    return heads
