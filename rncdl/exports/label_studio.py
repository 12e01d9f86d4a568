"""Label Studio: tasks with predictions, and the labelling interface that they need."""

from typing import Any, ClassVar
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

import numpy as np

from rncdl.data.brush_masks import pack_mask
from rncdl.data.masks import decode_rles
from rncdl.exports.records import FoundImage, FoundObject, Placing, Shape
from rncdl.exports.writer import Lines, Writer, colour_code, encode, outline_of
from rncdl.files import json_list, write_atomically, writing_atomically

_TAGS = {Shape.BOX: "RectangleLabels", Shape.POLYGON: "PolygonLabels", Shape.MASK: "BrushLabels"}
_FROM, _TO = "label", "image"
"""Names of the interface's tags, which results refer to."""


class LabelStudioWriter(Writer):
    """tasks.json, label_config.xml and images/.

    Places are per cent of the image's sides. Addresses are those of local files, below the folder
    that holds the folder of images.
    """

    shapes = (Shape.MASK, Shape.POLYGON, Shape.BOX)
    placings = (Placing.LINK, Placing.COPY, Placing.LEAVE)
    written: ClassVar[tuple[str, ...]] = ("tasks.json", "label_config.xml", "images")
    how_to_open = "{out}/tasks.json, to be imported after {out}/label_config.xml was set"

    def image_path(self, image: FoundImage) -> str:
        """images/NAME."""
        return f"images/{image.name}"

    def add(self, image: FoundImage) -> bytes:
        """The image's task."""
        prediction = {
            "model_version": "rncdl",
            "score": max((one.score for one in image.objects), default=0.0),
            "result": [self._region(one, image) for one in image.objects],
        }
        data = {"image": self._address(image), "file": str(image.source)}
        return encode({"data": data, "predictions": [prediction]})

    def finish(self, lines: Lines) -> None:
        """The tasks in one file, and the interface."""
        with writing_atomically(self.plan.out / "tasks.json") as file:
            file.writelines(json_list(lines()))
            file.write(b"\n")
        write_atomically(self.plan.out / "label_config.xml", self._interface().encode())

    def _address(self, image: FoundImage) -> str:
        if self.plan.placing is Placing.LEAVE:
            path = f"{self.plan.images_root.name}/{image.relative}"
        else:
            path = f"{self.plan.out.resolve().name}/{self.image_path(image)}"
        return f"/data/local-files/?d={quote(path)}"

    def _interface(self) -> str:
        tag = _TAGS[self.plan.shape]
        labels = "".join(
            f"    <Label value={quoteattr(one.name)} background={quoteattr(colour_code(one))}/>\n"
            for one in self.plan.classes
        )
        return (
            f'<View>\n  <Image name="{_TO}" value="$image" zoom="true"/>\n'
            f'  <{tag} name="{_FROM}" toName="{_TO}">\n{labels}  </{tag}>\n</View>\n'
        )

    def _region(self, one: FoundObject, image: FoundImage) -> dict[str, Any]:
        kind = _TAGS[self.plan.shape].lower()
        region: dict[str, Any] = {
            "id": str(one.id),
            "type": kind,
            "from_name": _FROM,
            "to_name": _TO,
            "original_width": image.width,
            "original_height": image.height,
            "image_rotation": 0,
            "score": one.score,
            "value": {**self._place(one, image), kind: [self.name_of(one)]},
        }
        if one.cluster is not None:
            region["meta"] = {"text": [f"cluster {one.cluster}"]}
        return region

    def _place(self, one: FoundObject, image: FoundImage) -> dict[str, Any]:
        sides = np.array([image.width, image.height])
        if self.plan.shape is Shape.MASK and one.rle is not None:
            (mask,) = decode_rles([one.rle], image.height, image.width)
            return {"format": "rle", "rle": list(pack_mask(mask))}
        if self.plan.shape is Shape.POLYGON:
            return {"points": (outline_of(one) / sides * 100).tolist(), "closed": True}
        shares = np.array(one.box_xywh).reshape(2, 2) / sides
        (left, top), (width, height) = (shares * 100).tolist()
        return {"x": left, "y": top, "width": width, "height": height, "rotation": 0}
