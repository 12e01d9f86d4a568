"""CVAT for images 1.1: annotations.xml, and the labels to create a task with."""

import json
from typing import ClassVar
from xml.sax.saxutils import escape, quoteattr

from rncdl.data.run_lengths import row_major_counts
from rncdl.exports.exported import ExportClass, FoundImage, FoundObject, Placing, Shape
from rncdl.exports.writer import Lines, Writer, colour_code, outline_of
from rncdl.files import write_atomically, writing_atomically

_ATTRIBUTES = ("score", "cluster")


class CvatWriter(Writer):
    """annotations.xml, labels.json and images/, as in CVAT's own archives.

    Masks are run lengths along the rows of their box.
    """

    shapes = (Shape.MASK, Shape.POLYGON, Shape.BOX)
    placings = (Placing.LINK, Placing.COPY, Placing.LEAVE)
    written: ClassVar[tuple[str, ...]] = ("annotations.xml", "labels.json", "images")
    how_to_open = (
        "{out}/annotations.xml, for a task with the labels of {out}/labels.json and the images"
    )

    def image_path(self, image: FoundImage) -> str:
        """images/NAME."""
        return f"images/{image.name}"

    def add(self, image: FoundImage) -> bytes:
        """The image's element, in one line."""
        name = image.relative if self.plan.placing is Placing.LEAVE else image.name
        objects = "".join(self._object(one, image) for one in image.objects)
        return (
            f'<image id="{image.index}" name={quoteattr(name)} width="{image.width}" '
            f'height="{image.height}">{objects}</image>'
        ).encode("utf-8", "backslashreplace")

    def finish(self, lines: Lines) -> None:
        """The elements below one root, and the labels."""
        with writing_atomically(self.plan.out / "annotations.xml") as file:
            file.write(b'<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n')
            file.write(f"<version>1.1</version>\n{self._meta()}\n".encode())
            file.writelines(line + b"\n" for line in lines())
            file.write(b"</annotations>\n")
        labels = [
            {
                "name": one.name,
                "color": colour_code(one),
                "type": "any",
                "attributes": [
                    {
                        "name": attribute,
                        "input_type": "text",
                        "mutable": False,
                        "values": [""],
                        "default_value": "",
                    }
                    for attribute in _ATTRIBUTES
                ],
            }
            for one in self.plan.classes
        ]
        text = json.dumps(labels, indent=1, ensure_ascii=False)
        write_atomically(self.plan.out / "labels.json", text.encode())

    def _meta(self) -> str:
        labels = "".join(map(_label, self.plan.classes))
        return (
            f"<meta><task><name>rncdl</name><size>{self.plan.num_images}</size>"
            "<mode>annotation</mode><overlap>0</overlap><flipped>False</flipped>"
            f"<labels>{labels}</labels></task></meta>"
        )

    def _object(self, one: FoundObject, image: FoundImage) -> str:
        tag, place = self._place(one, image)
        cluster = "" if one.cluster is None else str(one.cluster)
        return (
            f'<{tag} label={quoteattr(self.name_of(one))} source="auto" occluded="0" {place} '
            f'z_order="0"><attribute name="score">{one.score:.6g}</attribute>'
            f'<attribute name="cluster">{cluster}</attribute></{tag}>'
        )

    def _place(self, one: FoundObject, image: FoundImage) -> tuple[str, str]:
        """The element's name, and the attributes that tell where the object is."""
        if self.plan.shape is Shape.MASK and one.rle is not None:
            (x, y, width, height), counts = row_major_counts(one.rle)
            if counts:
                return "mask", (
                    f'rle="{", ".join(map(str, counts))}" left="{x}" top="{y}" '
                    f'width="{width}" height="{height}"'
                )
        if self.plan.shape is Shape.POLYGON:
            points = ";".join(f"{x:.2f},{y:.2f}" for x, y in outline_of(one).tolist())
            return "polygon", f'points="{points}"'
        left, top, right, bottom = one.box_xyxy
        return "box", f'xtl="{left:.2f}" ytl="{top:.2f}" xbr="{right:.2f}" ybr="{bottom:.2f}"'


def _label(one: ExportClass) -> str:
    attributes = "".join(
        f"<attribute><name>{name}</name><mutable>False</mutable><input_type>text</input_type>"
        "<default_value></default_value><values></values></attribute>"
        for name in _ATTRIBUTES
    )
    return (
        f"<label><name>{escape(one.name)}</name><color>{colour_code(one)}</color>"
        f"<type>any</type><attributes>{attributes}</attributes></label>"
    )
