"""A detector small enough to train in a test."""

import pytest
import torch

from rncdl.config import DetectorSettings
from rncdl.data.samples import Sample


@pytest.fixture(scope="session")
def tiny_settings() -> DetectorSettings:
    """ResNet-18 at 64 px."""
    return DetectorSettings(
        backbone="resnet18",
        fpn_channels=32,
        anchor_sizes_px=(8, 16, 32, 64, 128),
        rpn_samples=32,
        proposals_before_nms=100,
        proposals_after_nms=50,
        roi_samples=32,
        roi_sampling_ratio=2,
        roi_reference_px=56,
        box_head_width=64,
        mask_head_width=32,
        mask_head_layers=1,
    )


def rectangle_sample(boxes: list[list[float]], labels: list[int], side_px: int = 64) -> Sample:
    """Bright rectangles on black; the masks fill the boxes."""
    boxes_xyxy = torch.tensor(boxes).reshape(-1, 4)
    masks = torch.zeros(len(boxes), side_px, side_px, dtype=torch.bool)
    for mask, (x0, y0, x1, y1) in zip(masks, boxes_xyxy.int().tolist(), strict=True):
        mask[y0:y1, x0:x1] = True
    image = torch.zeros(3, side_px, side_px, dtype=torch.uint8)
    for mask, label in zip(masks, labels, strict=True):
        image[label % 3][mask] = 255
    return Sample(
        image=image,
        boxes_xyxy=boxes_xyxy,
        labels=torch.tensor(labels, dtype=torch.int64),
        masks=masks,
        image_index=0,
        path="drawn.png",
        original_size=(side_px, side_px),
    )
