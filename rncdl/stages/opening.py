"""A finished discovery with everything that its clusters are looked at with."""

from dataclasses import dataclass

from rncdl.config import Settings, change
from rncdl.data.viewed_images import Pool
from rncdl.detector.model import Detector
from rncdl.discovery.bank import Bank
from rncdl.discovery.filling import require_origin
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.errors import UserError
from rncdl.inputs import load_pool
from rncdl.models import load_detector, load_heads
from rncdl.prediction.classifier import Classifier, discovery_classifier
from rncdl.run_folder import DiscoveryFolder, RunFolder
from rncdl.training.processes import choose_device


@dataclass(frozen=True)
class OpenDiscovery:
    """One head of a discovery, the images that it was made from, and their regions."""

    folder: DiscoveryFolder
    settings: Settings
    detector: Detector
    heads: DiscoveryHeads
    classifier: Classifier
    pool: Pool
    bank: Bank


def require_discovery(run: RunFolder, name: str | None) -> str:
    """The discovery of that name, None: the newest finished one; an error where there is none."""
    found = run.choose_discovery(name)
    if found is None:
        raise UserError(f"{run.path}: no finished discovery; run `rncdl discover`.")
    return found


def open_discovery(run: RunFolder, name: str, head: int) -> OpenDiscovery:
    """The discovery; an error where its images or its bank are not there any more."""
    folder = run.discovery(name)
    settings = change(folder.settings(), data={"workers": 0})
    split = run.split()
    inputs = folder.inputs()
    if inputs is None:
        raise UserError(f"{folder.path}: did not note its images, so there is nothing to show.")
    if not Bank.exists(run.bank_dir):
        raise UserError(
            f"{run.path}: no bank, as discovered with --online; discover without it, and the "
            "clusters can be shown."
        )
    detector = load_detector(run, settings, split, discovery=name)
    detector = detector.to(choose_device(settings.device)).eval()
    heads = load_heads(run, detector, name)
    if not 0 <= head < len(heads.num_clusters):
        raise UserError(
            f"--head {head}: this discovery has heads 0 to {len(heads.num_clusters) - 1}."
        )
    pool = load_pool(run, inputs, settings=settings, shown=True)
    bank = Bank(run.bank_dir)
    require_origin(bank, run, pool, settings)
    classifier = discovery_classifier(
        detector, heads, split.known, head=head, predict=settings.predict
    )
    return OpenDiscovery(folder, settings, detector, heads, classifier, pool, bank)
