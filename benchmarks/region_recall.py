"""How many objects are among an image's best 100 regions, ranked by which score, after which NMS?

`python benchmarks/region_recall.py RUN VAL [--regions 300] [--images 500] [SETTING=VALUE ...]`

Regions are the RPN's, refined as `rncdl predict` does it. Each class-free score ranks them: the
RPN's objectness, the predicted IoU, the trained classifier's foreground, and geometric means of
these. With `segmentation.segmenter=sam segmentation.sam_weights=FILE` also what the segmenter
proposes by itself, and half of the best by foreground beside half of the segmenter's. Recall at
IoU 0.5 of known and of novel objects, which are read for judging alone.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import box_iou, masks_to_boxes, nms

from rncdl.config import resolve_settings
from rncdl.data.annotations import load_annotations
from rncdl.data.samples import Sample, to_original_pixels
from rncdl.detector.locating import locate
from rncdl.detector.model import Detector, ImageBatch
from rncdl.evaluation.ap_tables import markdown_table
from rncdl.models import load_detector
from rncdl.prediction.inference import limits_of, load_batches
from rncdl.run_folder import RunFolder
from rncdl.segmentation.segmenter import Proposer, open_segmenter
from rncdl.training.processes import join_processes

BEST = 100
SAME_OBJECT_IOU = 0.5
OVERLAPS = (None, 0.7, 0.5)
"""Above which a region is dropped beside a better one; None: none is."""
GROUPS = ("known", "novel")
SEGMENTER = "the segmenter's own"
BOTH = "half by foreground, half the segmenter's"


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


def proposed_boxes(proposer: Proposer, sample: Sample) -> tuple[Tensor, Tensor]:
    """Boxes (R, 4) of what a segmenter proposes, in pixels of the image on disk, and scores."""
    pixels = np.ascontiguousarray(sample.image.permute(1, 2, 0).numpy())
    proposed = proposer.propose(pixels, limit=3 * BEST)
    boxes = masks_to_boxes(torch.from_numpy(proposed.masks)) + torch.tensor([0, 0, 1, 1])
    return to_original_pixels(boxes, sample).float(), torch.from_numpy(proposed.scores).float()


def rankings(
    boxes: Tensor, scores: dict[str, Tensor], proposed: tuple[Tensor, Tensor] | None
) -> dict[tuple[str, float | None], Tensor]:
    """By score and NMS, the best boxes of an image (at most `BEST`, 4)."""
    found = {
        (name, overlap): boxes[best_regions(boxes, of_image, overlap)]
        for (name, of_image), overlap in product(scores.items(), OVERLAPS)
    }
    if proposed is not None:
        for overlap in OVERLAPS:
            own = proposed[0][best_regions(*proposed, overlap)]
            found[SEGMENTER, overlap] = own
            halves = (found["foreground", overlap][: BEST // 2], own[: BEST // 2])
            found[BOTH, overlap] = torch.cat(halves)
    return found


@torch.inference_mode()
def measure(
    run: RunFolder, val: Path, *, regions: int, images: int, overrides: Sequence[str] = ()
) -> str:
    """The table of recalls."""
    settings, split = resolve_settings(base=run.settings(), overrides=overrides), run.split()
    segmenter = open_segmenter(settings.segmentation, torch.device("cpu"))
    proposer = segmenter if isinstance(segmenter, Proposer) else None
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
                of_image = {name: values[i] for name, values in scores.items()}
                proposed = None if proposer is None else proposed_boxes(proposer, sample)
                for (name, overlap), best in rankings(boxes, of_image, proposed).items():
                    is_there = (box_iou(annotated, best) >= SAME_OBJECT_IOU).any(1)
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
    parser.add_argument("settings", nargs="*", metavar="SETTING=VALUE")
    options = parser.parse_intermixed_args()
    print(
        measure(
            RunFolder(options.run),
            options.val,
            regions=options.regions,
            images=options.images,
            overrides=options.settings,
        )
    )


if __name__ == "__main__":
    main()
