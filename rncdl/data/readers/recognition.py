"""The one door to datasets: which format a file or folder is in is told by its content."""

from collections.abc import Callable
from pathlib import Path

from rncdl.data.annotation_file import AnnotationFile, read_annotation_file
from rncdl.data.readers.cvat import is_cvat_folder, read_cvat
from rncdl.data.readers.label_studio import read_label_studio
from rncdl.data.readers.voc import is_voc_folder, read_voc, root_tag
from rncdl.data.readers.yolo import is_yolo_folder, read_yolo
from rncdl.errors import UserError

Reader = Callable[[Path, Path | None], AnnotationFile]


def read_dataset(path: Path, images_dir: Path | None = None) -> AnnotationFile:
    """The dataset of a file or folder, as a COCO file would hold it.

    COCO and LVIS v1 JSON, Label Studio's JSON export, CVAT for images 1.1, YOLO, PASCAL VOC.
    images_dir: where to look for the images first. A UserError says which file, what is wrong.
    """
    reader = _reader_of_folder(path) if path.is_dir() else _reader_of_file(path)
    if reader is None:
        raise UserError(
            f"{path}: a folder without labels that are known here. Name a JSON file itself; a "
            "folder is read with data.yaml, or images/, labels/ and classes.txt (YOLO), with "
            "Annotations/*.xml (PASCAL VOC) or with annotations.xml (CVAT for images 1.1)."
        )
    return reader(path, images_dir)


def is_dataset_folder(path: Path) -> bool:
    """Whether a folder is more than a folder of images."""
    return path.is_dir() and _reader_of_folder(path) is not None


def _reader_of_folder(folder: Path) -> Reader | None:
    if is_yolo_folder(folder):
        return read_yolo
    if is_cvat_folder(folder):
        return read_cvat
    return read_voc if is_voc_folder(folder) else None


def _reader_of_file(path: Path) -> Reader:
    if path.suffix.lower() in (".yaml", ".yml"):
        return read_yolo
    if path.suffix.lower() == ".txt":
        return read_voc
    # Not of a pipe: what is looked at there is gone.
    start = _first_bytes(path) if path.is_file() else b""
    if start.startswith(b"PK"):
        raise UserError(f"{path}: an archive. Unpack it and give the folder.")
    if start.startswith(b"["):
        return read_label_studio
    if start.startswith(b"<"):
        _require_cvat(path)
        return read_cvat
    return _read_coco


def _read_coco(path: Path, images_dir: Path | None) -> AnnotationFile:
    return read_annotation_file(path)


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip()
    except OSError as error:
        raise UserError(f"{path}: cannot read the file ({error.strerror}).") from error


def _require_cvat(path: Path) -> None:
    tag = root_tag(path)
    if tag == "annotation":
        raise UserError(f"{path}: one image's labels of PASCAL VOC. Give the folder of all.")
    if tag not in (None, "annotations"):  # read_cvat tells what is wrong with broken XML
        raise UserError(
            f"{path}: <{tag}> is neither CVAT's <annotations> nor PASCAL VOC's <annotation>."
        )
