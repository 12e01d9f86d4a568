"""Which of the regions found in an image become labels, by what people decided."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torchvision.ops import box_iou

from rncdl.classes import cluster_name, found_name, is_cluster_name
from rncdl.gallery.drawings import choose_shown
from rncdl.naming.decisions import Decisions
from rncdl.prediction.classifier import Classifier
from rncdl.regions import Regions

SAME_OBJECT_IOU = 0.5
"""From this overlap on, two boxes are taken for those of one object."""

Origin = Literal["detected", "placed"]


@dataclass(frozen=True)
class PlacedRegion:
    """A region of the bank that somebody has moved."""

    box_xyxy: np.ndarray
    """(4,)"""
    name: str | None
    """the class it was moved to; None: to nowhere that is a class"""


@dataclass(frozen=True)
class Accepted:
    """The classes that may become labels, by their place among the classifier's."""

    names: tuple[str, ...]
    """(C,) of all classes, as they are called in the labels"""
    num_known: int
    promoted: frozenset[int]
    """classes that hold a cluster with a name that somebody gave, or that needs none"""

    def name_of(self, label: int) -> str | None:
        """The class's name; None where it is a cluster that becomes no class."""
        return self.names[label] if label < self.num_known or label in self.promoted else None


@dataclass(frozen=True)
class NewLabel:
    """An object that becomes an annotation."""

    name: str
    box_xyxy: tuple[float, float, float, float]
    score: float
    origin: Origin
    """`placed`: somebody has put this very region into its class"""
    is_promoted: bool
    """found by its cluster; False: a known class, found as it ever was"""
    rle: dict[str, Any] | None = None


@dataclass(frozen=True)
class Surroundings:
    """What is known of an image besides what is found in it."""

    is_labelled: bool
    annotated_xyxy: np.ndarray
    """(n, 4) boxes that are labelled already"""
    placed: Sequence[PlacedRegion] = ()


def accepted_classes(
    classifier: Classifier, decisions: Decisions, *, unnamed: bool = False
) -> Accepted:
    """Known classes, and those that people have named; a number is no name.

    unnamed: also the others that nobody has ignored.
    """
    known = classifier.names[: classifier.num_known]
    names, promoted = list(classifier.names), []
    for label, clusters in enumerate(classifier.clusters):
        given = (class_name(decisions, one, known=known, unnamed=unnamed) for one in clusters)
        name = next((one for one in given if one is not None), None)
        if name is not None:
            promoted.append(label)
            names[label] = name
    return Accepted(tuple(names), classifier.num_known, frozenset(promoted))


def class_name(
    decisions: Decisions, cluster: int, *, known: Collection[str], unnamed: bool
) -> str | None:
    """What a cluster is called as a class of the labels; None where it becomes none.

    unnamed: clusters without a name of somebody's have one of their own, unlike the `known` ones.
    """
    name = given_name(decisions, cluster)
    if name is not None or not unnamed or cluster < 0 or cluster in decisions.ignored:
        return name
    return found_name(decisions.names.get(cluster, cluster_name(cluster)), known)


def given_name(decisions: Decisions, cluster: int) -> str | None:
    """The name that people gave to a cluster; None for an ignored one, and for a number."""
    name = decisions.names.get(cluster)
    if name is None or cluster in decisions.ignored or is_cluster_name(name):
        return None
    return name


