"""A finished discovery with everything that its clusters are looked at with."""

from dataclasses import dataclass
from functools import cached_property

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


@dataclass(frozen=True, eq=False)
class OpenDiscovery:
    """One head of a discovery, the images that it was made from, and their regions.

    Its networks are loaded when they are asked for.
    """

    run: RunFolder
    name: str
    head: int
    settings: Settings
    pool: Pool
    bank: Bank

    @property
    def folder(self) -> DiscoveryFolder:
        """Its files."""
        return self.run.discovery(self.name)

    @cached_property
    def detector(self) -> Detector:
        """The detector, on its device and in evaluation mode."""
        detector = load_detector(self.run, self.settings, self.run.split(), discovery=self.name)
        return detector.to(choose_device(self.settings.device)).eval()

    @cached_property
    def heads(self) -> DiscoveryHeads:
        """All of its heads."""
        return load_heads(self.run, self.detector, self.name)

    @cached_property
    def classifier(self) -> Classifier:
        """What the regions are by the one head, as predictions have it."""
        known, predict = self.run.split().known, self.settings.predict
        return discovery_classifier(
            self.detector, self.heads, known, head=self.head, predict=predict
        )


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
    inputs = folder.inputs()
    if inputs is None:
        raise UserError(f"{folder.path}: did not note its images, so there is nothing to show.")
    if not Bank.exists(run.bank_dir):
        raise UserError(
            f"{run.path}: no bank, as discovered with --online; discover without it, and the "
            "clusters can be shown."
        )
    num_heads = len(settings.discover.heads)
    if not 0 <= head < num_heads:
        raise UserError(f"--head {head}: this discovery has heads 0 to {num_heads - 1}.")
    pool = load_pool(run, inputs, settings=settings, shown=True)
    bank = Bank(run.bank_dir)
    require_origin(bank, run, pool, settings)
    return OpenDiscovery(run, name, head, settings, pool, bank)
