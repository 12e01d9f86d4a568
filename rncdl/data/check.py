"""Everything that is wrong with a dataset, and where."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from rncdl.data.annotation_file import AnnotationFile, FileImage
from rncdl.data.annotation_rows import AnnotationRows, judge_annotations
from rncdl.data.image_headers import Size, read_sizes_of_all
from rncdl.data.image_paths import ImageFinder, list_images
from rncdl.data.likeness import are_alike, find_copies, find_repeats, mean_difference
from rncdl.data.masks import to_rle
from rncdl.data.problems import Problem, ProblemKind
from rncdl.data.readers.recognition import is_dataset_folder, read_dataset
from rncdl.data.segmentations import Segmentations
from rncdl.errors import UserError


def find_problems(path: Path, images_dir: Path | None = None) -> list[Problem]:
    """All problems of a dataset, its masks and the headers of its images.

    A folder without labels is checked as the unlabelled images it holds. What is in no known
    format at all raises UserError.
    """
    if path.is_dir() and not is_dataset_folder(path):
        paths = list_images(path)
        sizes_on_disk = read_sizes_of_all(paths)
        found = zip(paths, sizes_on_disk, strict=True)
        unreadable = [_unreadable(image, e) for image, e in found if isinstance(e, UserError)]
        return [*unreadable, *_likeness(path, paths, sizes_on_disk)]
    file = read_dataset(path, images_dir)
    paths = _paths_of(file, path, images_dir)
    sizes_on_disk = read_sizes_of_all(paths)
    sizes = [_trusted_size(*pair) for pair in zip(file.images, sizes_on_disk, strict=True)]
    rows = judge_annotations(
        file,
        heights=np.array([np.inf if size is None else size[0] for size in sizes]),
        widths=np.array([np.inf if size is None else size[1] for size in sizes]),
    )
    return [
        *_repeated_entries(file),
        *_image_problems(file, paths, sizes_on_disk),
        *(
            rows.describe(kind, row)
            for kind, found in rows.rows_by_problem.items()
            for row in found.tolist()
        ),
        *_mask_problems(rows, sizes),
        *_likeness(path, paths, sizes_on_disk),
    ]


def find_shared_images(
    path: Path, images_dir: Path | None, *, trained_on: Sequence[Path]
) -> list[Problem]:
    """Images of a dataset that are byte for byte among those that a detector was trained on."""
    return [
        Problem(ProblemKind.SHARED_IMAGE, str(image), f"the same as {copy}")
        for image, copy in find_copies(image_paths(path, images_dir), trained_on)
    ]


def image_paths(path: Path, images_dir: Path | None = None) -> list[Path]:
    """Where the images of a folder or of an annotation file are, or should be."""
    if path.is_dir() and not is_dataset_folder(path):
        return list_images(path)
    return _paths_of(read_dataset(path, images_dir), path, images_dir)


def _paths_of(file: AnnotationFile, path: Path, images_dir: Path | None) -> list[Path]:
    finder = ImageFinder(path, images_dir)
    return [finder.find(image, index) for index, image in enumerate(file.images)]


def _likeness(
    path: Path, images: list[Path], sizes_on_disk: list[tuple[Size, Size] | UserError]
) -> Iterator[Problem]:
    pairs = zip(images, sizes_on_disk, strict=True)
    images = [image for image, size in pairs if not isinstance(size, UserError)]
    for image, copy in find_repeats(images):
        yield Problem(ProblemKind.REPEATED_IMAGE, str(image), f"the same as {copy}")
    difference = mean_difference(images)
    if difference is not None and are_alike(difference):
        value = f"they differ by {difference:.1f} of 255 on average"
        yield Problem(ProblemKind.ALIKE_IMAGES, str(path), value)


def _repeated_entries(file: AnnotationFile) -> Iterator[Problem]:
    image_ids = [image.id for image in file.images]
    category_ids = [category.id for category in file.categories]
    names = [category.name for category in file.categories]
    yield from _repeats(ProblemKind.DUPLICATE_IMAGE_ID, "images", image_ids)
    yield from _repeats(ProblemKind.DUPLICATE_CATEGORY_ID, "categories", category_ids)
    yield from _repeats(ProblemKind.DUPLICATE_CATEGORY_NAME, "categories", names)
    first_spelled: dict[str, str] = {}
    for index, name in enumerate(names):
        other = first_spelled.setdefault(_plain(name), name)
        if other != name:
            value = f"{name!r} beside {other!r}"
            yield Problem(ProblemKind.SIMILAR_CATEGORY_NAME, f"categories[{index}]", value)


def _plain(name: str) -> str:
    """A name without what people write in one way or another."""
    return " ".join(re.split(r"[\s_-]+", name.strip(" _-\t\n").casefold()))


def _repeats(kind: ProblemKind, name: str, values: Iterable[int | str]) -> Iterator[Problem]:
    """A problem for every entry whose value an earlier entry has."""
    seen: set[int | str] = set()
    for index, value in enumerate(values):
        if value in seen:
            yield Problem(kind, f"{name}[{index}]", repr(value))
        seen.add(value)


def _image_problems(
    file: AnnotationFile, paths: list[Path], sizes_on_disk: list[tuple[Size, Size] | UserError]
) -> Iterator[Problem]:
    for image, path, found in zip(file.images, paths, sizes_on_disk, strict=True):
        if isinstance(found, UserError):
            yield _unreadable(path, found)
        elif None not in (image.height, image.width) and (image.height, image.width) not in found:
            (height, width), _ = found
            value = f"{width} × {height}, not {image.width} × {image.height} (width × height)"
            yield Problem(ProblemKind.WRONG_SIZE, str(path), value)


def _unreadable(path: Path, error: UserError) -> Problem:
    kind = ProblemKind.BROKEN_IMAGE if path.is_file() else ProblemKind.MISSING_IMAGE
    return Problem(kind, str(path), str(error).removeprefix(f"{path}: "))


def _mask_problems(rows: AnnotationRows, sizes: list[Size | None]) -> Iterator[Problem]:
    masks = Segmentations.pack(annotation.segmentation for annotation in rows.file.annotations)
    for row in rows.usable.tolist():
        mask, size = masks[row], sizes[rows.image_index[row]]
        if mask is None or size is None:
            continue
        try:
            to_rle(mask, *size)
        except UserError as error:
            yield rows.describe(ProblemKind.BROKEN_MASK, row, value=str(error))


def _trusted_size(image: FileImage, on_disk: tuple[Size, Size] | UserError) -> Size | None:
    """The size the annotations are meant for: the file's, else the upright image's."""
    if image.height is not None and image.width is not None:
        return image.height, image.width
    return None if isinstance(on_disk, UserError) else on_disk[0]
