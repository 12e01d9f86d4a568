"""How many objects are among an image's best 100 regions, ranked by which score, after which NMS?

`python benchmarks/region_recall.py RUN VAL [--regions 300] [--images 500]`

Regions are the RPN's, refined as `rncdl predict` does it. Each class-free score ranks them: the
RPN's objectness, the predicted IoU, the trained classifier's foreground, and geometric means of
these. Recall at IoU 0.5 of known and of novel objects, which are read for judging alone.
"""

import argparse
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch
from torch import Tensor
from torchvision.ops import box_iou, nms

from rncdl.data.annotations import load_annotations
from rncdl.data.samples import to_original_pixels
from rncdl.detector.locating import locate
from rncdl.detector.model import Detector, ImageBatch
from rncdl.evaluation.ap_tables import markdown_table
from rncdl.models import load_detector
from rncdl.prediction.inference import limits_of, load_batches
from rncdl.run_folder import RunFolder
from rncdl.training.processes import join_processes

BEST = 100
SAME_OBJECT_IOU = 0.5
OVERLAPS = (None, 0.7, 0.5)
"""Above which a region is dropped beside a better one; None: none is."""
GROUPS = ("known", "novel")


def class_free_scores(
    detector: Detector, maps: list[Tensor], boxes: list[Tensor], objectness: list[Tensor]
) -> dict[str, list[Tensor]]:
    """Name -> score (r,) of each image's regions, higher for objects."""
    counts = [len(own) for own in boxes]
    features = detector.region_features(maps, boxes)
    rpn = torch.cat(objectness).sigmoid()
    foreground = 1 - detector.known_head(features).softmax(1)[:, -1]
    scores = {
        "objectness": rpn,
        "foreground": foreground,
        "objectness, foreground": (rpn * foreground).sqrt(),
    }
    fits = detector.predict_iou(features)
    if fits is not None:
        scores["predicted IoU"] = fits
        scores["objectness, predicted IoU"] = (rpn * fits).sqrt()
        scores["all three"] = (rpn * fits * foreground) ** (1 / 3)
    return {name: list(values.split(counts)) for name, values in scores.items()}


def best_regions(boxes: Tensor, scores: Tensor, overlap: float | None) -> Tensor:
    """Rows of the best regions."""
    order = scores.argsort(descending=True) if overlap is None else nms(boxes, scores, overlap)
    return order[:BEST]


@torch.inference_mode()
def measure(run: RunFolder, val: Path, *, regions: int, images: int) -> str:
    """The table of recalls."""
    settings, split = run.settings(), run.split()
    truth = load_annotations(val).annotations
    known = split.known_ids(truth)
    detector = load_detector(run, settings, split).eval()
    search = replace(
        limits_of(settings.predict).search, mask_share=0.0, per_image=regions, before_nms=regions
    )
    found: Counter[tuple[str, float | None, str]] = Counter()
    num_objects: Counter[str] = Counter()
    with join_processes("cpu") as processes:
        for loaded in load_batches(
            truth.images[:images], settings=settings, processes=processes, title="look"
        ):
            batch: ImageBatch = detector.batch_images([one.image for one in loaded.samples])
            maps = detector.feature_maps(batch)
            located = locate(detector, maps, batch, search=search)
            scores = class_free_scores(detector, maps, located.boxes, located.objectness)
            for i, sample in enumerate(loaded.samples):
                rows = truth.rows_of_image(sample.image_index)
                annotated = torch.from_numpy(truth.boxes_xyxy[rows]).float()
                groups = [GROUPS[one not in known] for one in truth.category_ids[rows].tolist()]
                num_objects.update(groups)
                boxes = to_original_pixels(located.boxes[i], sample).float()
                for (name, of_images), overlap in product(scores.items(), OVERLAPS):
                    best = best_regions(boxes, of_images[i], overlap)
                    is_there = (box_iou(annotated, boxes[best]) >= SAME_OBJECT_IOU).any(1)
                    found.update(
                        (name, overlap, group)
                        for group, there in zip(groups, is_there.tolist(), strict=True)
                        if there
                    )
    names = dict.fromkeys(name for name, _, _ in found)
    columns = list(product(GROUPS, OVERLAPS))
    header = ["score", *(f"{group}, {_words(overlap)}" for group, overlap in columns)]
    rows_of_table = [
        [name, *(f"{found[name, o, g] / max(1, num_objects[g]):.3f}" for g, o in columns)]
        for name in names
    ]
    return markdown_table(header, rows_of_table)


def _words(overlap: float | None) -> str:
    return "no NMS" if overlap is None else f"NMS {overlap}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("val", type=Path)
    parser.add_argument("--regions", type=int, default=300, help="of an image, before any NMS")
    parser.add_argument("--images", type=int, default=500)
    options = parser.parse_args()
    run = RunFolder(options.run)
    print(measure(run, options.val, regions=options.regions, images=options.images))


if __name__ == "__main__":
    main()
