"""Maps of a frozen backbone, computed once and kept on disk: pyramid and heads train on them.

A file for each image holds its maps and those of its mirror image, in float16. It appears whole or
not at all, so any process may write any image, and what an interruption left out is made next
time. An image is looked at alone, without the padding that larger ones beside it would bring. Files
are found by their images: sets of labels that share images share their maps.
"""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.utils.data import Dataset

from rncdl.classes import KnownLabels
from rncdl.config import Settings
from rncdl.data.batch_loader import BatchLoader
from rncdl.data.batches import EvaluationBatches
from rncdl.data.datasets import BadImage, ItemKey, PlainImages
from rncdl.data.records import ImageRecord
from rncdl.data.samples import Sample
from rncdl.data.transforms import resized_size
from rncdl.detector.model import SIZE_DIVISOR_PX, Detector
from rncdl.errors import UserError
from rncdl.files import write_atomically
from rncdl.origins import digest, origin_differences
from rncdl.training.processes import Processes, autocast, choose_precision
from rncdl.training.progress import ProgressLine, say


@dataclass(frozen=True)
class MapCache:
    """A folder of maps."""

    folder: Path

    @property
    def origin_file(self) -> Path:
        """What the maps were made from."""
        return self.folder / "maps.json"

    def file_of(self, image: str | Path, size_hw: tuple[int, int]) -> Path:
        """Where the maps of an image are, by its own place and size."""
        name = digest(f"{os.path.realpath(image)} {size_hw[0]} {size_hw[1]}".encode())
        return self.folder / f"{name}.safetensors"

    def write(self, sample: Sample, maps: Sequence[Tensor]) -> None:
        """Keep an image's maps, each (1 or 2, C, H, W): of the image and of its mirror image."""
        tensors = {str(level): one.half().cpu().contiguous() for level, one in enumerate(maps)}
        path = self.file_of(sample.path, sample.original_size)
        write_atomically(path, safetensors.torch.save(tensors))

    def read(self, sample: Sample) -> list[Tensor]:
        """The maps (C, H, W) of an image, mirrored if the sample is, the finest first."""
        path = self.file_of(sample.path, sample.original_size)
        try:
            with safe_open(path, framework="pt") as file:
                levels = sorted(file.keys(), key=int)
                return [file.get_slice(level)[int(sample.is_mirrored)] for level in levels]
        except (OSError, SafetensorError) as error:
            raise UserError(
                f"{path}: cannot be read ({error}); delete it, and the same command makes it anew."
            ) from error

    def require_origin(self, origin: dict[str, Any]) -> None:
        """Note what the maps are made from; refuse a folder whose maps are of something else."""
        if not self.origin_file.is_file():
            write_atomically(self.origin_file, json.dumps(origin, indent=2).encode())
            return
        different = origin_differences(json.loads(self.origin_file.read_text("utf-8")), origin)
        if different:
            raise UserError(
                f"{self.folder}: these maps were made from something else; delete the folder or "
                "name another one in train.map_cache:\n" + "\n".join(different)
            )


class SamplesWithMaps(Dataset[Sample | BadImage]):
    """The samples of another dataset, each with the maps of its image."""

    def __init__(self, samples: Dataset[Sample | BadImage], cache: MapCache) -> None:
        self._samples = samples
        self._cache = cache

    def __getitem__(self, key: ItemKey) -> Sample | BadImage:
        sample = self._samples[key]
        if isinstance(sample, Sample):
            sample.maps = self._cache.read(sample)
        return sample


def open_map_cache(
    detector: Detector, labels: KnownLabels, *, settings: Settings, processes: Processes
) -> MapCache | None:
    """The folder `train.map_cache` with the maps of all images, made or completed; or None."""
    folder = settings.train.map_cache
    if folder is None:
        return None
    _require_fixed_maps(detector, settings)
    cache = MapCache(folder)
    images = labels.annotations.images
    missing = processes.from_main(partial(_find_missing, cache, detector, images, settings))
    if missing:
        _fill(cache, detector, missing, settings=settings, processes=processes)
    processes.wait_for_all()
    return cache


def stack_maps(of_images: Sequence[Sequence[Tensor]], device: torch.device) -> list[Tensor]:
    """(B, C, H, W) float32 of each level; the smaller images' maps end in zeros."""
    stacked = []
    for level in zip(*of_images, strict=True):
        height, width = (max(one.shape[axis] for one in level) for axis in (1, 2))
        joined = torch.zeros(len(level), level[0].shape[0], height, width, device=device)
        for row, one in zip(joined, level, strict=True):
            row[:, : one.shape[1], : one.shape[2]] = one.to(device, non_blocking=True)
        stacked.append(joined)
    return stacked


