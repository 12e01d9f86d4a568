"""PASCAL VOC: an XML file per image, boxes only."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from rncdl.data.annotation_file import ConvertedFile
from rncdl.data.image_headers import Size
from rncdl.data.image_paths import IMAGE_SUFFIXES, ImageFinder
from rncdl.data.readers.gathering import Gathered, Region, read_text, to_number
from rncdl.errors import UserError

_LABEL_FOLDERS = ("Annotations", "annotations")
_IMAGE_FOLDERS = ("JPEGImages", "images", "")
_SIDES = ("xmin", "ymin", "xmax", "ymax")


def is_voc_folder(folder: Path) -> bool:
    """Whether a folder holds XML files of VOC's, in `Annotations` or as they are."""
    first = next(iter(_xml_files(folder)), None)
    return first is not None and root_tag(first) == "annotation"


def read_voc(path: Path, images_dir: Path | None) -> ConvertedFile:
    """The dataset of a folder, or of one of its lists (ImageSets/Main/train.txt)."""
    root = path if path.is_dir() else _root_of_list(path)
    files = _xml_files(path) if path.is_dir() else list(_listed(path, root))
    gathered = Gathered()
    finder = ImageFinder(root, images_dir)
    for file in files:
        entry = _parse(file)
        gathered.add_image(_find_image(entry, file, finder, root), _size(entry, file))
        for index, item in enumerate(entry.iterfind("object")):
            place = f"{file}, object {index + 1}"
            gathered.add_object(_name(item, place), Region(_box(item, place)), place=place)
    return gathered.to_file()


def root_tag(file: Path) -> str | None:
    """The outermost element's name; None where the file is no XML."""
    try:
        _, root = next(iter(ElementTree.iterparse(file, ("start",))))
    except (ElementTree.ParseError, OSError, StopIteration):
        return None
    return root.tag


def _xml_files(folder: Path) -> Sequence[Path]:
    for name in _LABEL_FOLDERS:
        if files := sorted((folder / name).rglob("*.xml")):
            return files
    return sorted(folder.glob("*.xml"))


def _root_of_list(path: Path) -> Path:
    for folder in path.absolute().parents:
        if any((folder / name).is_dir() for name in _LABEL_FOLDERS):
            return folder
    raise UserError(
        f"{path}: a list of a PASCAL VOC dataset lies below the folder of its Annotations, and "
        "there is none. Give the folder or the list of such a dataset."
    )


def _listed(path: Path, root: Path) -> Iterator[Path]:
    """The XML files of a list's images: a name a line, perhaps with a number behind it."""
    by_stem = {file.stem: file for file in _xml_files(root)}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        words = line.split()
        if not words:
            continue
        if words[0] not in by_stem:
            raise UserError(
                f"{path}, line {number}: no {words[0]}.xml among the Annotations of {root}. "
                "Correct the line or add the file."
            )
        yield by_stem[words[0]]


def _parse(file: Path) -> ElementTree.Element:
    try:
        entry = ElementTree.parse(file).getroot()
    except ElementTree.ParseError as error:
        raise UserError(f"{file}: not XML: {error}.") from error
    except OSError as error:
        raise UserError(f"{file}: cannot read the file ({error.strerror}).") from error
    if entry.tag != "annotation":
        raise UserError(
            f"{file}: <{entry.tag}> instead of PASCAL VOC's <annotation>. Take the file away."
        )
    return entry


def _find_image(entry: ElementTree.Element, file: Path, finder: ImageFinder, root: Path) -> Path:
    """The image that `filename` names, else one with the XML file's own name."""
    written = (entry.findtext("filename") or "").strip()
    names = [written] if written else []
    names += [f"{file.stem}{suffix}" for suffix in sorted(IMAGE_SUFFIXES)]
    parts = file.parent.relative_to(root).parts
    inner = parts[1:] if parts[:1] and parts[0] in _LABEL_FOLDERS else parts
    return finder.first_existing(
        [Path(folder, *inner, name).as_posix() for folder in _IMAGE_FOLDERS for name in names]
    )


def _size(entry: ElementTree.Element, file: Path) -> Size | None:
    """The size that is written; None where it is missing or 0, as some tools leave it."""
    sides = [entry.findtext(f"size/{side}") for side in ("height", "width")]
    if None in sides:
        return None
    height, width = (int(to_number(side, f"{file}: `size`")) for side in sides)
    return (height, width) if height and width else None


def _name(item: ElementTree.Element, place: str) -> str:
    name = (item.findtext("name") or "").strip()
    if not name:
        raise UserError(f"{place}: no `name`. Give the object its class.")
    return name


def _box(item: ElementTree.Element, place: str) -> tuple[float, float, float, float]:
    """Pixels are counted from 1, and the last one belongs to the box; 0 is taken for the edge."""
    left, top, right, bottom = (
        to_number(item.findtext(f"bndbox/{side}"), f"{place}: `bndbox/{side}`") for side in _SIDES
    )
    return left - min(max(left, 0), 1), top - min(max(top, 0), 1), right, bottom
