"""LVIS -> Visual Genome: all of LVIS's classes known, Visual Genome's others to be discovered."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rncdl.data.annotation_file import FileAnnotation, without_garbage_collection
from rncdl.data.public.counts import Count
from rncdl.data.public.formats import (
    NO_MASK,
    MadeFile,
    NamedClass,
    Place,
    find_file,
    named_classes,
    places_by_id,
    read_lvis_lists,
    read_lvis_whole,
)
from rncdl.data.public.synsets import names_by_synset
from rncdl.data.public.visual_genome import (
    GenomeImage,
    ObjectColumns,
    collect_objects,
    genome_places,
    read_genome_images,
    read_genome_objects,
)

MAX_RARE_IMAGES, MAX_COMMON_IMAGES = 10, 100
"""LVIS's bounds (Gupta et al., CVPR 2019), applied to the images of Visual Genome's training."""


@dataclass(frozen=True)
class LvisVg:
    """The setting's files."""

    labelled: MadeFile
    """LVIS's training file, all its classes"""
    unlabelled: MadeFile
    """Visual Genome's training images that are not LVIS's: images alone"""
    val: MadeFile
    """Visual Genome's boxes of the images in LVIS's validation, LVIS's names where it has them"""
    known: tuple[str, ...]
    """LVIS's classes in the order of their outputs"""
    num_genome_images: int
    num_shared_images: int
    """of Visual Genome's images, those that are in LVIS"""
    num_synsets: int
    problems: Mapping[str, int]
    """what was mended or left out of Visual Genome's objects, and how often"""

    def counts(self) -> list[Count]:
        """The setting in numbers, beside the appendix "LVIS + Visual Genome Setup"."""
        num_pool = len(self.labelled.images) + len(self.unlabelled.images)
        num_val = len(self.val.images)
        num_classes = len(self.val.categories)
        num_known = len({c.name for c in self.val.categories}.intersection(self.known))
        return [
            Count("labelled images (LVIS)", len(self.labelled.images), 100_000, 1000),
            Count("labelled classes", len(self.known), 1203),
            Count("Visual Genome images", self.num_genome_images, 108_000, 1000),
            Count("  also in LVIS", self.num_shared_images, 50_000, 10_000),
            Count("  training", self.num_genome_images - num_val, 100_000, 1000),
            Count("  validation", num_val, 8_000, 1000),
            Count("pool of discovery", num_pool, 158_000, 1000),
            Count("Visual Genome synsets", self.num_synsets, 7_000, 2000),
            Count("classes in validation", num_classes, 3367),
            Count("  known", num_known, 641),
            Count("  novel", num_classes - num_known, 2726),
        ]


@without_garbage_collection()
def make_lvis_vg(lvis_dir: Path, vg_dir: Path) -> LvisVg:
    """The setting from `lvis_v1_*.json` and Visual Genome's `image_data.json`, `objects.json`."""
    lvis_train_path = find_file(lvis_dir, "lvis_v1_train.json")
    lvis_val_path = find_file(lvis_dir, "lvis_v1_val.json")
    genome_path = find_file(vg_dir, "image_data.json")
    genome_objects_path = find_file(vg_dir, "objects.json")
    lvis_val_ids = {image.id for image in read_lvis_lists(lvis_val_path).images}
    genome = read_genome_images(genome_path)
    places = genome_places(genome, genome_path)
    val_ids = {image.image_id for image in genome if image.coco_id in lvis_val_ids}
    objects = collect_objects(
        read_genome_objects(genome_objects_path),
        {image.image_id: (image.height, image.width) for image in genome},
    )
    lvis_train = read_lvis_whole(lvis_train_path)
    train_places = places_by_id(lvis_train.images, lvis_train_path)
    return LvisVg(
        labelled=MadeFile(
            list(train_places.values()),
            lvis_train.annotations,
            named_classes(lvis_train.categories),
        ),
        unlabelled=MadeFile(
            [
                places[image.image_id]
                for image in genome
                if image.image_id not in val_ids and image.coco_id not in train_places
            ]
        ),
        val=make_genome_val(
            objects,
            [place for place in places.values() if place.id in val_ids],
            lvis_names=names_by_synset(lvis_train.categories),
        ),
        known=tuple(c.name for c in lvis_train.categories),
        num_genome_images=len(genome),
        num_shared_images=_count_shared(genome, lvis_val_ids.union(train_places)),
        num_synsets=len(objects.synsets),
        problems=objects.problems,
    )


def make_genome_val(
    objects: ObjectColumns, images: Iterable[Place], *, lvis_names: Mapping[str, str]
) -> MadeFile:
    """The objects of the `images` whose synset occurs both there and in all other images.

    A class is named as LVIS names its synset, else by the synset. Boxes only, no masks. The
    annotations are not exhaustive, so both of LVIS's lists are there and empty: a class is
    judged in the images that have it and in no others.
    """
    places = [Place(i.id, i.file_name, i.height, i.width, [], []) for i in images]
    in_val = np.isin(objects.image_ids, [place.id for place in places])
    train_images = _images_by_synset(objects, ~in_val)
    kept = (train_images > 0) & (_images_by_synset(objects, in_val) > 0)
    kept_index = np.flatnonzero(kept)
    category_ids = np.zeros(len(objects.synsets), dtype=np.int64)
    category_ids[kept_index] = np.arange(1, len(kept_index) + 1)
    rows = np.flatnonzero(in_val & kept[objects.synset_index])
    return MadeFile(
        places,
        _box_annotations(objects, rows, category_ids),
        [
            NamedClass(
                int(category_ids[index]),
                lvis_names.get(objects.synsets[index], objects.synsets[index]),
                synset=objects.synsets[index],
                frequency=_frequency(int(train_images[index])),
            )
            for index in kept_index.tolist()
        ],
    )


def _box_annotations(
    objects: ObjectColumns, rows: np.ndarray, category_ids: np.ndarray
) -> list[FileAnnotation]:
    return [
        FileAnnotation(
            id=number,
            image_id=image_id,
            category_id=category_id,
            bbox=(left, top, right - left, bottom - top),
            area=(right - left) * (bottom - top),
            segmentation=NO_MASK,
        )
        for number, (image_id, category_id, (left, top, right, bottom)) in enumerate(
            zip(
                objects.image_ids[rows].tolist(),
                category_ids[objects.synset_index[rows]].tolist(),
                objects.boxes_xyxy[rows].tolist(),
                strict=True,
            ),
            start=1,
        )
    ]


def _images_by_synset(objects: ObjectColumns, rows: np.ndarray) -> np.ndarray:
    """(S,) int64, how many images among the rows show each synset. rows: (A,) bool."""
    image_ids, image_index = np.unique(objects.image_ids[rows], return_inverse=True)
    pairs = np.unique(objects.synset_index[rows] * len(image_ids) + image_index)
    return np.bincount(pairs // max(1, len(image_ids)), minlength=len(objects.synsets))


def _count_shared(genome: Iterable[GenomeImage], lvis_ids: set[int]) -> int:
    return sum(image.coco_id in lvis_ids for image in genome)


def _frequency(num_images: int) -> str:
    if num_images <= MAX_RARE_IMAGES:
        return "r"
    return "c" if num_images <= MAX_COMMON_IMAGES else "f"
