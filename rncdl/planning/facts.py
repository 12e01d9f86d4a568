"""What a plan depends on: facts about the data and about the machine."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from rncdl.classes import KnownLabels
from rncdl.data.records import ImageRecord

SMALL_OBJECTS = 0.2
"""The quantile of the objects' sides that decides how large images must be."""
TINY_OBJECT = 1 / 64
"""A smaller side, over the short side of the image, is hardly to be seen."""
FEW_EXAMPLES = 3
_LONG_IMAGES = 0.95
"""The quantile of the images' aspect ratios that the longest side must hold."""


@dataclass(frozen=True)
class DataFacts:
    """What there is to learn from."""

    num_labelled: int
    num_unlabelled: int
    num_val: int
    num_known: int
    num_boxes: int
    has_masks: bool
    short_side_px: int
    """of the median image"""
    long_over_short: float
    """aspect ratio of the longest images, but for one in twenty"""
    small_object: float
    """side of a box, over the short side of its image, that one box in five falls below"""
    rarest_share: float
    """of the labelled images, those that show the rarest class"""
    num_bad_images: int = 0
    """missing, broken, or of another size than the file says"""
    rare_classes: tuple[str, ...] = ()
    """known classes with three annotations or fewer"""
    tiny_share: float = 0.0
    """of the boxes, those smaller than a sixty-fourth of their image's short side"""

    @property
    def num_pool(self) -> int:
        """Images that discovery looks at."""
        return self.num_labelled + self.num_unlabelled


@dataclass(frozen=True)
class MachineFacts:
    """What there is to compute with."""

    device: str
    """`cpu`, or the name of the GPU"""
    is_gpu: bool
    num_gpus: int
    num_cores: int
    memory_bytes: int
    """free, of the GPU where there is one, else of the machine"""
    disk_bytes: int
    """free where the run folder is"""
    has_timm: bool
    num_processes: int = 1


def data_facts(
    labels: KnownLabels, unlabelled: Sequence[ImageRecord], *, num_val: int, num_bad_images: int = 0
) -> DataFacts:
    """The facts of a labelled dataset and its unlabelled images."""
    annotations = labels.annotations
    images = [*annotations.images, *unlabelled]
    sides = np.sort([[image.height, image.width] for image in images], axis=1).astype(float)
    boxes = annotations.boxes_xyxy
    object_px = np.sqrt((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))
    relative = object_px / sides[annotations.image_index, 0]
    return DataFacts(
        num_labelled=len(annotations.images),
        num_unlabelled=len(unlabelled),
        num_val=num_val,
        num_known=labels.split.num_known,
        num_boxes=len(boxes),
        has_masks=annotations.has_masks,
        short_side_px=round(float(np.median(sides[:, 0]))),
        long_over_short=float(np.quantile(sides[:, 1] / sides[:, 0], _LONG_IMAGES)),
        small_object=float(np.quantile(relative, SMALL_OBJECTS)),
        rarest_share=_rarest_share(labels),
        num_bad_images=num_bad_images,
        rare_classes=_rare_classes(labels),
        tiny_share=float((relative < TINY_OBJECT).mean()),
    )


def machine_facts(folder: Path, device: torch.device, *, num_processes: int = 1) -> MachineFacts:
    """The facts of this machine; `folder`: where the run will be."""
    is_gpu = device.type == "cuda"
    memory = torch.cuda.mem_get_info(device)[0] if is_gpu else free_memory_bytes()
    return MachineFacts(
        device=torch.cuda.get_device_name(device) if is_gpu else device.type,
        is_gpu=is_gpu,
        num_gpus=torch.cuda.device_count(),
        num_cores=torch.get_num_threads(),
        memory_bytes=memory,
        disk_bytes=shutil.disk_usage(_nearest_folder(folder)).free,
        has_timm=find_spec("timm") is not None,
        num_processes=num_processes,
    )


def free_memory_bytes() -> int:
    """Memory that can be had without swapping; all there is where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if "MemAvailable" in line) * 1024
    except (OSError, StopIteration, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _rarest_share(labels: KnownLabels) -> float:
    images_of = [
        len(np.unique(labels.annotations.image_index[labels.labels == k]))
        for k in range(labels.split.num_known)
    ]
    return min(images_of) / max(1, len(labels.annotations.images))


def _rare_classes(labels: KnownLabels) -> tuple[str, ...]:
    counts = np.bincount(labels.labels, minlength=labels.split.num_known)
    pairs = zip(labels.split.known, counts.tolist(), strict=True)
    return tuple(name for name, count in pairs if count <= FEW_EXAMPLES)


def _nearest_folder(path: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    folder = path.resolve()
    while not folder.is_dir():
        folder = folder.parent
    return folder
