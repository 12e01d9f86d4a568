"""YOLO as Ultralytics reads it: data.yaml, images/ and labels/ with a text file per image."""

from typing import ClassVar

import yaml

from rncdl.exports.exported import FoundImage, FoundObject, Shape
from rncdl.exports.writer import Lines, Writer, encode, file_below, outline_of
from rncdl.files import write_atomically


class YoloWriter(Writer):
    """Classes count from 0; places are shares of the image's sides, to six decimals."""

    shapes = (Shape.POLYGON, Shape.BOX)
    written: ClassVar[tuple[str, ...]] = ("data.yaml", "images", "labels")
    how_to_open = "yolo train data={out}/data.yaml"

    def image_path(self, image: FoundImage) -> str:
        """images/train/NAME, or val."""
        return f"images/{self._part(image)}/{image.name}"

    def add(self, image: FoundImage) -> bytes:
        """A line per object; an empty file says that there is none."""
        lines = [self._line(one, image) + "\n" for one in image.objects]
        path = file_below(self.plan.out, f"labels/{self._part(image)}/{image.stem}.txt")
        path.write_text("".join(lines), "utf-8")
        return encode({"part": self._part(image)})

    def finish(self, lines: Lines) -> None:
        """data.yaml. Without `path`, its own folder is what its paths are relative to."""
        content = {
            "train": "images/train",
            "val": "images/val",
            "names": {index: one.name for index, one in enumerate(self.plan.classes)},
        }
        for part in ("train", "val"):
            file_below(self.plan.out, f"images/{part}/x")
            file_below(self.plan.out, f"labels/{part}/x")
        text = yaml.safe_dump(content, allow_unicode=True, sort_keys=False)
        write_atomically(self.plan.out / "data.yaml", text.encode())

    def _part(self, image: FoundImage) -> str:
        return "val" if self.plan.is_val(image) else "train"

    def _line(self, one: FoundObject, image: FoundImage) -> str:
        if self.plan.shape is Shape.POLYGON:
            shares = (outline_of(one) / (image.width, image.height)).clip(0, 1).flatten().tolist()
        else:
            left, top, width, height = one.box_xywh
            shares = [
                (left + width / 2) / image.width,
                (top + height / 2) / image.height,
                width / image.width,
                height / image.height,
            ]
        return " ".join([str(one.class_index), *(f"{share:.6f}" for share in shares)])
