from dataclasses import replace

import numpy as np
import pytest
import torch
from torchvision.ops import nms

from rncdl.config import DetectorSettings, TeacherSettings
from rncdl.data.viewed_images import ViewedImage
from rncdl.detector.locating import Search, likelihood, locate
from rncdl.detector.model import Detector
from rncdl.discovery.object_views import ObjectChoice, ObjectFinder
from rncdl.discovery.teacher import Teacher, find_teacher, load_teacher
from rncdl.segmentation.segmenter import Segmenter

CHOICE = ObjectChoice(
    search=Search(before_nms=20, nms=0.7, per_image=20),
    per_image=4,
    masks="segmenter",
    crop_px=32,
    padding=0.1,
)


class WholeBoxes(Segmenter):
    """A segmenter that takes the whole box for the object."""

    def segment(self, image: np.ndarray, boxes_xyxy: np.ndarray) -> np.ndarray:
        masks = np.zeros((len(boxes_xyxy), *image.shape[:2]), dtype=bool)
        for mask, (x1, y1, x2, y2) in zip(masks, boxes_xyxy.round().astype(int), strict=True):
            mask[y1:y2, x1:x2] = True
        return masks


@pytest.fixture(scope="module")
def detector() -> Detector:
    """An RPN that takes most for background: its logits are below zero."""
    torch.manual_seed(0)
    settings = DetectorSettings(
        backbone="resnet10", fpn_channels=8, box_head_width=16, localisation=True
    )
    made = Detector(settings, 2, masks=False).eval()
    torch.nn.init.normal_(made.rpn_head.cls_logits.weight, std=0.5)
    torch.nn.init.constant_(made.rpn_head.cls_logits.bias, -3.0)
    return made


def viewed(pixels: torch.Tensor, boxes_xyxy: torch.Tensor) -> ViewedImage:
    """An image whose annotations are all of class 0."""
    return ViewedImage(
        image_index=0,
        path="0.png",
        plain=pixels,
        plain_scale_xy=(1.0, 1.0),
        views=[],
        boxes_xyxy=boxes_xyxy,
        labels=torch.zeros(len(boxes_xyxy), dtype=torch.int64),
    )


def test_the_likeliest_regions_are_looked_at(detector: Detector):
    pixels = torch.randint(0, 255, (3, 96, 96), dtype=torch.uint8)
    image = viewed(pixels, torch.zeros(0, 4))
    teacher = load_teacher(find_teacher("auto", TeacherSettings(weights="none")), detector)
    [seen] = ObjectFinder(detector, teacher, WholeBoxes(), CHOICE).look([image])
    batch = detector.batch_images([pixels])
    with torch.inference_mode():
        maps = detector.feature_maps(batch)
        located = locate(detector, maps, batch, search=CHOICE.search)
        fits = detector.predict_iou(detector.region_features(maps, located.boxes))
    likely = likelihood(located.objectness[0], fits)
    assert located.objectness[0].min() < 0
    best = nms(located.boxes[0], likely, 0.5)[: CHOICE.per_image]
    torch.testing.assert_close(seen.chosen.boxes_xyxy, located.boxes[0][best])
    assert fits is not None
    torch.testing.assert_close(seen.chosen.objectness, fits[best])


class _Means(Teacher):
    """Sees the mean of each channel."""

    def __init__(self) -> None:
        super().__init__(torch.nn.Identity(), pixel_mean=(0, 0, 0), pixel_std=(1, 1, 1))

    def look(self, crops: torch.Tensor) -> torch.Tensor:
        return crops.float().mean((2, 3))


def see_a_bar(detector: Detector, colour: int, choice: ObjectChoice) -> torch.Tensor:
    """What is seen of one annotated bar of that colour."""
    pixels = torch.zeros(3, 96, 96, dtype=torch.uint8)
    pixels[:, 20:40, 20:70] = colour
    image = viewed(pixels, torch.tensor([[20.0, 20, 70, 40]]))
    finder = ObjectFinder(detector, _Means(), WholeBoxes(), choice)
    seen = finder.look_at_annotated(image)
    assert seen.shape == (1, finder.num_features)
    return seen


def test_an_outline_is_seen_alike_whatever_the_colour(detector: Detector):
    plain = replace(CHOICE, outlines=False)
    both = replace(CHOICE, outlines=True)
    dark, light = (see_a_bar(detector, colour, both) for colour in (60, 250))
    assert dark.shape == (1, 6)
    assert torch.equal(dark[:, 3:], light[:, 3:])
    for colour, seen in ((60, dark), (250, light)):
        alone = torch.nn.functional.normalize(see_a_bar(detector, colour, plain))
        torch.testing.assert_close(seen[:, :3], alone)
