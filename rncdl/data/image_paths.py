"""Where on disk the images of an annotation file are."""

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from rncdl.data.annotation_file import FileImage
from rncdl.errors import UserError

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"})


def list_images(folder: Path) -> list[Path]:
    """All image files below a folder, sorted, hidden ones left out; UserError when none is left."""
    files = image_files_below(folder)
    if not files:
        suffixes = ", ".join(sorted(IMAGE_SUFFIXES))
        raise UserError(f"{folder}: no images in this folder (looked for {suffixes}).")
    return files


def image_files_below(folder: Path) -> list[Path]:
    """All image files below a folder, sorted, hidden ones left out."""
    return sorted(filter(is_image_file, folder.rglob("*")))


def is_image_file(path: Path) -> bool:
    """True for a file that has an image's ending and is not hidden."""
    return (
        path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".") and path.is_file()
    )


def find_images(words: Sequence[str], *, outside: Path) -> list[Path]:
    """Absolute paths of the image files that `words` name, each once, in the order of the words.

    A word is a file, a folder (searched through) or a glob; what a folder or a glob gives is in
    natural order, 2.jpg before 10.jpg. Files below `outside` are left out. One UserError names
    every word that gives nothing.
    """
    found: dict[Path, None] = {}
    empty = []
    shut_out = Path(os.path.abspath(outside))
    for word in words:
        named = (Path(os.path.abspath(path)) for path in _files_of_word(word))
        files = [path for path in named if not path.is_relative_to(shut_out)]
        found.update(dict.fromkeys(files))
        if not files:
            empty.append(word)
    if empty or not words:
        suffixes = ", ".join(sorted(IMAGE_SUFFIXES))
        raise UserError(
            f"No images at {', '.join(empty) or 'all: no file was named'}. Give image files, "
            f"folders, or globs such as 'photos/**/*.jpg' (folders and globs look for {suffixes})."
        )
    return list(found)


def _files_of_word(word: str) -> list[Path]:
    if os.path.isfile(word):
        return [Path(word)]
    paths = [word] if os.path.isdir(word) else glob.glob(word, recursive=True)
    files: list[Path] = []
    for path in map(Path, paths):
        files += image_files_below(path) if path.is_dir() else filter(is_image_file, [path])
    return sorted(files, key=_natural_order)


def _natural_order(path: Path) -> list[list[str | int]]:
    """Texts and numbers in turn, folder by folder."""
    return [
        [int(text) if text.isdecimal() else text for text in re.split(r"(\d+)", part)]
        for part in path.parts
    ]


class ImageFinder:
    """Finds images below the folder the user named, then below the annotation file's own.

    A dataset that is a folder is its own folder.
    """

    def __init__(self, annotation_file: Path, images_dir: Path | None) -> None:
        if images_dir is not None and not images_dir.is_dir():
            raise UserError(f"{images_dir}: no such folder of images.")
        self._annotation_file = annotation_file
        own = annotation_file if annotation_file.is_dir() else annotation_file.parent
        roots = (images_dir, own)
        self._roots = [root.absolute() for root in roots if root is not None]
        self._folders = [str(root) for root in self._roots]
        self._names_in: dict[tuple[str, str], frozenset[str]] = {}

    def find(self, image: FileImage, index: int) -> Path:
        """The first candidate that exists, else the first candidate.

        index: position in the file's `images`, for the error of an entry without a name.
        """
        names = _relative_names(image)
        if not names:
            raise UserError(
                f"{self._annotation_file}: $.images[{index}] (id {image.id}) has neither "
                "`file_name` nor `coco_url`. One of them must name the image."
            )
        return self.first_existing(names)

    def first_existing(self, names: Sequence[str]) -> Path:
        """The first of the names, relative or absolute, that exists, else the first."""
        for root, folder in zip(self._roots, self._folders, strict=True):
            for name in names:
                if self._exists(folder, name):
                    return root / name
        return self._roots[0] / names[0]

    def _exists(self, root: str, name: str) -> bool:
        """Whether the file exists, with one look into each folder rather than one per image."""
        folder, slash, last = name.rpartition("/")
        folder += slash
        names = self._names_in.get((root, folder))
        if names is None:
            try:
                names = frozenset(os.listdir(os.path.join(root, folder)))
            except OSError:
                names = frozenset()
            self._names_in[root, folder] = names
        return last in names


def _relative_names(image: FileImage) -> list[str]:
    """Candidates in order: LVIS gives only a URL, of which the end is the path on disk."""
    if image.file_name:
        return [image.file_name]
    # Cut by hand: urlsplit raises on broken addresses, and only the path's end is wanted.
    url_parts = PurePosixPath((image.coco_url or "").partition("://")[2]).parts[1:]
    return [os.path.join(*url_parts[-2:]), url_parts[-1]] if url_parts else []
