"""What do objects that nobody labelled teach a finished detector? A first look, on a drawn world.

`python benchmarks/unlabelled_objects.py --run RUN --val VAL.json [--oracle ORACLE.json]
[--steps 120] [--images 400] [--save DETECTOR.safetensors] [--without]`

Regions of labelled images that the RPN takes for objects, that overlap no annotation, and that
GrabCut's mask agrees with, join the annotations: as positives of RPN, boxes and masks, and without
a class, so that the classifier learns nothing from them. The detector is trained a little further
on both; `--without` leaves the objects out. Prints recall and mask IoU of known and novel objects,
and with ORACLE.json, for judging alone, how many of the found objects are some. `--save` keeps the
weights, to be laid into a copy of the run for `discover`.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import Tensor
from torchvision.ops import box_iou, masks_to_boxes, nms

from rncdl.classes import ClassSplit
from rncdl.config import Settings
from rncdl.data.colours import STRENGTHS
from rncdl.data.datasets import BadImage, LabelledImages
from rncdl.data.records import AnnotationSet
from rncdl.data.samples import Sample
from rncdl.data.transforms import augment_sample
from rncdl.data.variation import Variation
from rncdl.detector.boxes import clip_boxes
from rncdl.detector.locating import Search, locate
from rncdl.detector.losses import supervised_losses
from rncdl.detector.mask_boxes import enlarge
from rncdl.detector.model import Detector
from rncdl.evaluation.recall import measure_recall
from rncdl.evaluation.results import mean_by_group
from rncdl.inputs import load_dataset
from rncdl.models import load_detector
from rncdl.prediction.annotated import look_at_annotations
from rncdl.run_folder import RunFolder
from rncdl.segmentation.grabcut import GrabCut
from rncdl.segmentation.segmenter import Segmenter
from rncdl.training.processes import Processes

ALONE = Processes(rank=0, count=1, device=torch.device("cpu"))
WITHOUT_CLASS = -100
"""The label that cross-entropy passes over."""
MIN_OBJECTNESS, MAX_ANNOTATED_IOU, MIN_AGREEMENT = 0.3, 0.3, 0.6
MIN_FILL, MAX_FILL = 0.25, 0.97
"""Share of its box that an object's mask covers."""
NMS, MOST_PER_IMAGE, MIN_SIDE_PX, MARGIN = 0.4, 4, 8, 1.2
BATCH = 16


@dataclass(frozen=True)
class Objects:
    """The objects of one image that nobody labelled."""

    boxes_xyxy: Tensor
    masks: Tensor


@torch.inference_mode()
def find_objects(
    detector: Detector, samples: Sequence[Sample], segmenter: Segmenter
) -> list[Objects]:
    """Of each sample, the regions that RPN and segmenter agree on and no annotation covers."""
    batch = detector.batch_images([sample.image for sample in samples])
    maps = detector.feature_maps(batch)
    search = Search(before_nms=300, nms=0.7, per_image=50, refinements=2)
    located = locate(detector, maps, batch, search=search)
    return [
        _cut_out(_free_regions(boxes, logits.sigmoid(), sample), sample, segmenter)
        for boxes, logits, sample in zip(located.boxes, located.objectness, samples, strict=True)
    ]


def _free_regions(boxes: Tensor, scores: Tensor, sample: Sample) -> Tensor:
    usable = (scores > MIN_OBJECTNESS) & (boxes[:, 2:] - boxes[:, :2] > MIN_SIDE_PX).all(1)
    if len(sample.boxes_xyxy):
        usable &= box_iou(boxes, sample.boxes_xyxy).amax(1) < MAX_ANNOTATED_IOU
    boxes, scores = boxes[usable], scores[usable]
    return boxes[nms(boxes, scores, NMS)[:MOST_PER_IMAGE]]


def _cut_out(boxes: Tensor, sample: Sample, segmenter: Segmenter) -> Objects:
    size = torch.tensor(sample.image.shape[1:])
    shown = clip_boxes(enlarge(boxes, MARGIN), size)
    pixels = sample.image.permute(1, 2, 0).numpy()
    masks = torch.from_numpy(segmenter.segment(pixels, shown.numpy()))
    kept = masks.flatten(1).any(1)
    boxes, masks = boxes[kept], masks[kept]
    extents = masks_to_boxes(masks) + torch.tensor([0, 0, 1, 1])
    fill = masks.flatten(1).sum(1) / (extents[:, 2:] - extents[:, :2]).prod(1)
    agrees = (box_iou(boxes, extents).diagonal() > MIN_AGREEMENT) & (fill > MIN_FILL)
    agrees &= fill < MAX_FILL
    return Objects(extents[agrees], masks[agrees])


