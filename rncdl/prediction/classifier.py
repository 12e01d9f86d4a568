"""How the regions of an image become scores of named outputs: the one way to classify."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from rncdl.classes import cluster_name
from rncdl.config import PredictSettings
from rncdl.detector.locating import likelihood
from rncdl.detector.model import Detector, ImageBatch
from rncdl.discovery.heads import DiscoveryHeads, in_full_precision
from rncdl.errors import UserError
from rncdl.naming.decisions import Decisions
from rncdl.prediction.named_classes import JoinClusters, NamedClasses, name_classes


class LooksAtPixels(ABC):
    """A network that looks at the images themselves and not at the detector's features."""

    @abstractmethod
    def classify_boxes(self, batch: ImageBatch, boxes: Sequence[Tensor]) -> Tensor:
        """(R, C) probabilities of all images' boxes in their order.

        `boxes`: one (r, 4) per image, in pixels of the network's input; some may have no area.
        """


@dataclass(frozen=True, eq=False)
class Classifier:
    """What the regions of an image are: scores of K known classes, then of the others.

    C classes in all. The others are N clusters, or, where people have named, merged or ignored
    some, the classes that these make up.
    """

    outputs: nn.Module
    """features (R, F) -> probabilities (R, K + N) without a background; or a `LooksAtPixels`"""
    names: tuple[str, ...]
    """of all C classes"""
    num_known: int
    """K"""
    known: nn.Module | None = None
    """features -> (R, K): classifies the known classes in place of `outputs`"""
    foreground: nn.Module | None = None
    """features -> (R,) how likely a region is an object, which `outputs` are multiplied by"""
    by_objectness: bool = False
    """whether scores are multiplied by the RPN's probability that the region is an object"""
    by_localisation: bool = False
    """whether they are multiplied by the geometric mean of that and of how well the region fits"""
    wanted: Tensor | None = None
    """(C,) bool: only these classes are detected; None: all"""
    named: NamedClasses | None = None
    """which clusters the classes are made of, as people decided; None: each is its own"""
    joining: JoinClusters | None = None
    """makes the classes' probabilities, where people have decided"""

    @property
    def num_novel(self) -> int:
        """C - K."""
        return len(self.names) - self.num_known

    @property
    def clusters(self) -> tuple[tuple[int, ...], ...]:
        """(C,) the clusters that each class is made of: none for a known one as it was trained."""
        if self.named is not None:
            return self.named.clusters
        return (*[()] * self.num_known, *((cluster,) for cluster in range(self.num_novel)))

    @property
    def source(self) -> tuple[int, ...]:
        """Equal for classifiers that give the same probabilities."""
        return id(self.outputs), id(self.known), id(self.foreground), id(self.joining)

    def probabilities(
        self, features: Tensor, *, batch: ImageBatch, boxes: Sequence[Tensor]
    ) -> Tensor:
        """(R, C) of regions, by their features (R, F) or by their place in the images."""
        if isinstance(self.outputs, LooksAtPixels):
            return self._weigh(self.outputs.classify_boxes(batch, boxes), features)
        return self.probabilities_of(features)

    def probabilities_of(self, features: Tensor) -> Tensor:
        """(R, C) of regions by their features (R, F) alone."""
        return self._weigh(self.outputs(features), features)

    def _weigh(self, found: Tensor, features: Tensor) -> Tensor:
        if self.foreground is not None:
            found = found * self.foreground(features)[:, None]
        known, novel = found[:, : self.num_known], found[:, self.num_known :]
        if self.known is not None:
            known = self.known(features)
        if self.joining is not None:
            return self.joining(known, novel, together=self.known is None)
        return found if self.known is None else torch.cat([known, novel], 1)

    def scores(
        self, probabilities: Tensor, objectness: Tensor, localisation: Tensor | None = None
    ) -> Tensor:
        """(R, C) what detections are ranked by.

        `objectness` (R,) logits of the RPN; `localisation` (R,) predicted IoU, if it was learned.
        """
        if self.by_localisation:
            assert localisation is not None, "discovery_classifier requires that it was learned"
            return probabilities * likelihood(objectness, localisation)[:, None]
        if self.by_objectness:
            return probabilities * likelihood(objectness, None)[:, None]
        return probabilities

    def limited_to(self, wanted: Tensor) -> "Classifier":
        """The same, but only the wanted classes (C,) are detected."""
        return replace(self, wanted=wanted.to(_device_of(self.outputs)))

    def renamed(self, names: Sequence[str]) -> "Classifier":
        """The same with other names."""
        if len(names) != len(self.names):
            raise ValueError(f"{len(names)} names for {len(self.names)} outputs")
        return replace(self, names=tuple(names))

    def decided(self, decisions: Decisions | None) -> "Classifier":
        """The same with clusters named, merged and ignored as people decided; None: as it is."""
        if decisions is None or not (decisions.names or decisions.ignored):
            return self
        known = self.names[: self.num_known]
        named = name_classes(known, self.num_novel, decisions)
        joining = JoinClusters(named).to(_device_of(self.outputs)).eval()
        return replace(self, names=named.names, named=named, joining=joining)


