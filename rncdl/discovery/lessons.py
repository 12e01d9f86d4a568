"""What the teacher tells the heads: a label for every region of the bank that it is sure of."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn import functional
from torchvision.ops import box_iou

from rncdl.config import Settings
from rncdl.data.viewed_images import Pool
from rncdl.discovery.bank import Bank
from rncdl.discovery.joining import FINER, join_clusters, most_agreed
from rncdl.discovery.loss import UNTAUGHT
from rncdl.discovery.semi_supervised import PartlyLabelled, semi_supervised_kmeans
from rncdl.discovery.teacher_space import known_class_space
from rncdl.errors import UserError

SAME_IOU = 0.5
"""From here on a region shows the object that it overlaps."""
APART_IOU = 0.3
"""Below it shows something else: no object, where it is apart from all."""
STARTS = 10
"""Of the grouping; the one that agrees best with the others is taken."""
_ROUNDS = 30


@dataclass(frozen=True)
class SeenObjects:
    """What the teacher has seen of the pool."""

    image_index: np.ndarray
    """(O,) ascending"""
    boxes_xyxy: Tensor
    """(O, 4) pixels of the images on disk"""
    certainty: Tensor
    """(O,) how surely it is an object, by the detector that has found it"""
    features: Tensor
    """(O, D) of length one, in the space of the known classes"""
    labelled: Tensor
    """(L, D) annotated objects in that space"""
    labels: Tensor
    """(L,) their known classes"""

    def rows_of(self, image: int) -> slice:
        """Where the objects of an image are."""
        start, stop = np.searchsorted(self.image_index, [image, image + 1]).tolist()
        return slice(start, stop)

    def only(self, wanted: np.ndarray) -> "SeenObjects":
        """Those of a mask (O,), with all annotated ones."""
        rows = torch.from_numpy(wanted)
        return replace(
            self,
            image_index=self.image_index[wanted],
            boxes_xyxy=self.boxes_xyxy[rows],
            certainty=self.certainty[rows],
            features=self.features[rows],
        )


def read_objects(bank: Bank) -> SeenObjects:
    """All of an object bank, in the space of the known classes."""
    features, boxes, certainty, images = [], [], [], []
    for index, count in enumerate(bank.counts().tolist()):
        if count > 0:
            features.append(bank.read(index, 0, count=count))
            boxes.append(bank.read_boxes(index, count=count))
            certainty.append(bank.read_objectness(index, count=count))
            images += [index] * count
    if not images:
        raise UserError(f"{bank.folder}: the teacher has seen no object.")
    matched = [
        bank.read_matched(index, 0, count=count)
        for index, count in enumerate(bank.matched_counts().tolist())
        if count
    ]
    nothing = torch.zeros(0, bank.shape.num_features)
    labels = torch.cat([torch.zeros(0, dtype=torch.int64), *(own for _, own in matched)])
    found, labelled = known_class_space(
        functional.normalize(torch.cat(features).float()),
        functional.normalize(torch.cat([nothing, *(own.float() for own, _ in matched)])),
        labels,
    )
    return SeenObjects(
        image_index=np.array(images),
        boxes_xyxy=torch.cat(boxes),
        certainty=torch.cat(certainty),
        features=found,
        labelled=labelled,
        labels=labels,
    )


def label_objects(
    objects: SeenObjects, pool: Pool, *, num_clusters: int, settings: Settings, seed: int
) -> np.ndarray:
    """(O,) what each object is: a known class in 0..K-1 or a cluster from K on.

    Annotated objects are what they are annotated as; other objects of labelled images are of no
    known class, or of one that an earlier round has found, whose labels leave most objects out; the
    rest is anything. What is not surely an object stays `UNTAUGHT`.
    """
    num_known = pool.labels.split.num_known
    annotated = _annotated(objects, pool)
    grouped = open_objects(objects, pool, settings)
    features = objects.features[torch.from_numpy(grouped)]
    if len(features) < num_clusters:
        raise UserError(
            f"{num_clusters} clusters cannot be made of {len(features)} objects: ask for fewer "
            "(discover.heads), a smaller teacher.gate, or give more unlabelled images."
        )
    # Federated annotations leave known objects out.
    is_complete = not pool.labels.annotations.is_federated
    surely_new = (objects.image_index < pool.num_labelled) & is_complete
    given = PartlyLabelled(
        features,
        objects.labelled,
        objects.labels,
        num_known,
        surely_new=torch.from_numpy(surely_new[grouped]),
        incomplete=pool.labels.split.found,
    )
    groupings = group_objects(
        given, num_clusters=num_clusters, per_known=settings.teacher.known_prototypes, seed=seed
    )
    labels = np.where(annotated >= 0, annotated, UNTAUGHT)
    labels[grouped] = groupings[most_agreed(groupings)]
    return labels


def group_objects(
    given: PartlyLabelled, *, num_clusters: int, per_known: int, seed: int, starts: int = STARTS
) -> list[np.ndarray]:
    """(R,) known classes and clusters of the features without labels, from each of several starts.

    Small clusters first, which are then joined.
    """
    generator = Generator().manual_seed(seed)
    found = []
    for _ in range(starts):
        fine = semi_supervised_kmeans(
            given,
            num_clusters=min(FINER * num_clusters, len(given.features)),
            per_known=per_known,
            rounds=_ROUNDS,
            generator=generator,
        ).found
        joined = join_clusters(
            given.features,
            fine,
            num_known=given.num_known,
            num_clusters=num_clusters,
        )
        found.append(joined.cpu().numpy())
    return found


def open_objects(objects: SeenObjects, pool: Pool, settings: Settings) -> np.ndarray:
    """(O,) bool: those that are as surely objects as annotated ones, and that nobody annotated."""
    is_annotated = _annotated(objects, pool) >= 0
    surely = objects.certainty[torch.from_numpy(is_annotated)]
    least = surely.quantile(settings.teacher.gate) if len(surely) else 0.0
    return (objects.certainty >= least).numpy() & ~is_annotated


def sure_objects(objects: SeenObjects, pool: Pool, settings: Settings) -> np.ndarray:
    """(O,) bool: the open ones, and those that lie on annotations."""
    return open_objects(objects, pool, settings) | (_annotated(objects, pool) >= 0)


def _annotated(objects: SeenObjects, pool: Pool) -> np.ndarray:
    """(O,) the known class of the annotation that an object lies on; -1: on none."""
    found = np.full(len(objects.image_index), -1)
    for index in range(pool.num_labelled):
        rows = objects.rows_of(index)
        boxes, labels = pool.annotations_of(index)
        if len(boxes) and rows.stop > rows.start:
            overlap, nearest = box_iou(objects.boxes_xyxy[rows], boxes).max(1)
            found[rows] = torch.where(overlap >= SAME_IOU, labels[nearest], -1).numpy()
    return found


def label_regions(
    bank: Bank, pool: Pool, objects: SeenObjects, labels: np.ndarray, *, nothing: int
) -> np.ndarray:
    """(P, R) labels of the bank's regions, by the objects and annotations that they overlap.

    `labels` (O,) of the objects; `nothing`: of what is apart from all; `UNTAUGHT` in between.
    """
    made = np.full((bank.shape.num_images, bank.shape.regions_per_image), UNTAUGHT)
    for index, count in enumerate(bank.counts().tolist()):
        if count > 0:
            rows = objects.rows_of(index)
            annotated, known = pool.annotations_of(index)
            boxes = torch.cat([annotated, objects.boxes_xyxy[rows]])
            of_boxes = np.concatenate([known.numpy(), labels[rows]])
            regions = bank.read_boxes(index, count=count)
            made[index, :count] = _label(regions, boxes, of_boxes, nothing=nothing)
    return made


def _label(regions: Tensor, boxes: Tensor, labels: np.ndarray, *, nothing: int) -> np.ndarray:
    if not len(boxes):
        return np.full(len(regions), nothing)
    best = box_iou(regions, boxes).max(1)
    overlap, found = best.values.numpy(), labels[best.indices.numpy()]
    found = np.where(overlap >= SAME_IOU, found, UNTAUGHT)
    return np.where(overlap < APART_IOU, nothing, found)
