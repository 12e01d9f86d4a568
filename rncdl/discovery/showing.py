"""How the teacher is shown objects: cut out, or with what lies around them.

Things on backgrounds that say nothing about them are told apart best alone; things in photographs,
with their surroundings. Which holds for given images the annotated known objects tell.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rncdl.data.viewed_images import Pool, ViewedImage, ViewedImages
from rncdl.discovery.object_views import ObjectFinder

MOST_OBJECTS = 400
"""Annotated objects that are looked at in each way."""


def sample_annotated(
    pool: Pool, dataset: ViewedImages, *, most: int = MOST_OBJECTS
) -> Iterator[ViewedImage]:
    """Labelled images from all over the pool that show `most` objects together, or all there are.

    The same ones each time.
    """
    counts = [len(pool.annotations_of(index)[1]) for index in range(pool.num_labelled)]
    num_objects = 0
    for index in np.random.default_rng(0).permutation(np.flatnonzero(counts)).tolist():
        if num_objects >= most:
            return
        image = dataset[(index, 0)]
        if isinstance(image, ViewedImage):
            num_objects += len(image.labels)
            yield image


def agreement_of_neighbours(features: Tensor, labels: Tensor, images: Tensor) -> float:
    """How often an object's nearest one in another image is of its class: the classes' mean.

    `features` (R, F), `labels` (R,), `images` (R,): which image each is in. 0 without any two in
    different images.
    """
    unit = functional.normalize(features.float())
    similarity = unit @ unit.T
    similarity[images[:, None] == images] = -torch.inf
    best = similarity.max(1)
    found = best.values > -torch.inf
    is_right = (labels[best.indices] == labels)[found].float()
    classes = labels[found]
    shares = [is_right[classes == one].mean() for one in classes.unique().tolist()]
    return float(torch.stack(shares).mean()) if shares else 0.0


def agreements(finders: Sequence[ObjectFinder], images: Iterable[ViewedImage]) -> list[float]:
    """How well each finder's way of showing objects lets the teacher tell known classes."""
    seen: list[list[Tensor]] = [[] for _ in finders]
    labels, places = [], []
    for number, image in enumerate(images):
        labels.append(image.labels)
        places.append(torch.full_like(image.labels, number))
        for finder, features in zip(finders, seen, strict=True):
            features.append(finder.look_at_annotated(image).cpu())
    if not labels:
        return [0.0] * len(finders)
    joined, of_image = torch.cat(labels), torch.cat(places)
    return [agreement_of_neighbours(torch.cat(one), joined, of_image) for one in seen]
