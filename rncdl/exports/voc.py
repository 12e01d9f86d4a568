"""PASCAL VOC: an XML file per image."""

from typing import ClassVar
from xml.sax.saxutils import escape

import msgspec

from rncdl.exports.names import without_spaces
from rncdl.exports.records import FoundImage, FoundObject, Shape
from rncdl.exports.writer import Lines, Writer, encode, file_below
from rncdl.files import write_atomically, writing_atomically
from rncdl.gallery.drawings import class_colour


class _Line(msgspec.Struct):
    part: str
    stem: str


class VocWriter(Writer):
    """JPEGImages/, Annotations/, the lists of ImageSets/Main, and labelmap.txt.

    Names in those lists are separated by white space, so that here they hold none. CVAT and
    Datumaro take classes other than VOC's twenty from labelmap.txt.
    """

    shapes = (Shape.BOX,)
    written: ClassVar[tuple[str, ...]] = (
        "Annotations",
        "ImageSets",
        "JPEGImages",
        "labelmap.txt",
    )
    how_to_open = "{out}/Annotations with the images in {out}/JPEGImages"

    def image_path(self, image: FoundImage) -> str:
        """JPEGImages/NAME."""
        return f"JPEGImages/{without_spaces(image.name)}"

    def add(self, image: FoundImage) -> bytes:
        """Annotations/NAME.xml."""
        stem = without_spaces(image.stem)
        objects = "".join(self._object(one, image) for one in image.objects)
        content = (
            "<annotation>\n"
            "  <folder>JPEGImages</folder>\n"
            f"  <filename>{escape(without_spaces(image.name))}</filename>\n"
            f"  <size><width>{image.width}</width><height>{image.height}</height>"
            "<depth>3</depth></size>\n"
            "  <segmented>0</segmented>\n"
            f"{objects}</annotation>\n"
        )
        path = file_below(self.plan.out, f"Annotations/{stem}.xml")
        path.write_text(content, "utf-8")
        return encode(_Line("val" if self.plan.is_val(image) else "train", stem))

    def finish(self, lines: Lines) -> None:
        """The lists of images."""
        decode = msgspec.json.Decoder(_Line).decode
        for part, members in {
            "train": ("train",),
            "val": ("val",),
            "trainval": ("train", "val"),
        }.items():
            with writing_atomically(self.plan.out / f"ImageSets/Main/{part}.txt") as file:
                listed = (line.stem for line in map(decode, lines()) if line.part in members)
                file.writelines(f"{stem}\n".encode() for stem in listed)
        lines_of_map = ["# label:color_rgb:parts:actions", "background:0,0,0::"]
        for one in self.plan.classes:
            colour = ",".join(map(str, class_colour(one.name, novel=one.is_novel)))
            lines_of_map.append(f"{one.name}:{colour}::")
        write_atomically(
            self.plan.out / "labelmap.txt", "".join(f"{line}\n" for line in lines_of_map).encode()
        )

    def _object(self, one: FoundObject, image: FoundImage) -> str:
        """Pixels are counted from 1, and the last one belongs to the box."""
        left, top, right, bottom = one.box_xyxy
        xmin = min(round(left) + 1, image.width)
        ymin = min(round(top) + 1, image.height)
        xmax, ymax = max(round(right), xmin), max(round(bottom), ymin)
        return (
            f"  <object><name>{escape(self.name_of(one))}</name><pose>Unspecified</pose>"
            "<truncated>0</truncated><difficult>0</difficult>"
            f"<bndbox><xmin>{xmin}</xmin><ymin>{ymin}</ymin><xmax>{xmax}</xmax>"
            f"<ymax>{ymax}</ymax></bndbox></object>\n"
        )
