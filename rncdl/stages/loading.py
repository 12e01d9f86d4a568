"""What every stage reads first: datasets, and the models of a run."""

from pathlib import Path

from rncdl.classes import ClassSplit
from rncdl.config import DiscoverSettings, Settings
from rncdl.data.annotations import load_annotations
from rncdl.data.records import AnnotationSet
from rncdl.detector.model import Detector
from rncdl.discovery.heads import DiscoveryHeads, KnownHead, NovelHead
from rncdl.run_folder import RunFolder
from rncdl.training.progress import say


def load_dataset(path: Path, images: Path | None, *, shown: bool) -> AnnotationSet:
    """A dataset, with what had to be mended said on the screen."""
    loaded = load_annotations(path, images)
    if shown:
        for line in loaded.problems.lines():
            say(f"{path.name}: {line}")
    return loaded.annotations


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
        )
        for num_clusters in discover.heads
    ]
    return DiscoveryHeads(KnownHead.from_classifier(known.weight, known.bias), novel)
