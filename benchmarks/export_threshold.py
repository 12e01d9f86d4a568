"""Which `--min-score` should an export have? What is kept at several, and how much of it is right.

`python benchmarks/export_threshold.py VAL PREDICTIONS CLASSES`: a file with all annotations, the
`predictions_head0_paper.json` of `rncdl evaluate` on it (clusters stand for the classes that they
were assigned to), and the run's `classes.json`. What overlaps is left out as in an export.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from rncdl.data.annotation_file import read_json
from rncdl.gallery.drawings import choose_shown
from rncdl.inputs import load_dataset

THRESHOLDS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
MIN_IOU = 0.5


class Detection(msgspec.Struct):
    """An entry of COCO results."""

    image_id: int
    category_id: int
    bbox: tuple[float, float, float, float]
    score: float


@dataclass
class Tally:
    """Of one threshold, and of known or novel classes."""

    truth: int = 0
    exported: int = 0
    on_object: int = 0
    """exported detections that lie on an object of any class, one for each object"""
    right_class: int = 0
    """those of them whose object has their class"""

    def cells(self) -> str:
        exported = max(self.exported, 1)
        shares = (
            self.on_object / exported,
            self.right_class / exported,
            self.right_class / max(self.truth, 1),
        )
        return f"{self.exported} | " + " | ".join(f"{share:.2f}" for share in shares)


def ious(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(n, m) of two sets of boxes x1, y1, x2, y2."""
    lower = np.maximum(boxes[:, None, :2], others[None, :, :2])
    upper = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    shared = (upper - lower).clip(0).prod(2)
    areas = [(one[:, 2:] - one[:, :2]).prod(1) for one in (boxes, others)]
    return shared / (areas[0][:, None] + areas[1][None] - shared)


def matched(boxes: np.ndarray, classes: np.ndarray, truth: np.ndarray, of: np.ndarray) -> list[int]:
    """The object that each detection, from the best, is given: -1 for none, each object once.

    Among free objects that overlap enough, those of the detection's class come first.
    """
    overlap = ious(boxes, truth)
    free = np.ones(len(truth), dtype=bool)
    given = []
    for row in range(len(boxes)):
        good = np.where(free & (overlap[row] >= MIN_IOU), overlap[row], -1.0)
        good = good + (good > 0) * (of == classes[row])
        best = int(good.argmax()) if len(good) and good.max() > 0 else -1
        if best >= 0:
            free[best] = False
        given.append(best)
    return given


def tally(
    detections: Sequence[Detection], truth: tuple[np.ndarray, np.ndarray], known: set[int]
) -> dict[tuple[float, bool], Tally]:
    """Of one image, by threshold and whether the class is novel."""
    boxes = np.array([one.bbox for one in detections], dtype=float).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    classes = np.array([one.category_id for one in detections], dtype=int)
    scores = np.array([one.score for one in detections])
    found = {}
    for threshold in THRESHOLDS:
        kept = choose_shown(boxes, scores, min_score=threshold)
        kept = kept[np.argsort(-scores[kept], kind="stable")]
        given = matched(boxes[kept], classes[kept], *truth)
        for novel in (False, True):
            rows = [
                (int(row), obj)
                for row, obj in zip(kept, given, strict=True)
                if (classes[row] not in known) == novel
            ]
            found[threshold, novel] = Tally(
                truth=sum((int(one) not in known) == novel for one in truth[1]),
                exported=len(rows),
                on_object=sum(obj >= 0 for _, obj in rows),
                right_class=sum(obj >= 0 and truth[1][obj] == classes[row] for row, obj in rows),
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("val", "predictions", "classes"):
        parser.add_argument(name, type=Path)
    options = parser.parse_args()
    labels = load_dataset(options.val, None, shown=False)
    names = {one.name: one.id for one in labels.categories}
    known = {names[name] for name in json.loads(options.classes.read_text())["known"]}
    by_image: dict[int, list[Detection]] = {}
    for one in read_json(options.predictions, list[Detection], expected="COCO results"):
        by_image.setdefault(one.image_id, []).append(one)
    totals = {(t, novel): Tally() for t in THRESHOLDS for novel in (False, True)}
    for index, image in enumerate(labels.images):
        rows = labels.rows_of_image(index)
        truth = labels.boxes_xyxy[rows], labels.category_ids[rows]
        for key, part in tally(by_image.get(image.id, []), truth, known).items():
            for field in ("truth", "exported", "on_object", "right_class"):
                setattr(totals[key], field, getattr(totals[key], field) + getattr(part, field))
    print("| --min-score | classes | exported | on an object | right class | objects found |")
    print("|---:|---|---:|---:|---:|---:|")
    for (threshold, novel), total in totals.items():
        print(f"| {threshold} | {'novel' if novel else 'known'} | {total.cells()} |")


if __name__ == "__main__":
    main()
