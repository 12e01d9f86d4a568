"""How large a run may be: from minutes on a laptop to the paper's own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LITE0 = "timm:tf_efficientnet_lite0"
_LIGHT_TEACHER_PX = 112
"""A multiple of 14, as DINOv2 wants it."""
_LIGHT_DETECTOR = {
    "rpn_samples": 64,
    "proposals_before_nms": 400,
    "proposals_after_nms": 200,
    "roi_sampling_ratio": 2,
    "roi_positive_share": 0.5,
    "box_head_norm": True,
    "mask_head_width": 64,
    "mask_head_layers": 2,
    "mask_loss_weight": 2.0,
}
_PREDICT = {"score": "objectness", "known": "trained"}
_LIGHT_PREDICT = {
    "proposals_before_nms": 300,
    "proposals_after_nms": 100,
    "max_detections": 100,
    "batch_size": 8,
}
_LIGHT_DISCOVER = {
    "views": 2,
    "augmentation": "none",
    "partner_iou": 0.4,
    "rate": 0.05,
    "memory_batches": 10,
    "matched_regions_per_image": 32,
}


@dataclass(frozen=True)
class Size:
    """What a run of one size takes, apart from what the data and the machine decide."""

    name: str
    means: str
    """what it is for, in a few words"""
    most_px: int
    """short side of the images, at most"""
    object_px: int
    """side that small objects should keep"""
    epochs: int
    """how often the detector sees each labelled image"""
    least_steps: int
    most_steps: int
    batch_images: int
    rate_per_image: float
    """learning rate at the peak, over the images of a batch"""
    pool_epochs: int
    """how often discovery sees each image of the pool"""
    least_discover_steps: int
    most_discover_steps: int
    most_clusters: int
    backbone: str
    fallback: str
    """the backbone where timm is not installed"""
    teacher_px: int = 0
    """side of what a teacher is shown"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """what else differs from the defaults"""


TINY = Size(
    name="tiny",
    means="a first look, on a CPU",
    most_px=192,
    object_px=16,
    epochs=30,  # of 500 photographs: known AP 3.6 after 8 minutes, 0.9 with 12
    least_steps=400,
    most_steps=2_500,
    batch_images=8,
    rate_per_image=0.0025,
    pool_epochs=4,
    least_discover_steps=300,
    most_discover_steps=1_000,
    most_clusters=200,
    backbone=LITE0,
    fallback="resnet18",
    teacher_px=_LIGHT_TEACHER_PX,
    settings={
        "detector": {
            **_LIGHT_DETECTOR,
            "fpn_channels": 64,
            "roi_samples": 32,
            "box_head_width": 256,
        },
        "predict": {**_PREDICT, **_LIGHT_PREDICT},
        "discover": {**_LIGHT_DISCOVER, "hidden_width": 512, "projection_width": 128},
    },
)

SMALL = Size(
    name="small",
    means="a small GPU, or a night on a laptop",
    most_px=384,
    object_px=20,
    epochs=24,
    least_steps=1_500,
    most_steps=12_000,
    batch_images=8,
    rate_per_image=0.0025,
    pool_epochs=10,
    least_discover_steps=1_000,
    most_discover_steps=4_000,
    most_clusters=500,
    backbone=LITE0,
    fallback="resnet18",
    teacher_px=_LIGHT_TEACHER_PX,
    settings={
        "detector": {
            **_LIGHT_DETECTOR,
            "fpn_channels": 128,
            "roi_samples": 128,
            "box_head_width": 512,
        },
        "predict": {**_PREDICT, **_LIGHT_PREDICT},
        "discover": {**_LIGHT_DISCOVER, "hidden_width": 1024},
    },
)

STANDARD = Size(
    name="standard",
    means="one good GPU, some hours",
    most_px=800,
    object_px=24,
    epochs=24,
    least_steps=4_000,
    most_steps=60_000,
    batch_images=16,
    rate_per_image=0.00125,
    pool_epochs=20,
    least_discover_steps=2_000,
    most_discover_steps=15_000,
    most_clusters=1_500,
    backbone="resnet50",
    fallback="resnet50",
    teacher_px=224,
    settings={
        "detector": {"roi_samples": 256},
        "predict": _PREDICT,
        "discover": {"partner_iou": 0.4, "memory_batches": 50},
    },
)

PAPER = Size(
    name="paper",
    means="the paper's own settings, on eight GPUs",
    most_px=800,
    object_px=24,
    epochs=0,
    least_steps=180_000,
    most_steps=180_000,
    batch_images=16,
    rate_per_image=0.000625,
    pool_epochs=0,
    least_discover_steps=15_000,
    most_discover_steps=15_000,
    most_clusters=3_000,
    backbone="resnet50",
    fallback="resnet50",
)

SIZES = {size.name: size for size in (TINY, SMALL, STANDARD, PAPER)}
