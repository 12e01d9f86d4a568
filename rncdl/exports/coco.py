"""COCO: a dataset, and the results file that belongs to it; FiftyOne's folder is one too."""

from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec
from pycocotools import mask as coco_mask

from rncdl.data.masks import rle_to_json
from rncdl.exports.outlines import outlines
from rncdl.exports.records import FoundImage, FoundObject, Placing, Shape
from rncdl.exports.writer import Lines, Writer, encode
from rncdl.files import json_list, write_atomically, writing_atomically


class _Line(msgspec.Struct):
    image: msgspec.Raw
    annotations: list[msgspec.Raw]
    results: list[msgspec.Raw]


class CocoWriter(Writer):
    """annotations/, results.json and images/, as COCO lays them out. Category ids count from 1."""

    shapes = (Shape.MASK, Shape.POLYGON, Shape.BOX)
    placings: ClassVar[tuple[Placing, ...]] = (Placing.LINK, Placing.COPY, Placing.LEAVE)
    written: ClassVar[tuple[str, ...]] = ("annotations", "results.json", "images")
    how_to_open: ClassVar[str] = (
        "{out}/annotations/instances_default.json with the images in {out}/images"
    )
    dataset_file: ClassVar[str] = "annotations/instances_default.json"
    images_dir: ClassVar[str] = "images"

    def image_path(self, image: FoundImage) -> str:
        """images/NAME."""
        return f"{self.images_dir}/{image.name}"

    def add(self, image: FoundImage) -> bytes:
        """The image's entry and its objects', as annotations and as results."""
        left = self.plan.placing is Placing.LEAVE
        return encode(
            {
                "image": {
                    "id": image.id,
                    "file_name": str(image.source) if left else image.name,
                    "width": image.width,
                    "height": image.height,
                },
                "annotations": [self._annotation(one, image) for one in image.objects],
                "results": [self._result(one, image) for one in image.objects],
            }
        )

    def finish(self, lines: Lines) -> None:
        """The dataset, which is passed over twice, for the images and for the annotations."""
        categories = [
            {
                "id": index,
                "name": one.name,
                "supercategory": "novel" if one.is_novel else "known",
                "clusters": one.clusters,
            }
            for index, one in enumerate(self.plan.classes, 1)
        ]
        with writing_atomically(self.plan.out / self.dataset_file) as file:
            file.write(b'{"images": ')
            file.writelines(json_list(line.image for line in _read(lines)))
            file.write(b',\n"annotations": ')
            file.writelines(json_list(one for line in _read(lines) for one in line.annotations))
            file.write(b',\n"categories": ')
            file.writelines(json_list(map(encode, categories)))
            file.write(b"}\n")
        self.finish_results(lines)

    def finish_results(self, lines: Lines) -> None:
        """The results file."""
        with writing_atomically(self.plan.out / "results.json") as file:
            file.writelines(json_list(one for line in _read(lines) for one in line.results))
            file.write(b"\n")

    def _annotation(self, one: FoundObject, image: FoundImage) -> dict[str, Any]:
        entry = {"id": one.id, **self._result(one, image), "iscrowd": 0}
        with_mask = one.rle is not None and self.plan.shape is not Shape.BOX
        if one.rle is not None and self.plan.shape is Shape.POLYGON:
            entry["segmentation"] = [part.flatten().tolist() for part in outlines(one.rle)]
        width, height = one.box_xywh[2:]
        entry["area"] = float(coco_mask.area(one.rle)) if with_mask else width * height
        return entry

    def _result(self, one: FoundObject, image: FoundImage) -> dict[str, Any]:
        """Masks are run lengths here: COCO's tools take no polygons in results."""
        entry: dict[str, Any] = {
            "image_id": image.id,
            "category_id": one.class_index + 1,
            "bbox": one.box_xywh,
            "score": one.score,
            "cluster": one.cluster,
        }
        if one.rle is not None and self.plan.shape is not Shape.BOX:
            entry["segmentation"] = rle_to_json(one.rle)
        return entry


class FiftyOneWriter(CocoWriter):
    """labels.json and data/, the layout of FiftyOne's COCODetectionDataset."""

    placings = (Placing.LINK, Placing.COPY)
    written = ("labels.json", "data", "open_in_fiftyone.py")
    how_to_open = "python {out}/open_in_fiftyone.py"
    dataset_file = "labels.json"
    images_dir = "data"

    def finish_results(self, lines: Lines) -> None:
        """A script that opens the dataset, in place of results: scores are in the dataset."""
        label_types = "detections" if self.plan.shape is Shape.BOX else "segmentations"
        script = _OPENING_SCRIPT.format(label_types=label_types)
        write_atomically(self.plan.out / "open_in_fiftyone.py", script.encode())


_OPENING_SCRIPT = """\
from pathlib import Path

import fiftyone as fo

dataset = fo.Dataset.from_dir(
    dataset_dir=str(Path(__file__).parent),
    dataset_type=fo.types.COCODetectionDataset,
    label_types="{label_types}",
    extra_attrs=True,
)
if __name__ == "__main__":
    fo.launch_app(dataset).wait()
"""


def _read(lines: Lines) -> Iterator[_Line]:
    decode = msgspec.json.Decoder(_Line).decode
    return map(decode, lines())
