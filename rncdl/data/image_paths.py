"""Where on disk the images of an annotation file are."""

import os
from pathlib import Path, PurePosixPath

from rncdl.data.annotation_file import FileImage
from rncdl.errors import UserError

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"})


def list_images(folder: Path) -> list[Path]:
    """All image files below a folder, sorted, hidden ones left out; UserError when none is left."""
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in IMAGE_SUFFIXES
        and not path.name.startswith(".")
        and path.is_file()
    )
    if not files:
        suffixes = ", ".join(sorted(IMAGE_SUFFIXES))
        raise UserError(f"{folder}: no images in this folder (looked for {suffixes}).")
    return files


class ImageFinder:
    """Finds images below the folder the user named, then below the annotation file's own."""

    def __init__(self, annotation_file: Path, images_dir: Path | None) -> None:
        if images_dir is not None and not images_dir.is_dir():
            raise UserError(f"{images_dir}: no such folder of images.")
        self._annotation_file = annotation_file
        roots = (images_dir, annotation_file.parent)
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
