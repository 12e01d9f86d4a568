"""Training speed of the supervised step beside torchvision's Mask R-CNN of the same size.

Both are built from the `shapes-from-nothing` preset (FPN of 64 channels, 128 px) with a
ResNet-18, see the same images and take turns, so that whatever else the machine does slows both
alike.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from torchvision.models import resnet18
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops import MultiScaleRoIAlign

from rncdl.config import DetectorSettings, resolve_settings
from rncdl.data.samples import Sample
from rncdl.detector.losses import PROPOSAL_NMS, RPN_POSITIVE_SHARE, SupervisedStep
from rncdl.detector.model import BOX_POOL, MASK_POOL, Detector

NUM_KNOWN = 8
SIDE_PX = 128
BATCH_SIZE = 8
WARMUP_STEPS = 3


def torchvision_model(settings: DetectorSettings) -> MaskRCNN:
    """A Mask R-CNN of torchvision with the widths, anchors and samples of `settings`."""
    layers = {f"layer{i}": str(i - 1) for i in (1, 2, 3, 4)}
    channels = settings.fpn_channels
    backbone = BackboneWithFPN(
        resnet18(weights=None), layers, [64, 128, 256, 512], channels, norm_layer=nn.BatchNorm2d
    )
    levels = ["0", "1", "2", "3"]
    width, mask_width = settings.box_head_width, settings.mask_head_width
    ratios = (settings.anchor_ratios,) * len(settings.anchor_sizes_px)
    return MaskRCNN(
        backbone,
        min_size=SIDE_PX,
        max_size=SIDE_PX,
        rpn_anchor_generator=AnchorGenerator(
            tuple((size,) for size in settings.anchor_sizes_px), ratios
        ),
        rpn_pre_nms_top_n_train=settings.proposals_before_nms,
        rpn_post_nms_top_n_train=settings.proposals_after_nms,
        rpn_nms_thresh=PROPOSAL_NMS,
        rpn_batch_size_per_image=settings.rpn_samples,
        rpn_positive_fraction=RPN_POSITIVE_SHARE,
        box_roi_pool=MultiScaleRoIAlign(levels, BOX_POOL, settings.roi_sampling_ratio),
        box_head=TwoMLPHead(channels * BOX_POOL**2, width),
        box_predictor=FastRCNNPredictor(width, NUM_KNOWN + 1),
        box_batch_size_per_image=settings.roi_samples,
        box_positive_fraction=settings.roi_positive_share,
        mask_roi_pool=MultiScaleRoIAlign(levels, MASK_POOL, settings.roi_sampling_ratio),
        mask_head=MaskRCNNHeads(
            channels, [mask_width] * settings.mask_head_layers, 1, norm_layer=nn.BatchNorm2d
        ),
        mask_predictor=MaskRCNNPredictor(mask_width, mask_width, NUM_KNOWN + 1),
    )


def draw_samples(generator: torch.Generator) -> list[Sample]:
    """Noise images with one to six ellipses each."""
    grid = torch.arange(SIDE_PX) + 0.5
    samples = []
    for index in range(BATCH_SIZE):
        count = 1 + index % 6
        sides = 12 + 48 * torch.rand(count, 2, generator=generator)
        corners = torch.rand(count, 2, generator=generator) * (SIDE_PX - sides)
        centres = (corners + sides / 2)[:, :, None]
        offsets = ((grid - centres) / (sides / 2)[:, :, None]) ** 2
        masks = offsets[:, 1, :, None] + offsets[:, 0, None, :] <= 1
        image = torch.randint(0, 256, (3, SIDE_PX, SIDE_PX), generator=generator)
        samples.append(
            Sample(
                image=(image // 2 + 100 * masks.any(0)).to(torch.uint8),
                boxes_xyxy=torch.cat((corners, corners + sides), 1),
                labels=torch.randint(0, NUM_KNOWN, (count,), generator=generator),
                masks=masks,
                image_index=index,
                path="",
                original_size=(SIDE_PX, SIDE_PX),
            )
        )
    return samples


def our_step(settings: DetectorSettings, samples: list[Sample]) -> Callable[[], None]:
    """A function that trains our detector by one step."""
    step = SupervisedStep(Detector(settings, NUM_KNOWN, masks=True))
    optimizer = torch.optim.SGD(step.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)

    def run() -> None:
        loss = torch.stack(list(step(samples).values())).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return run


def torchvision_step(settings: DetectorSettings, samples: list[Sample]) -> Callable[[], None]:
    """A function that trains torchvision's model by one step."""
    model = torchvision_model(settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    targets = [
        {"boxes": s.boxes_xyxy, "labels": s.labels + 1, "masks": s.masks.to(torch.uint8)}
        for s in samples
        if s.masks is not None
    ]

    def run() -> None:
        images = [sample.image / 255 for sample in samples]
        loss = torch.stack(list(model(images, targets).values())).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return run


def main() -> None:
    """Print images per second of both and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    settings = resolve_settings("shapes-from-nothing", ["detector.backbone=resnet18"]).detector
    samples = draw_samples(torch.Generator().manual_seed(0))
    steps = {
        "rncdl": our_step(settings, samples),
        "torchvision": torchvision_step(settings, samples),
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(WARMUP_STEPS + arguments.steps):
        for name, run in steps.items():
            start = time.perf_counter()
            run()
            if turn >= WARMUP_STEPS:
                seconds[name].append(time.perf_counter() - start)
    print(f"{SIDE_PX} px, batch {BATCH_SIZE}, {arguments.threads} threads, {arguments.steps} steps")
    for name, times in seconds.items():
        print(f"{name:12} {BATCH_SIZE / statistics.median(times):6.1f} images/s (median step)")
    ratios = [b / a for a, b in zip(seconds["rncdl"], seconds["torchvision"], strict=True)]
    print(f"ratio        {statistics.median(ratios):6.2f} (rncdl / torchvision)")


if __name__ == "__main__":
    main()
