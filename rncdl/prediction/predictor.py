"""A trained run, ready to look at images: `rncdl.load(run).predict(image)`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

import torch

from rncdl.config import Changes, Settings, as_overrides, change, resolve_settings
from rncdl.data.given_images import GivenImage, pixels_of
from rncdl.data.samples import Sample, unlabelled_sample
from rncdl.data.transforms import resize_sample
from rncdl.detector.model import Detector
from rncdl.errors import UserError
from rncdl.models import load_detector, load_heads
from rncdl.prediction.classifier import Classifier, discovery_classifier, trained_classifier
from rncdl.prediction.inference import Inference, detect_samples
from rncdl.regions import Regions
from rncdl.run_folder import RunFolder
from rncdl.training.processes import choose_device


@dataclass(frozen=True)
class HeadChoice:
    """Which of a run's heads classifies, and whether people's decisions count."""

    discovery: str | None = None
    """None: the newest finished one; `trained`: the detector as it was trained"""
    head: int = 0
    raw: bool = False
    """clusters as they are, whatever people have decided"""


@dataclass(frozen=True)
class Predictor:
    """A detector and the way its regions are classified. Made by `rncdl.load`."""

    detector: Detector
    classifier: Classifier
    settings: Settings
    discovery: str | None = None
    """the discovery whose heads classify; None: the detector as it was trained"""

    @property
    def names(self) -> list[str]:
        """The name of each label: K known classes, then the names that people gave and the
        clusters without one (novel_0000, ...).
        """
        return list(self.classifier.names)

    @property
    def known(self) -> tuple[str, ...]:
        """The K known classes."""
        return self.classifier.names[: self.classifier.num_known]

    @property
    def num_novel(self) -> int:
        """How many labels come after the known classes; 0 for a run without a discovery."""
        return self.classifier.num_novel

    @property
    def clusters(self) -> list[tuple[int, ...]]:
        """The clusters that each label is made of; a known class has those that people gave it."""
        return list(self.classifier.clusters)

    @overload
    def predict(  # type: ignore[overload-overlap]  # a str is one path, not a sequence of them
        self,
        images: GivenImage,
        *,
        min_score: float | None = None,
        features: bool = False,
        masks: bool = True,
    ) -> Regions: ...

    @overload
    def predict(
        self,
        images: Sequence[GivenImage],
        *,
        min_score: float | None = None,
        features: bool = False,
        masks: bool = True,
    ) -> list[Regions]: ...

    def predict(
        self,
        images: GivenImage | Sequence[GivenImage],
        *,
        min_score: float | None = None,
        features: bool = False,
        masks: bool = True,
    ) -> Regions | list[Regions]:
        """What is found in an image, the best first; of a list (or tuple), one record each.

        An image is a path, a Pillow image, a numpy array (height, width) or (height, width, 3), or
        a tensor (3, height, width); arrays and tensors are RGB, uint8 or floating from 0 to 1.
        Boxes and masks are in its pixels, all tensors on the CPU.

        min_score: only detections above it (default: the setting predict.min_score).
        features: also the box-head features of each detection.
        masks: also masks, where the detector has them.
        """
        many = isinstance(images, list | tuple)
        given = images if isinstance(images, list | tuple) else [images]
        settings = self.settings
        if min_score is not None:
            settings = change(settings, predict={"min_score": float(min_score)})
        inference = Inference(
            self.detector,
            [self.classifier],
            settings,
            with_masks=masks,
            with_features=features,
        )
        size = settings.predict.batch_size
        found: list[Regions] = []
        for start in range(0, len(given), size):
            samples = [
                self._sample(image, index if many else None)
                for index, image in enumerate(given[start : start + size], start)
            ]
            found += detect_samples(inference, samples).regions()[0]
        named = [_finished(regions, self.classifier) for regions in found]
        return named if many else named[0]

    def _sample(self, image: GivenImage, index: int | None) -> Sample:
        """The image at the network's size; what is wrong with it is told with its place."""
        try:
            pixels = pixels_of(image)
        except UserError as error:
            place = "image" if index is None else f"images[{index}]"
            raise UserError(f"{place}: {error}") from error
        data = self.settings.data
        return resize_sample(
            unlabelled_sample(pixels, image_index=index or 0, path=""),
            short_side_px=data.eval_short_side_px,
            long_side_px=data.long_side_px,
        )


def load(
    run: str | Path,
    *,
    discovery: str | None = None,
    head: int = 0,
    device: str | None = None,
    raw: bool = False,
    settings: Changes = (),
) -> Predictor:
    """A run's detector for known and novel classes, ready to predict.

    Clusters are named, merged and ignored as people have decided on the page of `rncdl name`.

    run: a folder that `rncdl train` made.
    discovery: its name; None takes the newest finished one, and the detector as it was trained
    (known classes alone) where there is none; so does "trained", whatever there is.
    head: which novel head, where the discovery has several.
    device: auto, cpu, cuda, cuda:1, mps; None takes the run's setting.
    raw: clusters as they are, whatever people have decided.
    settings: those to change, e.g. {"predict.max_detections": 100}.
    """
    folder = RunFolder(Path(run))
    discovery = folder.choose_discovery(discovery)
    base = folder.settings() if discovery is None else folder.discovery(discovery).settings()
    resolved = resolve_settings(base=base, overrides=as_overrides(settings))
    if device is not None:
        resolved = change(resolved, device=device)
    split = folder.split()
    detector = load_detector(folder, resolved, split, discovery=discovery)
    detector.to(choose_device(resolved.device)).eval()
    if discovery is None:
        if head:
            raise UserError(f"{run}: head {head} was asked for, but there is no discovery.")
        return Predictor(detector, trained_classifier(detector, split.known), resolved)
    heads = load_heads(folder, detector, discovery)
    if not 0 <= head < len(heads.num_clusters):
        raise UserError(
            f"{run}: head {head} was asked for, but discovery {discovery!r} has "
            f"{len(heads.num_clusters)}, counted from 0."
        )
    classifier = discovery_classifier(
        detector, heads, split.known, head=head, predict=resolved.predict
    )
    if not raw:
        classifier = classifier.decided(folder.discovery(discovery).decisions(head))
    return Predictor(detector, classifier, resolved, discovery)


def _finished(regions: Regions, classifier: Classifier) -> Regions:
    """The regions on the CPU, in float32, each with its name and the clusters behind it."""
    assert regions.labels is not None
    assert regions.scores is not None

    def on_cpu(values: torch.Tensor | None) -> torch.Tensor | None:
        return None if values is None else values.float().cpu()

    labels = regions.labels.cpu()
    return replace(
        regions,
        boxes_xyxy=regions.boxes_xyxy.float().cpu(),
        scores=on_cpu(regions.scores),
        labels=labels,
        objectness=on_cpu(regions.objectness),
        features=on_cpu(regions.features),
        within_cut=None,
        names=[classifier.names[label] for label in labels.tolist()],
        clusters=[classifier.clusters[label] for label in labels.tolist()],
    )
