"""How the teacher is shown objects: cut out, or with what lies around them.

Things on backgrounds that say nothing about them are told apart best alone; things in photographs,
with their surroundings. Which holds for given images the annotated known objects tell: new classes
are sorted in a space made by the known ones, so half of these are told in the space of the others.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rncdl.data.viewed_images import Pool, ViewedImage, ViewedImages
from rncdl.discovery.object_views import ObjectFinder
from rncdl.discovery.teacher_space import principal_components, whitening

MOST_OBJECTS = 800
"""Annotated objects that are looked at in each way."""
_HALVINGS = 4
"""Of the known classes; each half is told in the space of the other."""


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


def separation(features: Tensor, labels: Tensor, images: Tensor) -> float:
    """How surely the more similar of two objects is of one's own class: the classes' mean.

    For each object, the share of pairs, one of its class and one of another, both in other images,
    in which the one of its class is more similar (the area under the curve); 0.5 says nothing, and
    where there are no such pairs. `features` (R, F), `labels` (R,), `images` (R,): which image.
    """
    unit = functional.normalize(features.float())
    similarity = unit @ unit.T
    shares, classes = [], []
    for row, label in enumerate(labels.tolist()):
        elsewhere = images != images[row]
        same = similarity[row, elsewhere & (labels == label)]
        other = similarity[row, elsewhere & (labels != label)]
        if len(same) and len(other):
            sorted_others = other.sort().values.contiguous()
            below = torch.searchsorted(sorted_others, same.contiguous()).float()
            not_above = torch.searchsorted(sorted_others, same.contiguous(), right=True).float()
            shares.append(((below + not_above) / 2 / len(other)).mean())
            classes.append(label)
    if not shares:
        return 0.5
    of_class = torch.tensor(classes)
    found = torch.stack(shares)
    return float(torch.stack([found[of_class == one].mean() for one in set(classes)]).mean())


def held_out_separation(features: Tensor, labels: Tensor, images: Tensor) -> float:
    """How well some known classes are told in the space of the others, see `separation`.

    With fewer than four classes, in a space that knows none.
    """
    components = principal_components(functional.normalize(features.float()))
    classes = labels.unique()
    if len(classes) < 4:
        return separation(components, labels, images)
    found = []
    for seed in range(_HALVINGS):
        order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(seed))
        in_half = torch.isin(labels, classes[order[: len(classes) // 2]])
        for others in (in_half, ~in_half):
            space = components @ whitening(components[others], labels[others])
            found.append(separation(space[~others], labels[~others], images[~others]))
    return sum(found) / len(found)


def separations(finders: Sequence[ObjectFinder], images: Iterable[ViewedImage]) -> list[float]:
    """How well each finder's way of showing objects lets the teacher tell known classes."""
    seen: list[list[Tensor]] = [[] for _ in finders]
    labels, places = [], []
    for number, image in enumerate(images):
        labels.append(image.labels)
        places.append(torch.full_like(image.labels, number))
        for finder, features in zip(finders, seen, strict=True):
            features.append(finder.look_at_annotated(image).cpu())
    if not labels:
        return [0.5] * len(finders)
    joined, of_image = torch.cat(labels), torch.cat(places)
    return [held_out_separation(torch.cat(one), joined, of_image) for one in seen]