def with_objects(sample: Sample, objects: Objects) -> Sample:
    """The sample with objects that have no class."""
    assert sample.masks is not None
    labels = torch.full((len(objects.masks),), WITHOUT_CLASS)
    return replace(
        sample,
        boxes_xyxy=torch.cat([sample.boxes_xyxy, objects.boxes_xyxy]),
        labels=torch.cat([sample.labels, labels]),
        masks=torch.cat([sample.masks, objects.masks]),
    )


def train_further(
    detector: Detector, samples: Sequence[Sample], settings: Settings, *, steps: int
) -> None:
    """A cosine from half of the training's rate, with a short warm-up."""
    detector.train()
    peak, data = settings.train.rate / 2, settings.data
    parameters = [p for p in detector.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, peak, momentum=0.9, weight_decay=1e-4)
    rng = np.random.default_rng(settings.seed)
    for step in range(steps):
        rate = peak * min(1, (step + 1) / 20) * (1 + math.cos(math.pi * step / steps)) / 2
        optimizer.param_groups[0]["lr"] = rate
        batch = [
            augment_sample(
                samples[i],
                rng,
                short_sides_px=data.short_sides_px,
                long_side_px=data.long_side_px,
                flip=data.flip,
                colours=STRENGTHS[settings.train.augmentation],
            )
            for i in rng.choice(len(samples), settings.train.batch_size, replace=False)
        ]
        optimizer.zero_grad()
        torch.stack(list(supervised_losses(detector, batch).values())).sum().backward()
        optimizer.step()


def report(detector: Detector, truth: AnnotationSet, split: ClassSplit, settings: Settings) -> str:
    """Recall of the best 100 proposals and mask IoU, of known and novel objects."""
    look = look_at_annotations(detector, truth, [], settings=settings, processes=ALONE)
    known = split.known_ids(truth)
    recall = measure_recall(look.proposals, truth, known_category_ids=known)
    masks = mean_by_group(look.mask_ious, truth, known)
    return "; ".join(
        f"{group}: AR@100 {of_group.average[100]:.3f}, recall {of_group.at_iou_50[100]:.3f}, "
        f"mask IoU {masks[group]:.3f}"
        for group, of_group in (("novel", recall.novel), ("known", recall.known))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--val", type=Path, required=True)
    parser.add_argument("--oracle", type=Path)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--without", action="store_true")
    options = parser.parse_args()
    run = RunFolder(options.run)
    settings, split = run.settings(), run.split()
    torch.manual_seed(settings.seed)
    detector = load_detector(run, settings, split).eval()
    truth = load_dataset(options.val, None, shown=False)
    print("before:", report(detector, truth, split, settings), flush=True)
    labels = split.keep_known(load_dataset(Path(run.inputs().labelled), None, shown=False))
    dataset = LabelledImages(
        labels,
        Variation((settings.data.eval_short_side_px,), settings.data.long_side_px, 0.0, "none"),
        with_masks=True,
    )
    chosen = np.random.default_rng(settings.seed).permutation(len(dataset))[: options.images]
    items = [dataset[(int(index), 0)] for index in chosen]
    samples = [item for item in items if not isinstance(item, BadImage)]
    if not options.without:
        oracle = load_dataset(options.oracle, None, shown=False) if options.oracle else None
        samples = add_objects(detector, samples, oracle)
    train_further(detector, samples, settings, steps=options.steps)
    print("after:", report(detector, truth, split, settings), flush=True)
    if options.save:
        state = {key: value.contiguous() for key, value in detector.state_dict().items()}
        safetensors.torch.save_file(state, options.save, {"has_masks": "True"})


def add_objects(
    detector: Detector, samples: Sequence[Sample], oracle: AnnotationSet | None
) -> list[Sample]:
    """The samples with the objects found in them; says how many, and how many are real."""
    segmenter, richer, overlaps, count = GrabCut(), [], [], 0
    for start in range(0, len(samples), BATCH):
        part = samples[start : start + BATCH]
        for sample, objects in zip(part, find_objects(detector, part, segmenter), strict=True):
            richer.append(with_objects(sample, objects))
            count += len(objects.masks)
            if oracle is not None and len(objects.masks):
                truth = oracle.boxes_xyxy[oracle.rows_of_image(sample.image_index)]
                iou = box_iou(objects.boxes_xyxy, torch.from_numpy(truth).float())
                overlaps.extend(iou.amax(1).tolist())
    real = f", {np.mean(np.array(overlaps) > 0.5):.3f} of them objects" if overlaps else ""
    print(f"{count} objects in {len(samples)} images{real}", flush=True)
    return richer


if __name__ == "__main__":
    main()
