"""Datasets of every format, and folders of images, as AnnotationSets."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Literal

import numpy as np

from rncdl.data.annotation_file import (
    AnnotationFile,
    ConvertedFile,
    FileImage,
    without_garbage_collection,
)
from rncdl.data.annotation_rows import AnnotationRows, judge_annotations
from rncdl.data.image_headers import read_sizes, read_sizes_of_all
from rncdl.data.image_paths import ImageFinder, list_images
from rncdl.data.problems import MAX_EXAMPLES, Problem, ProblemCounts, ProblemKind
from rncdl.data.readers.recognition import is_dataset_folder, read_dataset
from rncdl.data.records import AnnotationSet, Category, ImageRecord
from rncdl.data.segmentations import Segmentations
from rncdl.errors import UserError


@dataclass(frozen=True)
class LoadedAnnotations:
    """A dataset, and what had to be mended or left out to get it."""

    annotations: AnnotationSet
    problems: ProblemCounts = field(default_factory=ProblemCounts)
    notes: Sequence[str] = ()
    """what a person should know of the reading"""


@without_garbage_collection()
def load_annotations(path: Path, images_dir: Path | None = None) -> LoadedAnnotations:
    """The dataset of a file or folder in any format of `read_dataset`.

    Images are looked for below `images_dir`, then below the file's own folder; whether they are
    there is found out when they are read. Boxes are clipped to their images; annotations that
    cannot be used are left out and counted.
    """
    file = read_dataset(path, images_dir)
    _refuse_repeats(path, "images", (image.id for image in file.images))
    _refuse_repeats(path, "categories", (category.id for category in file.categories))
    finder = ImageFinder(path, images_dir)
    images = tuple(
        _image_record(image, path=finder.find(image, index), source=path)
        for index, image in enumerate(file.images)
    )
    rows = judge_annotations(
        file,
        heights=np.array([image.height for image in images], dtype=np.float64),
        widths=np.array([image.width for image in images], dtype=np.float64),
    )
    problems = ProblemCounts()
    for kind, found in rows.rows_by_problem.items():
        examples = (rows.describe(kind, row) for row in found[:MAX_EXAMPLES].tolist())
        problems.add(kind, len(found), first=examples)
    notes = file.notes if isinstance(file, ConvertedFile) else ()
    return LoadedAnnotations(_annotation_set(file, images, rows), problems, notes)


def load_image_folder(
    path: Path, *, on_bad_image: Literal["error", "skip"] = "error"
) -> LoadedAnnotations:
    """All images below a folder, sorted by path, without annotations or categories.

    Ids count from 1. An image whose header cannot be read is an error, or is left out and
    counted.
    """
    files = list_images(path)
    problems = ProblemCounts()
    images: list[ImageRecord] = []
    for file, sizes in zip(files, read_sizes_of_all(files), strict=True):
        if not isinstance(sizes, UserError):
            height, width = sizes[0]
            images.append(ImageRecord(len(images) + 1, file, height, width))
        elif on_bad_image == "skip":
            broken = Problem(ProblemKind.BROKEN_IMAGE, str(file), str(sizes))
            problems.add(broken.kind, 1, first=[broken])
        else:
            raise sizes
    return LoadedAnnotations(_unlabelled(tuple(images)), problems)


def load_images_or_annotations(
    path: Path,
    images_dir: Path | None = None,
    *,
    on_bad_image: Literal["error", "skip"] = "error",
) -> LoadedAnnotations:
    """The images of a folder, or the dataset of a file or of a folder with labels."""
    if path.is_dir() and not is_dataset_folder(path):
        return load_image_folder(path, on_bad_image=on_bad_image)
    return load_annotations(path, images_dir)


def without_labels(annotations: AnnotationSet) -> AnnotationSet:
    """The images alone: no annotations, no categories, no federated lists."""
    return _unlabelled(
        tuple(
            replace(image, neg_category_ids=(), not_exhaustive_category_ids=())
            for image in annotations.images
        )
    )


def _unlabelled(images: tuple[ImageRecord, ...]) -> AnnotationSet:
    no_rows = np.zeros(0, dtype=np.int64)
    return AnnotationSet(
        images=images,
        categories=(),
        annotation_ids=no_rows,
        image_index=no_rows,
        category_ids=no_rows,
        boxes_xyxy=np.zeros((0, 4)),
        areas=np.zeros(0),
        is_crowd=np.zeros(0, dtype=bool),
        segmentations=Segmentations.pack([]),
    )


def _annotation_set(
    file: AnnotationFile, images: tuple[ImageRecord, ...], rows: AnnotationRows
) -> AnnotationSet:
    """The usable rows, sorted by image and otherwise in the file's order."""
    order = _by_image(rows)
    masks = map(attrgetter("segmentation"), file.annotations)
    return AnnotationSet(
        images=images,
        categories=tuple(
            Category(c.id, c.name, synset=c.synset, frequency=c.frequency) for c in file.categories
        ),
        annotation_ids=rows.annotation_ids[order],
        image_index=rows.image_index[order],
        category_ids=rows.category_ids[order],
        boxes_xyxy=rows.boxes_xyxy[order],
        areas=rows.areas[order],
        is_crowd=rows.is_crowd[order],
        # Packed in the file's order, which is the order in memory: twice as fast as sorted.
        segmentations=Segmentations.pack(masks).take(order),
        is_federated=any(_is_federated(image) for image in file.images),
    )


def _by_image(rows: AnnotationRows) -> np.ndarray:
    """(U,) int64, the usable rows by image and row: sorting one number is the fastest way."""
    count = max(1, len(rows.image_index))
    return np.sort(rows.image_index[rows.usable] * count + rows.usable) % count


def _is_federated(image: FileImage) -> bool:
    return image.neg_category_ids is not None or image.not_exhaustive_category_ids is not None


def _image_record(image: FileImage, *, path: Path, source: Path) -> ImageRecord:
    height, width = image.height, image.width
    if height is None or width is None:
        height, width = _size_without_record(image, path=path, source=source)
    if height <= 0 or width <= 0:
        raise UserError(
            f"{source}: image {image.id} has `width` {width} and `height` {height}: give its size "
            "in pixels, or leave both out."
        )
    return ImageRecord(
        image.id,
        path,
        height,
        width,
        neg_category_ids=tuple(image.neg_category_ids or ()),
        not_exhaustive_category_ids=tuple(image.not_exhaustive_category_ids or ()),
    )


def _size_without_record(image: FileImage, *, path: Path, source: Path) -> tuple[int, int]:
    try:
        return read_sizes(path)[0]
    except UserError as error:
        raise UserError(
            f"{source}: image {image.id} has no `height` and `width`, and the image itself "
            f"cannot tell: {error}"
        ) from error


def _refuse_repeats(path: Path, name: str, ids: Iterable[int]) -> None:
    repeated: Sequence[int] = [i for i, count in Counter(ids).items() if count > 1]
    if repeated:
        some = ", ".join(map(str, repeated[:MAX_EXAMPLES]))
        raise UserError(
            f"{path}: `{name}` uses {len(repeated)} id(s) more than once: {some}. "
            "Give every entry its own `id`."
        )
