"""The whole of discovery for one choice of settings: from a detector to trained heads."""

from functools import partial

import numpy as np
import torch

from rncdl.config import DiscoverSettings, Settings
from rncdl.data.viewed_images import Pool
from rncdl.detector.model import Detector
from rncdl.discovery.bank import Bank
from rncdl.discovery.feeding import BankFeed, BatchSize
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.discovery.lessons import label_objects, label_regions, read_objects
from rncdl.discovery.neighbours import find_neighbours
from rncdl.discovery.online import train_heads_online
from rncdl.discovery.training import train_heads
from rncdl.errors import UserError
from rncdl.models import build_heads, load_detector, new_detector
from rncdl.run_folder import DiscoveryFolder, RunFolder
from rncdl.training.processes import Processes
from rncdl.training.progress import say


def needs_online(discover: DiscoverSettings) -> bool:
    """Whether that is wanted, or the detector learns too, so that no bank can hold its features."""
    return discover.online or discover.single_phase or discover.frozen != "all_but_heads"


def why_impossible(discover: DiscoverSettings) -> str | None:
    """What contradicts itself in the settings, and what to say instead; None: nothing.

    A teacher looks at the bank's images once; without one nobody can say how many classes there
    are, or what looks alike.
    """
    if discover.teacher != "none" and needs_online(discover):
        return (
            f"discover.teacher={discover.teacher} teaches from the bank; leave it out with "
            "discover.online, discover.single_phase or a free detector (discover.frozen)."
        )
    if discover.teacher == "none" and not discover.heads:
        return (
            "discover.heads=auto needs a teacher, in whose eyes classes are counted: say "
            "discover.teacher=auto, or give a number, discover.heads=[3000]."
        )
    if discover.teacher == "none" and discover.neighbours:
        return (
            f"discover.neighbours={discover.neighbours} needs a teacher, in whose eyes objects are "
            "alike: say discover.teacher=auto, or discover.neighbours=0."
        )
    return None


def require_possible(settings: Settings) -> None:
    """Refuse settings of discovery that contradict each other, before anything begins."""
    reason = why_impossible(settings.discover)
    if reason is not None:
        raise UserError(reason)


def starting_detector(run: RunFolder, settings: Settings, pool: Pool) -> Detector:
    """The run's trained detector; an untrained one for the single-phase ablation."""
    if not settings.discover.single_phase:
        return load_detector(run, settings, run.split())
    torch.manual_seed(settings.seed)
    detector = new_detector(settings, pool.labels)
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
    objects: Bank | None = None,
) -> DiscoveryHeads:
    """Heads trained on the bank's features, saved; goes on where the folder's training stopped.

    The bank may hold more regions of an image than the settings ask for: the best are read.
    `objects`: what the teacher has seen, where there is one.
    """
    region_labels, neighbours = None, None
    if objects is not None and settings.discover.is_taught:
        region_labels = processes.from_main(
            partial(_region_labels, bank, objects, pool, settings=settings)
        )
    elif objects is not None:
        neighbours = processes.from_main(
            partial(
                find_neighbours, bank, objects, pool, settings=settings, device=processes.device
            )
        )
        if processes.is_main:
            say(neighbours.line())
    feed = BankFeed(
        bank,
        pool.images,
        size=BatchSize(
            settings.discover.batch_images,
            settings.discover.labelled_images,
            settings.discover.regions_per_image,
        ),
        partner_iou=None if settings.discover.is_taught else settings.discover.partner_iou,
        region_labels=region_labels,
        neighbours=neighbours,
        seed=settings.seed,
        processes=processes,
    )
    torch.manual_seed(settings.seed)
    heads = build_heads(detector, settings.discover)
    train_heads(
        heads,
        feed,
        settings=settings,
        folder=folder.path,
        processes=processes,
    )
    processes.from_main(lambda: folder.save_heads(heads.state_dict()))
    return heads


def _region_labels(bank: Bank, objects: Bank, pool: Pool, *, settings: Settings) -> np.ndarray:
    """The teacher's labels (P, R, H) of the bank's regions, for each of H heads."""
    seen, made = read_objects(objects), []
    for num_clusters in settings.discover.heads:
        labels = label_objects(
            seen, pool, num_clusters=num_clusters, settings=settings, seed=settings.seed
        )
        nothing = pool.labels.split.num_known + num_clusters
        made.append(label_regions(bank, pool, seen, labels, nothing=nothing))
    return np.stack(made, axis=2)


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
