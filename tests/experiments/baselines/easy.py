"""A made-up pool whose four classes are four colours: red and green known, blue and yellow not."""

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from rncdl.classes import ClassSplit
from rncdl.config import DetectorSettings, Settings, resolve_settings
from rncdl.data.viewed_images import Pool
from rncdl.detector.model import Detector
from rncdl.discovery.bank import Bank, BankShape
from rncdl.discovery.extraction import ChosenRegions, ExtractedRegions
from rncdl.experiments.baselines.crops import CropEncoder
from rncdl.experiments.baselines.methods import BaselineTask
from rncdl.inputs import load_dataset

COLOURS = ((220, 30, 30), (30, 200, 30), (30, 30, 220), (220, 220, 30))
KNOWN = ("red", "green")
SIDE_PX = 64
BOXES = torch.tensor([[4.0, 6, 28, 26], [34, 6, 60, 28], [6, 36, 26, 60], [36, 34, 58, 58]])
"""Four objects an image, all of its one colour."""
NUM_FEATURES = 8
IMAGES_PER_COLOUR = 2

SETTINGS = [
    "device=cpu",
    "data.short_sides_px=[64]",
    "data.long_side_px=64",
    "data.eval_short_side_px=64",
    "data.workers=0",
    "detector.backbone=resnet10",
    "detector.weights=none",
    "detector.fpn_channels=8",
    "detector.anchor_sizes_px=[8,16,32,64,96]",
    f"detector.box_head_width={NUM_FEATURES}",
    "detector.mask_head_width=8",
    "detector.mask_head_layers=1",
    "predict.proposals_before_nms=50",
    "discover.hidden_width=16",
    "discover.projection_width=16",
    "baselines.crop_px=16",
    "baselines.steps=30",
    f"baselines.batch_images={4 * IMAGES_PER_COLOUR}",
    "baselines.crops_per_image=4",
    "baselines.rate=0.05",
    "baselines.uno_heads=2",
    "baselines.uno_overclustering=2",
]


def easy_settings(*overrides: str) -> Settings:
    return resolve_settings(overrides=[*SETTINGS, *overrides])


def colour_features(colour: int, count: int, generator: torch.Generator) -> Tensor:
    """(count, F) far from the other colours', like a box head's: not negative."""
    centre = 4.0 * torch.eye(NUM_FEATURES)[colour] + 1
    return (centre + 0.1 * torch.randn(count, NUM_FEATURES, generator=generator)).relu()


def easy_task(folder: Path, *, num_clusters: int, overrides: tuple[str, ...] = ()) -> BaselineTask:
    """Labelled images of red and green objects, unlabelled ones of blue and yellow objects.

    A batch is the whole pool, so that every colour has the same share of it, as UNO supposes.
    """
    colours = [c for c in range(4) for _ in range(IMAGES_PER_COLOUR)]
    num_labelled = 2 * IMAGES_PER_COLOUR
    for index, colour in enumerate(colours):
        draw_image(colour).save(folder / f"{index}.png")
    labelled = _write_file(folder, "labelled", colours[:num_labelled], start=0)
    unlabelled = _write_file(folder, "unlabelled", colours[num_labelled:], start=num_labelled)
    known = ClassSplit(KNOWN).keep_known(load_dataset(labelled, None, shown=False))
    pool = Pool(known, load_dataset(unlabelled, None, shown=False).images)
    settings = easy_settings(*overrides)
    torch.manual_seed(0)
    detector = Detector(settings.detector, len(KNOWN), masks=True).eval()
    return BaselineTask(detector, _fill(folder / "bank", colours), pool, num_clusters, settings, 0)


class ColourEncoder(CropEncoder):
    """Sees the mean colour of a crop, which is all there is to see, and learns it in a few steps.

    A ResNet without weights to start from needs hundreds, and colours may be lost on the way.
    """

    def __init__(self, _: DetectorSettings) -> None:
        nn.Module.__init__(self)
        self.width = 16
        self.layers = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            *(nn.Linear(3, 32), nn.BatchNorm1d(32), nn.ReLU()),
            *(nn.Linear(32, self.width), nn.BatchNorm1d(self.width), nn.ReLU()),
        )

    def forward(self, crops: Tensor) -> Tensor:
        return self.layers(crops)


def draw_image(colour: int) -> Image.Image:
    pixels = np.full((SIDE_PX, SIDE_PX, 3), 90, dtype=np.uint8)
    for x0, y0, x1, y1 in BOXES.int().tolist():
        pixels[y0:y1, x0:x1] = COLOURS[colour]
    return Image.fromarray(pixels)


def _write_file(folder: Path, name: str, colours: list[int], *, start: int) -> Path:
    """A COCO file; only images of known colours have annotations."""
    content = {
        "images": [
            {"id": i, "file_name": f"{start + i}.png", "height": SIDE_PX, "width": SIDE_PX}
            for i in range(len(colours))
        ],
        "categories": [{"id": c + 1, "name": n} for c, n in enumerate(KNOWN)],
        "annotations": [
            {
                "id": 10 * i + b,
                "image_id": i,
                "category_id": colour + 1,
                "bbox": [x0, y0, x1 - x0, y1 - y0],
                "area": (x1 - x0) * (y1 - y0),
                "iscrowd": 0,
            }
            for i, colour in enumerate(colours)
            if colour < len(KNOWN)
            for b, (x0, y0, x1, y1) in enumerate(BOXES.tolist())
        ],
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content))
    return path


def _fill(folder: Path, colours: list[int]) -> Bank:
    num_labelled = sum(colour < len(KNOWN) for colour in colours)
    Bank.create(folder, BankShape(len(colours), num_labelled, 2, 4, 4, NUM_FEATURES), {})
    bank = Bank(folder, writable=True)
    generator = torch.Generator().manual_seed(0)
    for index, colour in enumerate(colours):
        labels = torch.full((4 if colour < len(KNOWN) else 0,), colour)
        views = torch.stack([colour_features(colour, 4, generator) for _ in range(2)])
        matched = torch.stack([colour_features(colour, len(labels), generator) for _ in range(2)])
        chosen = ChosenRegions(BOXES, torch.zeros(4), BOXES[: len(labels)], labels)
        bank.write(index, ExtractedRegions(chosen, views, matched))
    return bank
