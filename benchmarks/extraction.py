"""Region extraction against plain inference, and the online step against the naive way.

`python benchmarks/extraction.py`: one network (ResNet-18 FPN-64), one run, taking turns.
- bank: views extracted per second over images inferred per second by the same network;
- online: what a step needs of the network, done leanly and done as the authors' code does it:
  full inference with 1000 regions and masks for the proposals, then features of both views with
  a graph kept and a backward pass through layers that are never stepped.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from rncdl.config import resolve_settings
from rncdl.data.samples import Sample
from rncdl.data.viewed_images import ViewedImage
from rncdl.data.views import View, draw_view
from rncdl.detector.locating import Search
from rncdl.detector.model import Detector
from rncdl.discovery.extraction import RegionChoice, choose_regions, extract_features
from rncdl.prediction.classifier import trained_classifier
from rncdl.prediction.detecting import Limits, detect

CHOICE = RegionChoice(
    per_image=50,
    nms=None,
    matched_per_image=32,
    matched_iou=0.5,
    before_nms=1000,
    matched_nms=0.7,
    matched_candidates=1000,
)
SEARCH = Search(before_nms=1000, nms=0.7, per_image=1000)
LIMITS = Limits(SEARCH, min_score=1e-4, nms=0.5, max_detections=300)


def make_images(count: int, side_px: int, num_views: int) -> list[ViewedImage]:
    generator = torch.Generator().manual_seed(0)
    images = []
    for index in range(count):
        image = torch.randint(0, 256, (3, side_px, side_px), generator=generator).byte()
        views = [
            draw_view(
                image,
                generator,
                strength="weak",
                short_sides_px=[side_px],
                long_side_px=side_px,
                flip_chance=0.5,
            )
            for _ in range(num_views)
        ]
        images.append(
            ViewedImage(
                image_index=index,
                path="",
                plain=image,
                plain_scale_xy=(1.0, 1.0),
                views=views,
                boxes_xyxy=torch.zeros(0, 4),
                labels=torch.zeros(0, dtype=torch.int64),
            )
        )
    return images


def to_sample(image: ViewedImage) -> Sample:
    size = (image.plain.shape[1], image.plain.shape[2])
    return Sample(image.plain, image.boxes_xyxy, image.labels, None, 0, "", size)


def infer(detector: Detector, images: list[ViewedImage]) -> list[Tensor]:
    classifier = trained_classifier(detector, [str(k) for k in range(detector.num_known)])
    samples = [to_sample(image) for image in images]
    (found,) = detect(detector, samples, [classifier], limits=LIMITS).regions()
    return [regions.boxes_xyxy[:50] for regions in found]


@torch.inference_mode()
def lean_step(detector: Detector, images: list[ViewedImage]) -> None:
    chosen, _ = choose_regions(detector, images, CHOICE)
    extract_features(detector, images, chosen)


def naive_step(detector: Detector, images: list[ViewedImage]) -> None:
    boxes = infer(detector, images)
    total = torch.zeros(())
    for number in range(2):
        views: list[View] = [image.views[number] for image in images]
        batch = detector.batch_images([view.image for view in views])
        carried = [view.carry_boxes(b) for view, b in zip(views, boxes, strict=True)]
        total = total + detector.region_features(detector.feature_maps(batch), carried).mean()
    total.backward()
    detector.zero_grad()


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=128, help="image side in pixels")
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    detector = Detector(resolve_settings("shapes").detector, 8, masks=True).eval()
    images = make_images(options.images, options.side, 4)
    pairs = [ViewedImage(**{**vars(image), "views": image.views[:2]}) for image in images]
    works: dict[str, Callable[[], object]] = {
        "plain inference": torch.inference_mode()(lambda: infer(detector, images)),
        "extraction, 4 views": lambda: lean_step(detector, images),
        "online step, lean": lambda: lean_step(detector, pairs),
        "online step, naive": lambda: naive_step(detector, pairs),
    }
    for work in works.values():
        work()
    times = {name: float("inf") for name in works}
    for _ in range(options.repeats):
        for name, work in works.items():
            times[name] = min(times[name], seconds(work))
    inference = options.images / times["plain inference"]
    views = 4 * options.images / times["extraction, 4 views"]
    print(f"plain inference      {inference:8.1f} images/s")
    print(f"extraction           {views:8.1f} views/s      ratio {views / inference:.2f} per view")
    lean, naive = times["online step, lean"], times["online step, naive"]
    print(f"online step, lean    {1000 * lean:8.0f} ms")
    print(f"online step, naive   {1000 * naive:8.0f} ms           ratio {lean / naive:.2f}")


if __name__ == "__main__":
    main()
