"""The best that a clustering could do with the regions and scores it has been given."""

from dataclasses import replace

import numpy as np
import torch
from torchvision.ops import batched_nms

from rncdl.data.records import AnnotationSet
from rncdl.evaluation.matching import box_pairs
from rncdl.prediction.detections import Detections


def name_perfectly(
    found: Detections,
    truth: AnnotationSet,
    *,
    category_ids: np.ndarray,
    is_cluster: np.ndarray,
    nms: float,
) -> Detections:
    """The detections of outputs, as if no cluster had ever held two classes.

    `category_ids` (C,): what each output stands for, -1 for nothing; `is_cluster` (C,) bool. A
    detection of a cluster takes the class of the novel object that it overlaps most, from IoU 0.5
    on; one that overlaps none stays in its cluster. Scores stay, so the AP of this is what a
    better clustering alone can reach; detections that are now of one class pass through NMS.
    """
    is_novel = ~truth.is_crowd & ~np.isin(truth.category_ids, category_ids[~is_cluster])
    objects = _most_overlapped(found, truth, np.flatnonzero(is_novel))
    named = np.where(
        is_cluster[found.category_ids] & (objects >= 0),
        truth.category_ids[objects] if len(truth.category_ids) else -1,
        category_ids[found.category_ids],
    )
    renamed = replace(found, category_ids=named)
    return _suppress(renamed.select(named >= 0), nms)


def _most_overlapped(found: Detections, truth: AnnotationSet, rows: np.ndarray) -> np.ndarray:
    """(D,) which of the annotations `rows` each detection overlaps most, -1 below IoU 0.5."""
    position = {image.id: index for index, image in enumerate(truth.images)}
    pairs = box_pairs(
        found.boxes_xyxy.astype(np.float64),
        truth.boxes_xyxy[rows],
        detection_groups=np.array([position[i] for i in found.image_ids.tolist()], dtype=np.int64),
        truth_groups=truth.image_index[rows],
        is_crowd=np.zeros(len(rows), dtype=bool),
    )
    objects = np.full(len(found), -1, dtype=np.int64)
    order = np.argsort(pairs.ious, kind="stable")  # the largest is written last
    objects[pairs.detection_rows[order]] = rows[pairs.truth_rows[order]]
    return objects


def _suppress(found: Detections, nms: float) -> Detections:
    """Without those that overlap a better one of their class and image by more than `nms`."""
    if not len(found):
        return found
    keys = np.stack([found.image_ids, found.category_ids], 1)
    groups = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
    kept = batched_nms(
        torch.from_numpy(found.boxes_xyxy).double(),
        torch.from_numpy(found.scores).double(),
        torch.from_numpy(groups),
        nms,
    )
    return found.select(kept.sort().values.numpy())
