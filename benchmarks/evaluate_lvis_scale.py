"""Box and mask AP beside the official `lvis` package: seconds, peak memory, and the same numbers.

Made-up federated data: 2,000 images, 1,203 classes, 12 annotations and 300 detections per image
(`--images` changes the first). Both sides read the same files, each in a process of its own; the
time is that of the evaluation without the reading, the memory that of the whole process.

    python benchmarks/evaluate_lvis_scale.py
"""

import argparse
import json
import logging
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

NUM_CLASSES = 1203
ANNOTATIONS_PER_IMAGE = 12
DETECTIONS_PER_IMAGE = 300
PRESENT_CLASSES, ABSENT_CLASSES = 4, 10
"""Per image; LVIS val has about 3 annotated and 9 listed as absent."""
HEIGHT, WIDTH = 480, 640
COLUMNS = ("rncdl s", "lvis s", "ratio", "rncdl MB", "lvis MB", "AP gap")
NAMES = ("AP", "AP50", "AP75", "APs", "APm", "APl", "APr", "APc", "APf", "AR@300")


def main() -> None:
    """Make the data, measure both sides on it, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        side, iou_type, folder = arguments.measure
        measure = {"rncdl": measure_rncdl, "lvis": measure_lvis}[side]
        seconds, values = measure(Path(folder), iou_type)
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"seconds": seconds, "peak_mb": peak_mb, "values": values}))
        return
    with tempfile.TemporaryDirectory() as folder:
        make_files(Path(folder), num_images=arguments.images)
        print(f"{arguments.images} images, {DETECTIONS_PER_IMAGE} detections each")
        print(f"{'':6}" + "".join(f"{name:>10}" for name in COLUMNS))
        for iou_type in ("bbox", "segm"):
            ours, official = (run(side, iou_type, folder) for side in ("rncdl", "lvis"))
            gap = max(abs(a - b) for a, b in zip(ours["values"], official["values"], strict=True))
            print(
                f"{iou_type:6}{ours['seconds']:10.2f}{official['seconds']:10.2f}"
                f"{ours['seconds'] / official['seconds']:10.3f}{ours['peak_mb']:10.0f}"
                f"{official['peak_mb']:10.0f}{gap:10.1e}",
                flush=True,
            )


def run(side: str, iou_type: str, folder: str) -> dict[str, Any]:
    """Seconds, peak MB and the ten numbers, measured in a process of its own."""
    command = [sys.executable, __file__, "--measure", side, iou_type, folder]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    return json.loads(output.splitlines()[-1])


def measure_rncdl(folder: Path, iou_type: Any) -> tuple[float, list[float]]:
    """Seconds of the evaluation and the ten numbers, by this package."""
    from rncdl.data.annotations import load_annotations
    from rncdl.evaluation.average_precision import evaluate_detections
    from rncdl.prediction.detections import read_detections

    truth = load_annotations(folder / "truth.json").annotations
    detections = read_detections(folder / f"{iou_type}.json", images=truth.images)
    start = time.perf_counter()
    result = evaluate_detections(truth, detections, iou_type=iou_type, known_category_ids=[1])
    seconds = time.perf_counter() - start
    g = result.all
    values = (g.ap, g.ap50, g.ap75, g.ap_small, g.ap_medium, g.ap_large, g.ap_rare, g.ap_common)
    return seconds, [float(v or 0) for v in (*values, g.ap_frequent, g.average_recall)]


def measure_lvis(folder: Path, iou_type: str) -> tuple[float, list[float]]:
    """The same by the `lvis` package."""
    np.float = float  # type: ignore[attr-defined]  # lvis 0.5.3 was written for numpy 1
    from lvis import LVIS, LVISEval, LVISResults

    logging.disable()
    truth = LVIS(str(folder / "truth.json"))
    detections = LVISResults(truth, str(folder / f"{iou_type}.json"))
    start = time.perf_counter()
    evaluation = LVISEval(truth, detections, iou_type)
    evaluation.run()
    seconds = time.perf_counter() - start
    return seconds, [float(evaluation.get_results()[name]) for name in NAMES]


def make_files(folder: Path, *, num_images: int) -> None:
    """truth.json, bbox.json (detections with boxes only) and segm.json (with masks only)."""
    rng = np.random.default_rng(0)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    detections: list[dict[str, Any]] = []
    for image_id in range(1, num_images + 1):
        listed = 1 + rng.choice(NUM_CLASSES, PRESENT_CLASSES + ABSENT_CLASSES, replace=False)
        present, absent = listed[:PRESENT_CLASSES], listed[PRESENT_CLASSES:]
        images.append(
            {
                "id": image_id,
                "file_name": f"{image_id}.jpg",
                "height": HEIGHT,
                "width": WIDTH,
                "neg_category_ids": absent.tolist(),
                "not_exhaustive_category_ids": present[: image_id % 2].tolist(),
            }
        )
        boxes = random_boxes_xywh(rng, ANNOTATIONS_PER_IMAGE)
        classes = rng.choice(present, ANNOTATIONS_PER_IMAGE)
        for box, category_id in zip(boxes, classes.tolist(), strict=True):
            polygon = ellipse(box)
            rle = coco_mask.frPyObjects([polygon], HEIGHT, WIDTH)[0]
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image_id,
                    "category_id": category_id,
                    "bbox": box.tolist(),
                    "area": float(coco_mask.area(rle)),
                    "segmentation": [polygon],
                }
            )
        detections.extend(detect(rng, image_id, boxes, classes))
    categories = [
        {"id": c, "name": f"class {c}", "synset": f"{c}.n.01", "frequency": "rcf"[c % 3]}
        for c in range(1, NUM_CLASSES + 1)
    ]
    truth = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "truth.json").write_text(json.dumps(truth))
    for name, dropped in (("bbox", "segmentation"), ("segm", "bbox")):
        entries = [{k: v for k, v in entry.items() if k != dropped} for entry in detections]
        (folder / f"{name}.json").write_text(json.dumps(entries))


def detect(
    rng: np.random.Generator, image_id: int, boxes_xywh: np.ndarray, classes: np.ndarray
) -> list[dict[str, Any]]:
    """Two fifths lie near an annotation, most of these with its class; the others anywhere."""
    near = rng.integers(len(boxes_xywh), size=DETECTIONS_PER_IMAGE * 2 // 5)
    moved = boxes_xywh[near] * rng.normal(1, 0.08, size=(len(near), 4))
    right = np.where(rng.random(len(near)) < 0.7, classes[near], 1)
    far = DETECTIONS_PER_IMAGE - len(near)
    boxes = np.concatenate([moved, random_boxes_xywh(rng, far)])
    boxes[:, :2] = np.clip(boxes[:, :2], 0, [WIDTH - 8, HEIGHT - 8])
    boxes[:, 2:] = np.clip(boxes[:, 2:], 4, [WIDTH, HEIGHT] - boxes[:, :2])
    labels = np.concatenate([right, rng.integers(1, NUM_CLASSES + 1, size=far)])
    rles = coco_mask.frPyObjects([ellipse(box) for box in boxes], HEIGHT, WIDTH)
    return [
        {
            "image_id": image_id,
            "category_id": label,
            "score": score,
            "bbox": box,
            "segmentation": {"size": rle["size"], "counts": rle["counts"].decode()},
        }
        for label, score, box, rle in zip(
            labels.tolist(), rng.random(len(boxes)).tolist(), boxes.tolist(), rles, strict=True
        )
    ]


def random_boxes_xywh(rng: np.random.Generator, num: int) -> np.ndarray:
    """(num, 4) boxes of all sizes inside the image."""
    sides = np.exp(rng.uniform(np.log(8), np.log(300), size=(num, 2)))
    corners = rng.random((num, 2)) * ([WIDTH, HEIGHT] - sides)
    return np.concatenate([corners, sides], axis=1)


def ellipse(box_xywh: np.ndarray) -> list[float]:
    """A polygon of 24 corners that fills the box."""
    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    corners = np.stack([np.cos(angles), np.sin(angles)], axis=1) / 2 + 0.5
    return (box_xywh[:2] + corners * box_xywh[2:]).round(2).flatten().tolist()


if __name__ == "__main__":
    main()
