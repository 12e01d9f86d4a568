"""COCO-half -> LVIS: half of LVIS's training images with COCO's labels, the rest without.

All of LVIS's images are COCO's, under the same image ids.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from rncdl.data.annotation_file import (
    AnnotationFile,
    Int64,
    read_annotation_file,
    read_json,
    without_garbage_collection,
)
from rncdl.data.public.counts import Count
from rncdl.data.public.formats import (
    MadeFile,
    NamedClass,
    Place,
    find_file,
    named_classes,
    places_by_id,
    read_lvis_lists,
    read_lvis_whole,
)
from rncdl.data.public.synsets import names_by_synset, rename_coco_classes
from rncdl.errors import UserError


@dataclass(frozen=True)
class CocoHalfLvis:
    """The setting's files."""

    labelled: MadeFile
    """half of LVIS's training images, COCO's labels under LVIS's class names"""
    known_val: MadeFile
    """COCO's validation images that are in LVIS's, COCO's labels: for the known classes alone"""
    unlabelled: MadeFile
    """the other half, images alone"""
    val: MadeFile
    """LVIS's validation file, all its classes"""
    known: tuple[str, ...]
    """COCO's classes in the order of their outputs, LVIS's names where it has them"""

    def counts(self) -> list[Count]:
        """The setting in numbers, beside section 4.1 of the paper."""
        num_labelled, num_unlabelled = len(self.labelled.images), len(self.unlabelled.images)
        num_classes = len(self.val.categories)
        num_shared = len({c.name for c in self.val.categories}.intersection(self.known))
        return [
            Count("training images", num_labelled + num_unlabelled, 100_000, 1000),
            Count("  labelled", num_labelled, 50_000, 1000),
            Count("  unlabelled", num_unlabelled, 50_000, 1000),
            Count("validation images", len(self.val.images), 20_000, 1000),
            Count("labelled classes", len(self.known), 80),
            Count("classes in validation", num_classes, 1203),
            # The length of the list in the published code: LVIS has no hot dog.
            Count("  known", num_shared, 79),
            Count("  novel", num_classes - num_shared, 1124),
        ]


@dataclass(frozen=True)
class AuthorsSplit:
    """The images of the authors' `coco_half_train.json` and `coco_half_val.json`."""

    train_ids: frozenset[int]
    val_ids: frozenset[int]


@without_garbage_collection()
def make_coco_half_lvis(
    coco_dir: Path, lvis_dir: Path, *, seed: int = 0, authors_split: Path | None = None
) -> CocoHalfLvis:
    """The setting from COCO's `instances_*2017.json` and LVIS's `lvis_v1_*.json`.

    The labelled half is drawn by `seed`, or read from the authors' files in `authors_split`.
    """
    lvis_train_path = find_file(lvis_dir, "lvis_v1_train.json")
    lvis_val_path = find_file(lvis_dir, "lvis_v1_val.json")
    coco_train_path = find_file(coco_dir, "instances_train2017.json")
    coco_val_path = find_file(coco_dir, "instances_val2017.json")
    train_places = places_by_id(read_lvis_lists(lvis_train_path).images, lvis_train_path)
    lvis_val = read_lvis_whole(lvis_val_path)
    val_places = places_by_id(lvis_val.images, lvis_val_path)
    coco_val = read_annotation_file(coco_val_path)
    known_val_ids = {image.id for image in coco_val.images}.intersection(val_places)
    if authors_split is None:
        labelled_ids = choose_half(train_places, seed)
    else:
        split = read_authors_split(authors_split)
        _require_subset(
            split.train_ids, train_places, path=authors_split / TRAIN_NAME, of=[lvis_train_path]
        )
        _require_subset(
            split.val_ids,
            known_val_ids,
            path=authors_split / VAL_NAME,
            of=[coco_val_path, lvis_val_path],
        )
        labelled_ids, known_val_ids = set(split.train_ids), set(split.val_ids)
    coco_train = read_annotation_file(coco_train_path)
    _require_same_classes(coco_train, coco_val, coco_train_path, coco_val_path)
    lvis_names = names_by_synset(lvis_val.categories)
    classes = rename_coco_classes(coco_train.categories, lvis_names, coco_train_path)
    return CocoHalfLvis(
        labelled=_keep_images(
            [coco_train, coco_val], _choose(train_places, labelled_ids), classes=classes
        ),
        known_val=_keep_images([coco_val], _choose(val_places, known_val_ids), classes=classes),
        unlabelled=MadeFile(_choose(train_places, train_places.keys() - labelled_ids)),
        val=MadeFile(
            list(val_places.values()), lvis_val.annotations, named_classes(lvis_val.categories)
        ),
        known=tuple(c.name for c in classes),
    )


def choose_half(image_ids: Iterable[int], seed: int) -> set[int]:
    """Half of the ids, rounded down: the same for the same seed, whatever their order."""
    ids = sorted(image_ids)
    order = np.random.default_rng(seed).permutation(len(ids))
    return {ids[position] for position in order[: len(ids) // 2]}


TRAIN_NAME, VAL_NAME = "coco_half_train.json", "coco_half_val.json"


class _ImageId(msgspec.Struct, gc=False):
    id: Int64


class _ImageIds(msgspec.Struct):
    images: list[_ImageId]


def read_authors_split(folder: Path) -> AuthorsSplit:
    """The image ids of the authors' two files; nothing else of them is used."""
    train, val = (
        frozenset(
            image.id
            for image in read_json(find_file(folder, name), _ImageIds, expected="COCO JSON").images
        )
        for name in (TRAIN_NAME, VAL_NAME)
    )
    return AuthorsSplit(train, val)


def _choose(places: Mapping[int, Place], ids: Iterable[int]) -> list[Place]:
    """The places of the ids in the file's order, without labels."""
    chosen = set(ids)
    return [place.without_labels() for place in places.values() if place.id in chosen]


def _keep_images(
    files: Iterable[AnnotationFile], images: list[Place], *, classes: list[NamedClass]
) -> MadeFile:
    """COCO's annotations of the images."""
    ids = {image.id for image in images}
    annotations = [a for file in files for a in file.annotations if a.image_id in ids]
    return MadeFile(images, annotations, classes)


def _require_subset(
    ids: Iterable[int], allowed: Iterable[int], *, path: Path, of: Sequence[Path]
) -> None:
    strange = sorted(set(ids).difference(allowed))
    if strange:
        raise UserError(
            f"{path}: {len(strange)} of its image ids, e.g. $.images id {strange[0]}, are not in "
            f"{' and '.join(map(str, of))}. All must be of COCO 2017 and LVIS v1."
        )


def _require_same_classes(
    one: AnnotationFile, other: AnnotationFile, one_path: Path, other_path: Path
) -> None:
    classes = {c.id: c.name for c in one.categories}
    if classes != {c.id: c.name for c in other.categories}:
        raise UserError(f"{other_path}: $.categories differ from those of {one_path}.")
