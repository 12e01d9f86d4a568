"""Made-up truth and detections for the evaluation's tests, and the official packages' verdicts."""

import contextlib
import dataclasses
import io
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from rncdl.data.records import AnnotationSet, Category, ImageRecord
from rncdl.evaluation.average_precision import GroupAP
from rncdl.prediction.detections import Detections

HEIGHT, WIDTH = 180, 200
UNJUDGED = -1
"""Number of classes in a verdict: the official packages do not tell it."""
Annotation = dict[str, Any]


def make_truth(
    annotations: Sequence[Annotation],
    *,
    num_images: int,
    num_classes: int,
    negative: dict[int, tuple[int, ...]] | None = None,
    partial: dict[int, tuple[int, ...]] | None = None,
    is_federated: bool = True,
) -> AnnotationSet:
    """Annotations {image, category, box_xyxy, area?, crowd?}; category ids count from 1.

    Masks are trapezia inside the boxes.
    """
    annotations = sorted(annotations, key=lambda annotation: annotation["image"])
    boxes = np.array([a["box_xyxy"] for a in annotations], dtype=np.float64).reshape(-1, 4)
    sides = boxes[:, 2:] - boxes[:, :2]
    areas = [a.get("area", sides[i].prod()) for i, a in enumerate(annotations)]
    # Ids fall while the position rises, so that taking one for the other shows.
    images = [
        ImageRecord(
            id=10 + num_images - i,
            path=Path(f"{i}.jpg"),
            height=HEIGHT,
            width=WIDTH,
            neg_category_ids=(negative or {}).get(i, ()),
            not_exhaustive_category_ids=(partial or {}).get(i, ()),
        )
        for i in range(num_images)
    ]
    return AnnotationSet(
        images=tuple(images),
        categories=tuple(
            Category(id=c + 1, name=f"class {c + 1}", frequency="rcf"[c % 3])
            for c in range(num_classes)
        ),
        annotation_ids=np.arange(1, len(annotations) + 1),
        image_index=np.array([a["image"] for a in annotations], dtype=np.int64),
        category_ids=np.array([a["category"] for a in annotations], dtype=np.int64),
        boxes_xyxy=boxes,
        areas=np.array(areas, dtype=np.float64),
        is_crowd=np.array([a.get("crowd", False) for a in annotations], dtype=bool),
        segmentations=[json.dumps([_trapezium(box)]).encode() for box in boxes.tolist()],
        is_federated=is_federated,
    )


def make_detections(
    truth: AnnotationSet, entries: Sequence[tuple[int, int, float, Sequence[float]]]
) -> Detections:
    """Entries (image position, category, score, box_xyxy); masks are trapezia inside the boxes."""
    boxes = np.array([entry[3] for entry in entries], dtype=np.float64).reshape(-1, 4)
    polygons = [_trapezium(box) for box in boxes.tolist()]
    return Detections(
        image_ids=np.array([truth.images[entry[0]].id for entry in entries], dtype=np.int64),
        category_ids=np.array([entry[1] for entry in entries], dtype=np.int64),
        scores=np.array([entry[2] for entry in entries], dtype=np.float64),
        boxes_xyxy=boxes,
        rles=[coco_mask.frPyObjects([polygon], HEIGHT, WIDTH)[0] for polygon in polygons],
    )


