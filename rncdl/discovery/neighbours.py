"""Neighbours: objects of other images that look alike to the teacher, as second views of regions.

What is most alike in a good network's eyes is most often of one class, also across images. Seen as
two views of one thing, such regions teach the heads what no distortion of a single image can.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import box_iou

from rncdl.config import Settings
from rncdl.data.viewed_images import Pool
from rncdl.discovery.bank import Bank
from rncdl.discovery.lessons import SAME_IOU, SeenObjects, read_objects, sure_objects

NONE = -1
"""The object that a region shows where it shows none, and a neighbour where there are too few."""
_BLOCK_ELEMENTS = 1 << 25
"""Of one block of the objects x objects similarities: 128 MB of float32."""


class StandIns(NamedTuple):
    """Regions that stand for those of an image in the second view."""

    rows: np.ndarray
    """(n,) the image's regions that others stand for, ascending"""
    images: np.ndarray
    """(n,) where the others are"""
    regions: np.ndarray
    """(n,) which of that image's regions they are"""


@dataclass(frozen=True)
class Neighbours:
    """Which of the bank's regions may stand for which others."""

    shown: np.ndarray
    """(P, R) the object that a region shows, or `NONE`"""
    alike: np.ndarray
    """(O, n) the objects of other images that look most alike, the nearest first, then `NONE`"""
    regions: np.ndarray
    """(S, 2) image and number of every region that shows an object, object by object"""
    starts: np.ndarray
    """(O + 1,) the first row of each object in `regions`, then their number"""

    @classmethod
    def of(cls, shown: np.ndarray, alike: np.ndarray) -> "Neighbours":
        """From what regions show (P, R) and which objects are alike (O, n)."""
        by_object = np.argsort(shown, axis=None, kind="stable")
        starts = np.searchsorted(shown.ravel()[by_object], np.arange(len(alike) + 1))
        showing = by_object[starts[0] :]
        regions = np.stack(np.unravel_index(showing, shown.shape), axis=1).astype(np.int32)
        return cls(shown, alike, regions, starts - starts[0])

    def line(self) -> str:
        """What to say of them."""
        return (
            f"{len(self.regions):,} regions show one of {len(self.alike):,} objects: in the second "
            f"view a region of one of the {self.alike.shape[1]} that look most alike stands for it."
        )

    def draw(self, image: int, *, count: int, generator: np.random.Generator) -> StandIns:
        """One region of one neighbour for each of the image's first `count` regions that has any.

        First a neighbour is drawn, then a region that shows it: where none does, the image's own
        region is kept.
        """
        objects = self.shown[image, :count]
        rows = np.flatnonzero(objects != NONE)
        alike = self.alike[objects[rows]]
        num_alike = (alike != NONE).sum(1)
        rows, alike, num_alike = (of[num_alike > 0] for of in (rows, alike, num_alike))
        drawn = alike[np.arange(len(rows)), generator.integers(num_alike)]
        num_regions = self.starts[drawn + 1] - self.starts[drawn]
        rows, drawn, num_regions = (of[num_regions > 0] for of in (rows, drawn, num_regions))
        images, regions = self.regions[self.starts[drawn] + generator.integers(num_regions)].T
        return StandIns(rows, images, regions)


def find_neighbours(
    bank: Bank, object_bank: Bank, pool: Pool, *, settings: Settings, device: torch.device
) -> Neighbours:
    """For each region of the bank that shows an object those that may stand for it.

    Objects are what passes the teacher's gate, and what lies on annotations. The bank may hold more
    regions of an image than the settings ask for: the best are taken.
    """
    seen = read_objects(object_bank)
    objects = seen.only(sure_objects(seen, pool, settings))
    return Neighbours.of(
        shown_objects(bank, objects, regions_per_image=settings.discover.regions_per_image),
        most_alike(
            objects.features.to(device), objects.image_index, count=settings.discover.neighbours
        ),
    )


def shown_objects(bank: Bank, objects: SeenObjects, *, regions_per_image: int) -> np.ndarray:
    """(P, R) which object each region of the bank shows: the one that it overlaps most."""
    shown = np.full((bank.shape.num_images, bank.shape.regions_per_image), NONE, dtype=np.int32)
    for index, count in enumerate(np.minimum(bank.counts(), regions_per_image).tolist()):
        rows = objects.rows_of(index)
        if count > 0 and rows.stop > rows.start:
            regions = bank.read_boxes(index, count=count)
            overlap, nearest = box_iou(regions, objects.boxes_xyxy[rows]).max(1)
            found = torch.where(overlap >= SAME_IOU, rows.start + nearest, NONE)
            shown[index, :count] = found.numpy()
    return shown


def most_alike(features: Tensor, image_index: np.ndarray, *, count: int) -> np.ndarray:
    """(O, n) the `count` objects of other images with the largest cosines, the largest first.

    `features` (O, D) of length one; `image_index` (O,) ascending. There are fewer than `count`
    columns where there are fewer objects, and `NONE` where fewer of other images.
    """
    count = min(count, len(features))
    images = torch.from_numpy(image_index).to(features.device)
    found = [np.zeros((0, count), dtype=np.int32)]
    block = max(1, _BLOCK_ELEMENTS // max(1, len(features)))
    for start in range(0, len(features), block):
        similarities = features[start : start + block] @ features.T
        # The images are in order: objects of the same ones are in a narrow band of columns.
        own = image_index[start : start + block]
        left, right = np.searchsorted(image_index, [own[0], own[-1] + 1]).tolist()
        is_own = images[start : start + block, None] == images[left:right]
        similarities[:, left:right].masked_fill_(is_own, -torch.inf)
        best = similarities.topk(count)
        nearest = torch.where(best.values > -torch.inf, best.indices, NONE)
        found.append(nearest.int().cpu().numpy())
    return np.concatenate(found)
