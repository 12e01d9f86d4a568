"""Exports read by other people's code, in that code's own environment: rncdl is not imported here.

`python export_readers.py READER FOLDER` prints one JSON list of objects: image, label, box (left,
top, right, bottom in pixels), and polygon, mask or score where the reader gives them.
"""

import base64
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np


def entry(image: str, label: str, box: Any, **more: Any) -> dict[str, Any]:
    return {"image": Path(image).stem, "label": label, "box": [float(side) for side in box], **more}


def packed(mask: np.ndarray) -> dict[str, Any]:
    bits = np.packbits(np.asarray(mask, dtype=bool))
    return {"shape": list(mask.shape), "bits": base64.b64encode(bits.tobytes()).decode()}


def corners(box_xywh: Any) -> list[float]:
    left, top, width, height = map(float, box_xywh)
    return [left, top, left + width, top + height]


def read_datumaro(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    import datumaro
    from datumaro.components.annotation import AnnotationType

    dataset = datumaro.Dataset.import_from(str(folder), name)
    labels = [one.name for one in dataset.categories()[AnnotationType.label].items]
    for item in dataset:
        # COCO's boxes come beside masks; trainval repeats the two other parts.
        kinds = {one.type for one in item.annotations}
        if item.subset == "trainval":
            continue
        for one in item.annotations:
            if one.type is AnnotationType.bbox and len(kinds) > 1:
                continue
            more: dict[str, Any] = {}
            if one.type is AnnotationType.polygon:
                more["polygon"] = [float(number) for number in one.points]
            elif one.type is AnnotationType.mask:
                more["mask"] = packed(one.image)
            yield entry(f"{item.id}.x", labels[one.label], corners(one.get_bbox()), **more)


def read_label_studio(folder: Path) -> Iterator[dict[str, Any]]:
    """The SDK's validator, its converter to COCO for boxes and polygons, its brush decoder."""
    from label_studio_sdk.converter import Converter, brush
    from label_studio_sdk.label_interface import LabelInterface

    interface = LabelInterface((folder / "label_config.xml").read_text("utf-8"))
    tasks = json.loads((folder / "tasks.json").read_text("utf-8"))
    for task in tasks:
        for prediction in task["predictions"]:
            errors = interface.validate_prediction(prediction, return_errors=True)
            if errors:
                raise ValueError(f"label-studio-sdk refuses a prediction: {errors}")
    if "<BrushLabels" in interface._config:
        for task in tasks:
            for result in task["predictions"][0]["result"]:
                size = result["original_height"], result["original_width"]
                mask = np.reshape(brush.decode_rle(result["value"]["rle"]), (*size, 4))[:, :, 3] > 0
                rows, columns = np.nonzero(mask)
                box = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
                label, score = result["value"]["brushlabels"][0], result["score"]
                yield entry(task["data"]["file"], label, box, mask=packed(mask), score=score)
        return
    for number, task in enumerate(tasks, 1):
        task["id"] = number
        result = task.pop("predictions")[0]["result"]
        task["annotations"] = [{"id": number, "result": result, "was_cancelled": False}]
    submitted, out = folder.parent / "submitted.json", folder.parent / "converted"
    submitted.write_text(json.dumps(tasks))
    converter = Converter(interface._config, project_dir=None, download_resources=False)
    converter.convert_to_coco(
        str(submitted), str(out), output_image_dir=str(out / "images"), is_dir=False
    )
    content = json.loads((out / "result.json").read_text())
    names = {one["id"]: one["name"] for one in content["categories"]}
    # The converter numbers images in the order of the tasks.
    for one in content["annotations"]:
        polygons = one["segmentation"]
        more = {"polygon": polygons[0]} if polygons else {}
        image = tasks[one["image_id"]]["data"]["file"]
        yield entry(image, names[one["category_id"]], corners(one["bbox"]), **more)


def read_fiftyone(folder: Path) -> Iterator[dict[str, Any]]:
    """FiftyOne's importer, without the database that its datasets live in."""
    from fiftyone.utils.coco import COCODetectionDatasetImporter

    importer = COCODetectionDatasetImporter(
        dataset_dir=str(folder), label_types="segmentations", extra_attrs=True
    )
    with importer:
        for path, size, labels in importer:
            sides = np.array([size.width, size.height])
            for one in labels.detections if labels is not None else ():
                place = np.array(one.bounding_box).reshape(2, 2) * sides
                left, top = place[0].round().astype(int)
                mask = np.zeros((size.height, size.width), dtype=bool)
                height, width = one.mask.shape
                mask[top : top + height, left : left + width] = one.mask
                box = corners(place.ravel())
                yield entry(path, one.label, box, mask=packed(mask), score=one.confidence)


def read_ultralytics(folder: Path, task: str) -> Iterator[dict[str, Any]]:
    """Ultralytics' checker of data.yaml, and its dataset, which verifies images and labels."""
    from ultralytics.data.dataset import YOLODataset
    from ultralytics.data.utils import check_det_dataset

    data = check_det_dataset(str(folder / "data.yaml"), autodownload=False)
    for part in ("train", "val"):
        dataset = YOLODataset(img_path=data[part], data=data, task=task, augment=False)
        for image in dataset.get_labels():
            height, width = image["shape"]
            sides = np.array([width, height])
            for row, (number, share) in enumerate(
                zip(image["cls"].ravel(), image["bboxes"], strict=True)
            ):
                centre, size = share.reshape(2, 2) * sides
                box = [*(centre - size / 2), *(centre + size / 2)]
                more = {}
                if image["segments"]:
                    points = image["segments"][row] * sides
                    more["polygon"] = points.ravel().astype(float).tolist()
                yield entry(image["im_file"], data["names"][int(number)], box, **more)


def read(reader: str, folder: Path) -> Iterator[dict[str, Any]]:
    package, _, name = reader.partition(":")
    if package == "datumaro":
        return read_datumaro(folder, name)
    if package == "ultralytics":
        return read_ultralytics(folder, name)
    return read_fiftyone(folder) if package == "fiftyone" else read_label_studio(folder)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    found = list(read(sys.argv[1], Path(sys.argv[2])))
    print("\n" + json.dumps(found))
