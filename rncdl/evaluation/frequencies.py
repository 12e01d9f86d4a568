"""Rare, common and frequent classes, by the images of the training labels that show them."""

from typing import Literal

import numpy as np

from rncdl.data.records import AnnotationSet

Frequency = Literal["r", "c", "f"]

MAX_RARE_IMAGES = 10
MAX_COMMON_IMAGES = 100
"""LVIS's bounds (Gupta et al., CVPR 2019): rare 1-10 images, common 11-100, frequent more."""


def frequencies_from_training(
    training: AnnotationSet, evaluated: AnnotationSet
) -> dict[int, Frequency]:
    """Category id of the evaluated file -> its frequency in training, matched by class name.

    Classes without an annotation in training are left out.
    """
    num_images = _images_by_category(training)
    by_name = {category.name: num_images.get(category.id, 0) for category in training.categories}
    return {
        category.id: _frequency(by_name[category.name])
        for category in evaluated.categories
        if by_name.get(category.name, 0) > 0
    }


def _images_by_category(annotations: AnnotationSet) -> dict[int, int]:
    shown = np.unique(np.stack([annotations.category_ids, annotations.image_index]), axis=1)
    ids, counts = np.unique(shown[0], return_counts=True)
    return dict(zip(ids.tolist(), counts.tolist(), strict=True))


def _frequency(num_images: int) -> Frequency:
    if num_images <= MAX_RARE_IMAGES:
        return "r"
    return "c" if num_images <= MAX_COMMON_IMAGES else "f"
