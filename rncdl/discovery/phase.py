"""The whole of discovery for one choice of settings: from a detector to trained heads."""

import torch

from rncdl.config import DiscoverSettings, Settings
from rncdl.data.viewed_images import Pool
from rncdl.detector.model import Detector
from rncdl.discovery.bank import Bank
from rncdl.discovery.feeding import BankFeed, BatchSize
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.discovery.online import train_heads_online
from rncdl.discovery.training import train_heads
from rncdl.models import build_heads, load_detector, new_detector
from rncdl.run_folder import DiscoveryFolder, RunFolder
from rncdl.training.processes import Processes


def needs_online(discover: DiscoverSettings) -> bool:
    """Whether parts of the detector are trained too, so that no bank can hold its features."""
    return discover.single_phase or discover.frozen != "all_but_heads"


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
) -> DiscoveryHeads:
    """Heads trained on the bank's features, saved; goes on where the folder's training stopped.

    The bank may hold more regions of an image than the settings ask for: the best are read.
    """
    feed = BankFeed(
        bank,
        pool.images,
        size=BatchSize(
            settings.discover.batch_images,
            settings.discover.labelled_images,
            settings.discover.regions_per_image,
        ),
        partner_iou=settings.discover.partner_iou,
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
