"""Where clusters lie on a map of them all: alike ones near each other."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torchvision.ops import box_iou

from rncdl.discovery.bank import Bank

_SAME_OBJECT_IOU = 0.5
"""A region is of an object that the teacher has seen where they overlap by at least this."""


def lay_out(looks: Tensor) -> Tensor:
    """(N, 2) in [0, 1]: directions of looks (N, D) on the two axes along which they differ most.

    These are their principal components. An axis along which nothing differs is 0.5 everywhere.
    """
    directions = functional.normalize(looks.double())
    centred = directions - directions.mean(0)
    axes = torch.linalg.eigh(centred.T @ centred).eigenvectors[:, -2:].flip(1)
    # An axis has no direction of its own: let its largest part be positive.
    largest = axes.abs().argmax(0)
    along = centred @ (axes * axes[largest, torch.arange(axes.shape[1])].sign())
    low, high = along.min(0).values, along.max(0).values
    extent = high - low
    flat = extent <= 1e-9
    return torch.where(flat, 0.5, (along - low) / extent.masked_fill(flat, 1.0))


def looks_to_teacher(
    objects: Bank, members: np.ndarray, prototypes: Tensor, *, num_known: int
) -> Tensor | None:
    """(N, D) the mean of what a teacher has seen of each cluster's regions; None: of none at all.

    objects: its bank, of the same images as the members. A cluster of which it has seen nothing
    looks like the one with the most similar of the prototypes (N, P) of which it has.
    """
    output = members["output"]
    of_clusters = members[(output >= num_known) & (output < num_known + len(prototypes))]
    of_clusters = of_clusters[np.argsort(of_clusters["image"], kind="stable")]
    sums = torch.zeros(len(prototypes), objects.shape.num_features, dtype=torch.float64)
    counts = objects.counts()
    for image in np.unique(of_clusters["image"]).tolist():
        count = int(counts[image])
        if count <= 0:
            continue
        start, stop = np.searchsorted(of_clusters["image"], [image, image + 1])
        regions = of_clusters[start:stop]
        boxes = torch.from_numpy(regions["box_xyxy"].copy())
        overlap, best = box_iou(objects.read_boxes(image, count=count).float(), boxes).max(1)
        is_same = overlap >= _SAME_OBJECT_IOU
        clusters = torch.from_numpy(regions["output"].astype(np.int64))[best[is_same]] - num_known
        seen = functional.normalize(objects.read(image, 0, count=count)[is_same].double())
        sums.index_add_(0, clusters, seen)
    is_seen = sums.abs().sum(1) > 0
    if not is_seen.any():
        return None
    directions = functional.normalize(prototypes.double())
    likeness = (directions @ directions.T).masked_fill(~is_seen, -torch.inf)
    likeness.fill_diagonal_(torch.inf).masked_fill_(~is_seen, -torch.inf)
    return functional.normalize(sums[likeness.argmax(1)])