def trained_classifier(detector: Detector, known: Sequence[str]) -> Classifier:
    """The detector as it was trained: K probabilities, what is left to one is the background's."""
    return Classifier(_AsTrained(detector.known_head).eval(), tuple(known), len(known))


def discovery_classifier(
    detector: Detector,
    heads: DiscoveryHeads,
    known: Sequence[str],
    *,
    head: int = 0,
    predict: PredictSettings,
) -> Classifier:
    """K known classes and the clusters of one novel head, weighed as the settings say."""
    heads.to(detector.device).eval()
    _require_localisation(detector, predict)
    return Classifier(
        outputs=_ByHead(heads, head),
        names=output_names(known, heads.num_clusters[head]),
        num_known=len(known),
        known=_AsTrained(detector.known_head) if predict.known == "trained" else None,
        foreground=_Foreground(heads) if predict.score == "foreground" else None,
        by_objectness=predict.score == "objectness",
        by_localisation=predict.score == "localisation",
    )


def known_only_classifier(
    detector: Detector, heads: DiscoveryHeads, known: Sequence[str], *, predict: PredictSettings
) -> Classifier:
    """The known classes alone after discovery: their probabilities sum to one."""
    heads.to(detector.device).eval()
    _require_localisation(detector, predict)
    trained = _AsTrained(detector.known_head) if predict.known == "trained" else None
    return Classifier(
        outputs=_KnownOnly(heads, trained),
        names=tuple(known),
        num_known=len(known),
        foreground=_Foreground(heads) if predict.score == "foreground" else None,
        by_objectness=predict.score == "objectness",
        by_localisation=predict.score == "localisation",
    )


def baseline_classifier(
    detector: Detector,
    outputs: nn.Module,
    known: Sequence[str],
    *,
    num_clusters: int,
    score: str,
) -> Classifier:
    """What a baseline has trained, on the detector's device, weighed by `predict.score`.

    A foreground row is none of its outputs: with that score it is not weighed.
    """
    outputs.to(detector.device).eval()
    return Classifier(
        outputs,
        output_names(known, num_clusters),
        len(known),
        by_objectness=score == "objectness",
        by_localisation=score == "localisation",
    )


def _require_localisation(detector: Detector, predict: PredictSettings) -> None:
    if predict.score == "localisation" and detector.localiser is None:
        raise UserError(
            "predict.score=localisation needs a detector that has learned how well regions fit: "
            "train one with detector.localisation=true, or take predict.score=objectness."
        )


def for_drawings(classifier: Classifier) -> Classifier:
    """The same, weighed by all that tells objects from the rest, where it comes from discovery.

    Nothing is added where the heads know the background themselves or regions are weighed by their
    fit: a detector that has learned from objects nobody labelled takes them for its background.
    """
    if not isinstance(classifier.outputs, _ByHead):
        return classifier
    if classifier.outputs.heads.has_background or classifier.by_localisation:
        return classifier
    foreground = classifier.foreground or _Foreground(classifier.outputs.heads)
    return replace(classifier, foreground=foreground, by_objectness=True)


def output_names(known: Sequence[str], num_clusters: int) -> tuple[str, ...]:
    """The names of K known classes, then of N clusters (novel_0000, ...)."""
    return (*known, *(cluster_name(cluster) for cluster in range(num_clusters)))


class _AsTrained(nn.Module):
    """(R, K) probabilities of the known classes by the classifier of the supervised phase."""

    def __init__(self, known_head: nn.Linear) -> None:
        super().__init__()
        self.known_head = known_head

    def forward(self, features: Tensor) -> Tensor:
        with in_full_precision(features):
            return self.known_head(features.float()).softmax(1)[:, :-1]


class _ByHead(nn.Module):
    """(R, K + N) probabilities by one of a discovery's novel heads."""

    def __init__(self, heads: DiscoveryHeads, head: int) -> None:
        super().__init__()
        self.heads = heads
        self.head = head

    def forward(self, features: Tensor) -> Tensor:
        return self.heads.probabilities(features.float(), self.head)


class _KnownOnly(nn.Module):
    """(R, K) probabilities that sum to one, by the heads or as trained."""

    def __init__(self, heads: DiscoveryHeads, trained: _AsTrained | None) -> None:
        super().__init__()
        self.heads = heads
        self.trained = trained

    def forward(self, features: Tensor) -> Tensor:
        if self.trained is not None:
            return functional.normalize(self.trained(features), p=1)
        return self.heads.known(features.float()).softmax(1)


class _Foreground(nn.Module):
    """(R,) how likely a region is an object, by the known head's background row."""

    def __init__(self, heads: DiscoveryHeads) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, features: Tensor) -> Tensor:
        return self.heads.foreground(features.float())


def _device_of(module: nn.Module) -> torch.device:
    tensors = (*module.parameters(), *module.buffers())
    return tensors[0].device if tensors else torch.device("cpu")