def choose_labels(
    found: Regions,
    accepted: Accepted,
    around: Surroundings,
    *,
    min_score: float,
    only_placed: bool = False,
) -> list[NewLabel]:
    """The objects of one image that may become annotations, an object once.

    A region that people have placed stands for the detection that overlaps it the most, and
    decides alone over all that overlap it. Where something is labelled already nothing is added;
    in labelled images no known class is, for these are taken to be complete. `only_placed`: of the
    named classes, only what people have placed.
    """
    assert found.labels is not None
    assert found.scores is not None
    boxes = found.boxes_xyxy.float().cpu().numpy()
    scores = found.scores.float().cpu().numpy()
    labels = found.labels.tolist()
    is_free = _overlaps_none(boxes, around.annotated_xyxy)

    def label_at(row: int, name: str, origin: Origin, *, is_promoted: bool) -> NewLabel:
        left, top, right, bottom = boxes[row].tolist()
        rle = None if found.rles is None else found.rles[row]
        box = (left, top, right, bottom)
        return NewLabel(name, box, float(scores[row]), origin, is_promoted, rle)

    chosen = []
    taken: list[int] = []
    for row, placed_in in _placed_rows(boxes, around.placed):
        if is_free[row] and _overlaps_none(boxes[[row]], boxes[taken])[0]:
            taken.append(row)
            chosen.append(label_at(row, placed_in, "placed", is_promoted=True))
    decided = np.array([one.box_xyxy for one in around.placed]).reshape(-1, 4)
    is_free &= _overlaps_none(boxes, np.concatenate([decided, boxes[taken]]))
    for row in choose_shown(boxes, scores, min_score=min_score).tolist():
        name = accepted.name_of(labels[row])
        is_promoted = labels[row] in accepted.promoted
        is_known = labels[row] < accepted.num_known
        unwanted = only_placed and is_promoted and not is_known
        if name is None or not is_free[row] or unwanted or (is_known and around.is_labelled):
            continue
        chosen.append(label_at(row, name, "detected", is_promoted=is_promoted and not only_placed))
    return chosen


def keep_best(
    labels_of_images: Sequence[tuple[int, Sequence[NewLabel]]],
    known: Collection[str],
    *,
    share: float,
) -> list[tuple[int, list[NewLabel]]]:
    """The labels without those that score less than the best `share` of their class, in [0, 1].

    Each class has a threshold of its own, and keeps what lies on it, one at least. What people
    have placed stays and is not counted; so do known classes, as they are found.
    """

    def is_measured(one: NewLabel) -> bool:
        return one.origin == "detected" and one.name not in known

    scores: dict[str, list[float]] = {}
    for _, labels in labels_of_images:
        for one in filter(is_measured, labels):
            scores.setdefault(one.name, []).append(one.score)
    least = {name: _lowest_of_best(of_class, share) for name, of_class in scores.items()}
    return [
        (index, [one for one in labels if not is_measured(one) or one.score >= least[one.name]])
        for index, labels in labels_of_images
    ]


def _lowest_of_best(scores: Sequence[float], share: float) -> float:
    # A product such as 0.07 * 100 is a little more than the number that is meant.
    count = math.ceil(share * len(scores) - 1e-9)
    return sorted(scores, reverse=True)[max(count, 1) - 1]


def keep_frequent(
    labels_of_images: Sequence[tuple[int, Sequence[NewLabel]]],
    known: Collection[str],
    *,
    min_per_class: int,
) -> tuple[dict[int, list[NewLabel]], dict[str, int]]:
    """Image -> its labels, of classes with enough of them; and the others with their counts.

    Known classes have old labels, so they are never too few. Images without any promoted label
    are left out.
    """
    counts: dict[str, int] = {}
    for _, labels in labels_of_images:
        for one in labels:
            counts[one.name] = counts.get(one.name, 0) + 1
    rare = {
        name: count for name, count in counts.items() if name not in known and count < min_per_class
    }
    kept = {
        index: [one for one in labels if one.name not in rare] for index, labels in labels_of_images
    }
    promoted = {
        index: labels for index, labels in kept.items() if any(one.is_promoted for one in labels)
    }
    return promoted, rare


def _placed_rows(boxes: np.ndarray, placed: Sequence[PlacedRegion]) -> list[tuple[int, str]]:
    """Of each region that was moved to a class, the row that overlaps it the most, and the class.

    Regions that nothing overlaps enough are left out.
    """
    found = []
    for one in placed:
        if one.name is None or not len(boxes):
            continue
        ious = _ious(boxes, one.box_xyxy[None])[:, 0]
        if ious.max() >= SAME_OBJECT_IOU:
            found.append((int(ious.argmax()), one.name))
    return found


def _overlaps_none(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(R,) whether a box shares less than `SAME_OBJECT_IOU` with each of the others."""
    return np.all(_ious(boxes, others) < SAME_OBJECT_IOU, axis=1)


def _ious(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(R, n) of boxes (R, 4) with others (n, 4)."""
    return box_iou(torch.from_numpy(boxes).float(), torch.from_numpy(others).float()).numpy()
