"""Which of the regions found in an image become labels, by what people decided."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torchvision.ops import box_iou

from rncdl.classes import is_cluster_name
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
    """(C,) of all classes"""
    num_known: int
    by_people: frozenset[int]
    """classes that hold a cluster with a name that somebody gave"""

    def name_of(self, label: int) -> str | None:
        """The class's name; None where it is a cluster that nobody has named."""
        return self.names[label] if label < self.num_known or label in self.by_people else None


@dataclass(frozen=True)
class NewLabel:
    """An object that becomes an annotation."""

    name: str
    box_xyxy: tuple[float, float, float, float]
    score: float
    origin: Origin
    """`placed`: somebody has put this very region into its class"""
    is_promoted: bool
    """by people's names; False: a known class, found as it ever was"""
    rle: dict[str, Any] | None = None


@dataclass(frozen=True)
class Surroundings:
    """What is known of an image besides what is found in it."""

    is_labelled: bool
    annotated_xyxy: np.ndarray
    """(n, 4) boxes that are labelled already"""
    placed: Sequence[PlacedRegion] = ()


def accepted_classes(classifier: Classifier, decisions: Decisions) -> Accepted:
    """Known classes, and those that people have named; a number is no name."""
    by_people = [
        label
        for label, clusters in enumerate(classifier.clusters)
        if any(given_name(decisions, cluster) is not None for cluster in clusters)
    ]
    return Accepted(classifier.names, classifier.num_known, frozenset(by_people))


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
    """The objects of one image that become annotations, an object once.

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
        is_promoted = labels[row] in accepted.by_people
        is_known = labels[row] < accepted.num_known
        unwanted = only_placed and is_promoted and not is_known
        if name is None or not is_free[row] or unwanted or (is_known and around.is_labelled):
            continue
        chosen.append(label_at(row, name, "detected", is_promoted=is_promoted and not only_placed))
    return chosen


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
