"""Public annotation files as far as the settings need them, and the files made of them."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from rncdl.data.annotation_file import FileAnnotation, FileCategory, FileImage, Int64, read_json
from rncdl.errors import UserError
from rncdl.files import write_atomically

LVIS = "LVIS v1 JSON"
NO_MASK = msgspec.Raw(b"null")


class ListedFile(msgspec.Struct):
    """Images and categories of an LVIS file; its annotations are passed by unread."""

    images: list[FileImage]
    categories: list[FileCategory]


class WholeFile(msgspec.Struct):
    """The same with the annotations as they stand, to be copied and not looked at."""

    images: list[FileImage]
    categories: list[FileCategory]
    annotations: msgspec.Raw


class Place(msgspec.Struct, omit_defaults=True, gc=False):
    """An entry of `images` in the files we make: `file_name` is `FOLDER/NAME`."""

    id: Int64
    file_name: str
    height: Int64 | None = None
    width: Int64 | None = None
    neg_category_ids: list[Int64] | None = None
    not_exhaustive_category_ids: list[Int64] | None = None

    @property
    def folder(self) -> str:
        """The folder of images: train2017, VG_100K, ..."""
        return self.file_name.partition("/")[0]

    def without_labels(self) -> "Place":
        """The image alone: LVIS's lists of classes are labels too."""
        return Place(self.id, self.file_name, self.height, self.width)


class NamedClass(msgspec.Struct, omit_defaults=True, gc=False):
    """An entry of `categories` in the files we make."""

    id: Int64
    name: str
    synset: str | None = None
    frequency: str | None = None


class MadeFile(msgspec.Struct):
    """A COCO or LVIS file to be written."""

    images: list[Place]
    annotations: list[FileAnnotation] | msgspec.Raw = msgspec.field(default_factory=list)
    categories: list[NamedClass] = msgspec.field(default_factory=list)

    def write(self, path: Path) -> None:
        """Put the file at `path`, whole or not at all."""
        if not isinstance(self.annotations, msgspec.Raw):
            for annotation in self.annotations:
                if not memoryview(annotation.segmentation):
                    annotation.segmentation = NO_MASK
        write_atomically(path, msgspec.json.encode(self))


def read_lvis_lists(path: Path) -> ListedFile:
    """Images and categories of an LVIS file: little memory, however many annotations."""
    return read_json(path, ListedFile, expected=LVIS)


def read_lvis_whole(path: Path) -> WholeFile:
    """An LVIS file whose annotations are only to be copied."""
    return read_json(path, WholeFile, expected=LVIS)


def find_file(folder: Path, name: str) -> Path:
    """The file of that name in the folder or in its `annotations`, where downloads put it."""
    candidates = [folder / name, folder / "annotations" / name]
    for path in candidates:
        if path.is_file():
            return path
    raise UserError(f"{candidates[0]}: no such file, and no {candidates[1]} either. Download it.")


_END_OF_URL = re.compile(r"/(\w+)/([\w-]+\.\w+)\Z")


def place_in_url(url: str | None) -> str | None:
    """`FOLDER/NAME`, the end of an image's URL; None where it has no such end."""
    found = _END_OF_URL.search(url or "")
    return f"{found[1]}/{found[2]}" if found else None


def places_by_id(images: Sequence[FileImage], source: Path) -> dict[int, Place]:
    """Image id -> where the image is, by its `coco_url`, in the file's order."""
    places: dict[int, Place] = {}
    for index, image in enumerate(images):
        file_name = place_in_url(image.coco_url)
        if file_name is None:
            raise UserError(
                f"{source}: $.images[{index}].coco_url is {image.coco_url!r}; it must end in "
                "the image's folder and name, like .../train2017/000000000009.jpg."
            )
        if image.id in places:
            raise UserError(f"{source}: $.images[{index}].id {image.id} is used more than once.")
        places[image.id] = Place(
            image.id,
            file_name,
            image.height,
            image.width,
            image.neg_category_ids,
            image.not_exhaustive_category_ids,
        )
    return places


def named_classes(categories: Iterable[FileCategory]) -> list[NamedClass]:
    """The categories as they are."""
    return [NamedClass(c.id, c.name, c.synset, c.frequency) for c in categories]


def link_image_folders(out: Path, places: Iterable[Place], roots: Sequence[Path]) -> None:
    """Make `out/FOLDER` a link to each folder the images lie in, so that `file_name` leads there.

    Folders are looked for below each of `roots`, and below its `images`.
    """
    for name in sorted({place.folder for place in places}):
        candidates = [parent / name for root in roots for parent in (root, root / "images")]
        folder = next((path for path in candidates if path.is_dir()), None)
        if folder is None:
            looked = ", ".join(map(str, candidates))
            raise UserError(f"No folder {name} of images; looked for {looked}. Unpack it there.")
        _link(out / name, folder)


def _link(link: Path, folder: Path) -> None:
    try:
        if link.exists() and link.samefile(folder):
            return
        if link.is_symlink():
            link.unlink()
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(folder.resolve(), target_is_directory=True)
    except OSError as error:
        raise UserError(
            f"{link}: cannot be made a link to {folder} ({error.strerror}). Choose another --out."
        ) from error
