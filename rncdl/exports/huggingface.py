"""Hugging Face: a folder of images with metadata.jsonl, which `datasets.load_dataset` reads."""

from typing import Any, ClassVar

import yaml
from pycocotools import mask as coco_mask

from rncdl.data.masks import rle_to_json
from rncdl.exports.outlines import outlines
from rncdl.exports.records import FoundImage, FoundObject, Shape
from rncdl.exports.writer import Lines, Writer, encode
from rncdl.files import write_atomically, writing_atomically

_CARD_TEXT = """\
Detections of `rncdl`: known classes and discovered ones. `objects.cluster` is -1 for known classes.

```python
from datasets import load_dataset, load_dataset_builder

path = {path}  # this folder
features = load_dataset_builder(path).info.features
dataset = load_dataset(path, features=features, split="train")
names = features["objects"]["category"].feature.names
```
"""


class HuggingFaceWriter(Writer):
    """metadata.jsonl, images/, and the card with the names of the classes.

    Every image has `objects`, a record of lists as in the object-detection datasets of the hub;
    boxes are x, y, width, height in pixels. `load_dataset` takes the types of a folder's columns
    from its lines; the card's code gives it the card's, in which classes have names.
    """

    shapes = (Shape.MASK, Shape.POLYGON, Shape.BOX)
    written: ClassVar[tuple[str, ...]] = ("metadata.jsonl", "README.md", "images")
    how_to_open = "{out}, with the lines of Python in {out}/README.md"

    def image_path(self, image: FoundImage) -> str:
        """images/NAME."""
        return f"images/{image.name}"

    def add(self, image: FoundImage) -> bytes:
        """The image's line."""
        return encode(
            {
                "file_name": self.image_path(image),
                "image_id": image.id,
                "width": image.width,
                "height": image.height,
                "objects": self._objects(image),
            }
        )

    def finish(self, lines: Lines) -> None:
        """The lines in one file, and the card."""
        with writing_atomically(self.plan.out / "metadata.jsonl") as file:
            file.writelines(line + b"\n" for line in lines())
        head = yaml.safe_dump(
            {"task_categories": ["object-detection"], "dataset_info": {"features": self._card()}},
            allow_unicode=True,
            sort_keys=False,
        )
        name = repr(self.plan.out.resolve().name)
        text = f"---\n{head}---\n\n{_CARD_TEXT.format(path=name)}"
        write_atomically(self.plan.out / "README.md", text.encode())

    def _objects(self, image: FoundImage) -> dict[str, list[Any]]:
        with_mask = self.plan.shape is not Shape.BOX
        columns: dict[str, list[Any]] = {
            "id": [one.id for one in image.objects],
            "bbox": [one.box_xywh for one in image.objects],
            "area": [_area(one, with_mask=with_mask) for one in image.objects],
            "category": [one.class_index for one in image.objects],
            "score": [one.score for one in image.objects],
            # No null: pyarrow's JSON reader moves those at the beginning of a list to its end.
            "cluster": [-1 if one.cluster is None else one.cluster for one in image.objects],
        }
        if with_mask:
            columns["segmentation"] = [self._segmentation(one) for one in image.objects]
        return columns

    def _segmentation(self, one: FoundObject) -> Any:
        assert one.rle is not None
        if self.plan.shape is Shape.MASK:
            return rle_to_json(one.rle)
        return [part.flatten().tolist() for part in outlines(one.rle)]

    def _card(self) -> list[dict[str, Any]]:
        """The types of all columns; the names of the classes stand nowhere else."""
        names = {str(index): one.name for index, one in enumerate(self.plan.classes)}
        objects: list[dict[str, Any]] = [
            {"name": "id", "list": "int64"},
            {"name": "bbox", "list": {"list": "float64"}},
            {"name": "area", "list": "float64"},
            {"name": "category", "list": {"dtype": {"class_label": {"names": names}}}},
            {"name": "score", "list": "float64"},
            {"name": "cluster", "list": "int64"},
        ]
        if self.plan.shape is Shape.MASK:
            parts = [
                {"name": "size", "list": "int64"},
                {"name": "counts", "dtype": "string"},
            ]
            objects.append({"name": "segmentation", "list": parts})
        elif self.plan.shape is Shape.POLYGON:
            polygons = {"list": {"list": "float64"}}
            objects.append({"name": "segmentation", "list": polygons})
        return [
            {"name": "image", "dtype": "image"},
            {"name": "image_id", "dtype": "int64"},
            {"name": "width", "dtype": "int64"},
            {"name": "height", "dtype": "int64"},
            {"name": "objects", "struct": objects},
        ]


def _area(one: FoundObject, *, with_mask: bool) -> float:
    width, height = one.box_xywh[2:]
    return float(coco_mask.area(one.rle)) if with_mask and one.rle is not None else width * height