def random_case(
    seed: int,
    *,
    num_images: int = 12,
    num_classes: int = 8,
    annotations_per_image: int = 10,
    detections_per_image: int = 60,
    tied_scores: bool = False,
    is_federated: bool = True,
) -> tuple[AnnotationSet, Detections]:
    """Crowded integer boxes with crowds, file areas unlike the boxes', and all federated lists."""
    rng = np.random.default_rng(seed)
    classes = np.arange(1, num_classes + 1)
    annotations: list[Annotation] = []
    negative, partial = {}, {}
    for image in range(num_images):
        present = rng.choice(classes, size=num_classes // 2, replace=False)
        for _ in range(annotations_per_image):
            box = _random_box(rng)
            shrink = rng.uniform(0.3, 1.0)
            annotations.append(
                {
                    "image": image,
                    "category": int(rng.choice(present)),
                    "box_xyxy": box,
                    "area": shrink * (box[2] - box[0]) * (box[3] - box[1]),
                    "crowd": bool(rng.random() < 0.15),
                }
            )
        absent = np.setdiff1d(classes, present)
        negative[image] = tuple(rng.choice(absent, size=len(absent) // 2, replace=False).tolist())
        partial[image] = tuple(rng.choice(present, size=1).tolist())
    truth = make_truth(
        annotations,
        num_images=num_images,
        num_classes=num_classes,
        negative=negative,
        partial=partial,
        is_federated=is_federated,
    )
    entries = []
    for image in range(num_images):
        rows = truth.rows_of_image(image)
        for _ in range(detections_per_image):
            score = float(rng.integers(1, 8) / 8 if tied_scores else rng.random())
            if rng.random() < 0.6:
                row = int(rng.integers(rows.start, rows.stop))
                jitter = rng.integers(-6, 7, size=4)
                box = _inside(truth.boxes_xyxy[row] + jitter)
                entries.append((image, int(truth.category_ids[row]), score, box))
            else:
                entries.append((image, int(rng.choice(classes)), score, _random_box(rng)))
    order = rng.permutation(len(entries))
    return truth, make_detections(truth, [entries[i] for i in order])


def lvis_verdict(
    truth: AnnotationSet, detections: Detections, *, iou_type: Literal["bbox", "segm"]
) -> GroupAP:
    """What the official `lvis` package says, over all classes. It cannot do without detections."""
    if not hasattr(np, "float"):
        np.float = float  # type: ignore[attr-defined]  # lvis 0.5.3 was written for numpy 1
    from lvis import LVIS, LVISEval, LVISResults

    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(dataset_json(truth), file)
        file.flush()
        official = LVIS(file.name)
    results = LVISResults(official, _results_json(detections, iou_type))
    evaluation = LVISEval(official, results, iou_type)
    evaluation.run()
    found = evaluation.get_results()
    names = ("AP", "AP50", "AP75", "APs", "APm", "APl", "APr", "APc", "APf", "AR@300")
    fields = [field.name for field in dataclasses.fields(GroupAP) if field.name != "num_classes"]
    values = {
        field: None if found[name] == -1 else float(found[name])
        for field, name in zip(fields, names, strict=True)
    }
    return GroupAP(**values, num_classes=UNJUDGED)


def coco_verdict(
    truth: AnnotationSet, detections: Detections, *, iou_type: Literal["bbox", "segm"]
) -> GroupAP:
    """What pycocotools says, over all classes; frequencies are not its subject."""
    with contextlib.redirect_stdout(io.StringIO()):
        official = COCO()
        official.dataset = dataset_json(truth)
        official.createIndex()
        results = official.loadRes(_results_json(detections, iou_type))
        evaluation = COCOeval(official, results, iou_type)
        evaluation.params.maxDets = [1, 10, 300]
        evaluation.evaluate()
        evaluation.accumulate()

    def mean(values: np.ndarray) -> float | None:
        defined = values[values > -1]
        return float(defined.mean()) if len(defined) else None

    precision = evaluation.eval["precision"][..., 2]
    return GroupAP(
        ap=mean(precision[..., 0]),
        ap50=mean(precision[0, ..., 0]),
        ap75=mean(precision[5, ..., 0]),
        ap_small=mean(precision[..., 1]),
        ap_medium=mean(precision[..., 2]),
        ap_large=mean(precision[..., 3]),
        ap_rare=mean(precision[:, :, 0::3, 0]),
        ap_common=mean(precision[:, :, 1::3, 0]),
        ap_frequent=mean(precision[:, :, 2::3, 0]),
        average_recall=mean(evaluation.eval["recall"][:, :, 0, 2]),
        num_classes=UNJUDGED,
    )


def dataset_json(truth: AnnotationSet) -> dict[str, Any]:
    """The truth as an LVIS file (which is a COCO file with more fields)."""
    boxes = truth.boxes_xyxy.copy()
    boxes[:, 2:] -= boxes[:, :2]
    return {
        "images": [
            {
                "id": image.id,
                "height": image.height,
                "width": image.width,
                "neg_category_ids": list(image.neg_category_ids),
                "not_exhaustive_category_ids": list(image.not_exhaustive_category_ids),
            }
            for image in truth.images
        ],
        "categories": [
            {"id": c.id, "name": c.name, "frequency": c.frequency} for c in truth.categories
        ],
        "annotations": [
            {
                "id": int(truth.annotation_ids[row]),
                "image_id": truth.images[truth.image_index[row]].id,
                "category_id": int(truth.category_ids[row]),
                "bbox": boxes[row].tolist(),
                "area": float(truth.areas[row]),
                "iscrowd": int(truth.is_crowd[row]),
                "segmentation": json.loads(truth.segmentations[row] or b""),
            }
            for row in range(len(truth.annotation_ids))
        ],
    }


def _results_json(detections: Detections, iou_type: str) -> list[dict[str, Any]]:
    """Without boxes where masks are judged: both packages would take the areas from the boxes."""
    boxes = detections.boxes_xyxy.copy()
    boxes[:, 2:] -= boxes[:, :2]
    return [
        {
            "image_id": int(detections.image_ids[row]),
            "category_id": int(detections.category_ids[row]),
            "score": float(detections.scores[row]),
            **(
                {"bbox": boxes[row].tolist()}
                if iou_type == "bbox"
                else {"segmentation": (detections.rles or [])[row]}
            ),
        }
        for row in range(len(detections))
    ]


def _random_box(rng: np.random.Generator) -> list[int]:
    side = rng.choice([20, 60, 120])
    width, height = rng.integers(side // 2, side, size=2)
    x, y = rng.integers(0, WIDTH - width), rng.integers(0, HEIGHT - height)
    return [int(x), int(y), int(x + width), int(y + height)]


def _inside(box_xyxy: np.ndarray) -> list[int]:
    x1, y1, x2, y2 = (int(value) for value in box_xyxy)
    x1, y1 = min(max(x1, 0), WIDTH - 2), min(max(y1, 0), HEIGHT - 2)
    return [x1, y1, min(max(x2, x1 + 1), WIDTH), min(max(y2, y1 + 1), HEIGHT)]


def _trapezium(box_xyxy: Sequence[float]) -> list[float]:
    x1, y1, x2, y2 = box_xyxy
    return [x1, y1, x1, y2, x2, y2, (x1 + x2) / 2, y1]
