"""The models of a run: its detector, and the heads of its discoveries."""

from rncdl.classes import ClassSplit, KnownLabels
from rncdl.config import DiscoverSettings, Settings
from rncdl.detector.model import Detector
from rncdl.discovery.heads import DiscoveryHeads, KnownHead, NovelHead
from rncdl.errors import UserError
from rncdl.run_folder import RunFolder


def new_detector(settings: Settings, labels: KnownLabels) -> Detector:
    """An untrained detector of the known classes; its masks by the setting and by the labels."""
    wanted, has_masks = settings.detector.masks, labels.annotations.has_masks
    if wanted == "on" and not has_masks:
        raise UserError(
            "detector.masks=on, but not every annotation of the labelled file has a mask; "
            "use detector.masks=auto."
        )
    masks = wanted != "off" and has_masks
    return Detector(settings.detector, labels.split.num_known, masks=masks)


def load_detector(
    run: RunFolder, settings: Settings, split: ClassSplit, *, discovery: str | None = None
) -> Detector:
    """The run's trained detector, or the one that a discovery (an ablation) has trained further."""
    state, has_masks = run.load_detector()
    changed = None if discovery is None else run.discovery(discovery).load_detector()
    detector = Detector(settings.detector, split.num_known, masks=has_masks)
    detector.load_state_dict(state if changed is None else changed)
    return detector


def load_heads(run: RunFolder, detector: Detector, discovery: str) -> DiscoveryHeads:
    """The heads that a discovery has trained."""
    folder = run.discovery(discovery)
    heads = build_heads(detector, folder.settings().discover)
    heads.load_state_dict(folder.load_heads())
    return heads


def build_heads(detector: Detector, discover: DiscoverSettings) -> DiscoveryHeads:
    """The detector's known head without its background, and fresh novel heads."""
    known = detector.known_head
    novel = [
        NovelHead(
            known.in_features,
            num_clusters,
            hidden_width=discover.hidden_width,
            projection_width=discover.projection_width,
            classifier=discover.classifier,
            projection=discover.projection,
            background=discover.is_taught,
        )
        for num_clusters in discover.heads
    ]
    return DiscoveryHeads(KnownHead.from_classifier(known.weight, known.bias), novel)