def _require_fixed_maps(detector: Detector, settings: Settings) -> None:
    """Refuse settings under which an image's maps would not always be the same two."""
    problems = {
        "detector.frozen_blocks=all (other backbones change as they learn)": (
            detector.backbone.is_frozen
        ),
        f"one size in data.short_sides_px (now {list(settings.data.short_sides_px)})": (
            len(set(settings.data.short_sides_px)) == 1
        ),
        f"train.augmentation=none (now {settings.train.augmentation})": (
            settings.train.augmentation == "none"
        ),
    }
    needed = [what for what, is_so in problems.items() if not is_so]
    if needed:
        raise UserError(
            "train.map_cache keeps each image's maps, which must not change from step to step; it "
            f"needs {' and '.join(needed)}. Set that, or train.map_cache=null."
        )


def _map_origin(detector: Detector, settings: Settings) -> dict[str, Any]:
    """Everything that maps depend on beside their images."""
    values = [value.cpu().contiguous() for value in detector.backbone.state_dict().values()]
    return {
        "backbone": settings.detector.backbone,
        "weights": digest(*(value.numpy().tobytes() for value in values)),
        "short_side_px": settings.data.short_sides_px[0],
        "long_side_px": settings.data.long_side_px,
        "mirrored": settings.data.flip > 0,
        "pixels": [list(settings.detector.pixel_mean), list(settings.detector.pixel_std)],
        "size_divisor": SIZE_DIVISOR_PX,
        "precision": settings.train.precision,
    }


def _find_missing(
    cache: MapCache, detector: Detector, images: Sequence[ImageRecord], settings: Settings
) -> list[ImageRecord]:
    """The images without maps; the folder is there then, and the disk has room for them."""
    cache.require_origin(_map_origin(detector, settings))
    missing = [
        one for one in images if not cache.file_of(one.path, (one.height, one.width)).is_file()
    ]
    if missing:
        wanted = _num_bytes(detector, missing, settings)
        free = shutil.disk_usage(cache.folder).free
        say(f"Maps of {len(missing)} images: {wanted / 1e9:.2f} GB in {cache.folder}")
        if wanted > free:
            raise UserError(
                f"{cache.folder}: the maps need {wanted / 1e9:.1f} GB, the disk has "
                f"{free / 1e9:.1f} GB free. Free some, or set train.map_cache=null."
            )
    return missing


@torch.inference_mode()
def _num_bytes(detector: Detector, images: Sequence[ImageRecord], settings: Settings) -> int:
    """What the images' maps take on disk: float16, mirrored ones too."""
    side = 4 * detector.size_divisor
    maps = detector.backbone(torch.zeros(1, 3, side, side, device=detector.device))
    per_pixel = sum(one.numel() for one in maps) / side**2
    sizes = [
        resized_size(i.height, i.width, settings.data.short_sides_px[0], settings.data.long_side_px)
        for i in images
    ]
    pixels = sum(detector.pad_size(h) * detector.pad_size(w) for h, w in sizes)
    return int(pixels * per_pixel * 2 * (1 + (settings.data.flip > 0)))


def _fill(
    cache: MapCache,
    detector: Detector,
    missing: Sequence[ImageRecord],
    *,
    settings: Settings,
    processes: Processes,
) -> None:
    """Compute and write the maps of the missing images, each process those of its share."""
    data = settings.data
    dataset = PlainImages(
        missing,
        short_side_px=data.short_sides_px[0],
        long_side_px=data.long_side_px,
        on_bad_image=data.on_bad_image,
    )
    batches = EvaluationBatches(len(missing), batch_size=1, processes=processes)
    with ProgressLine("maps", len(missing), unit="images", shown=processes.is_main) as progress:
        for batch in BatchLoader(dataset, batches, workers=data.workers):
            for sample in batch.samples:
                maps = _compute(detector, sample.image, settings)
                cache.write(sample, maps)
            progress.advance(processes.count)


@torch.inference_mode()
def _compute(detector: Detector, image: Tensor, settings: Settings) -> list[Tensor]:
    """The maps of an image, and of its mirror image where training shows that too."""
    shown = [image, image.flip(-1)] if settings.data.flip > 0 else [image]
    precision = choose_precision(settings.train.precision, detector.device)
    with autocast(detector.device, precision):
        return detector.backbone(detector.batch_images(shown).pixels)
