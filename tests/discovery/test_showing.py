"""Known objects tell whether the teacher sees objects better cut out or as they lie there."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rncdl.config import DetectorSettings, Settings, change
from rncdl.data.viewed_images import ViewedImage
from rncdl.detector.locating import Search
from rncdl.detector.model import Detector
from rncdl.discovery.object_bank import possible_masks, possible_ways
from rncdl.discovery.object_views import Masks, ObjectChoice, ObjectFinder
from rncdl.discovery.showing import held_out_separation, separation, separations
from rncdl.discovery.teacher import Teacher
from rncdl.errors import UserError
from rncdl.segmentation.segmenter import Segmenter

RED, GREEN, BLUE = ([250, 0, 0], [0, 250, 0], [0, 0, 250])


class WholeBoxes(Segmenter):
    """Takes the middle of the box, which is shown enlarged, for the object."""

    def segment(self, image: np.ndarray, boxes_xyxy: np.ndarray) -> np.ndarray:
        masks = np.zeros((len(boxes_xyxy), *image.shape[:2]), dtype=bool)
        for mask, (x1, y1, x2, y2) in zip(masks, boxes_xyxy, strict=True):
            margin = (x2 - x1) / 12
            mask[
                round(y1 + margin) : round(y2 - margin), round(x1 + margin) : round(x2 - margin)
            ] = 1
        return masks


class MeanColour(nn.Module):
    def forward(self, pixels: Tensor) -> Tensor:
        return pixels.mean((2, 3))


def picture(number: int, label: int, *, of_object: list[int], around: list[int]) -> ViewedImage:
    """An image of one colour with a square of another, which is annotated."""
    pixels = torch.tensor(around, dtype=torch.uint8)[:, None, None].repeat(1, 60, 60)
    pixels[:, 20:40, 20:40] = torch.tensor(of_object, dtype=torch.uint8)[:, None, None]
    return ViewedImage(
        image_index=number,
        path=f"{number}.png",
        plain=pixels,
        plain_scale_xy=(1.0, 1.0),
        views=[],
        boxes_xyxy=torch.tensor([[20.0, 20, 40, 40]]),
        labels=torch.tensor([label]),
    )


def told_by_object() -> Iterator[ViewedImage]:
    """Class 0 is red, class 1 green; each lies once on the same background as the other."""
    backgrounds = [[255, 255, 255], [0, 0, 0], BLUE, [255, 0, 255], [0, 255, 255], [255, 255, 0]]
    for number in range(12):
        of_object = [RED, GREEN][number % 2]
        yield picture(number, number % 2, of_object=of_object, around=backgrounds[number // 2])


def told_by_surroundings() -> Iterator[ViewedImage]:
    """All objects look alike but for noise; class 0 lies on red, class 1 on green."""
    for number in range(12):
        grey = [100 + 17 * number % 23] * 3
        yield picture(number, number % 2, of_object=grey, around=[RED, GREEN][number % 2])


def finder(masks: Masks) -> ObjectFinder:
    settings = DetectorSettings(backbone="resnet10", fpn_channels=8, box_head_width=16)
    detector = Detector(settings, 2, masks=False).eval()
    teacher = Teacher(MeanColour(), pixel_mean=[127.0] * 3, pixel_std=[127.0] * 3)
    search = Search(before_nms=20, nms=0.7, per_image=20)
    choice = ObjectChoice(search, per_image=4, masks=masks, crop_px=32, padding=1.5)
    return ObjectFinder(detector, teacher, WholeBoxes(), choice)


def test_objects_are_cut_out_where_their_surroundings_say_nothing():
    whole, cut = separations([finder("none"), finder("segmenter")], told_by_object())
    assert cut == 1
    assert whole < 0.5


def test_surroundings_are_shown_where_they_tell():
    whole, cut = separations([finder("none"), finder("segmenter")], told_by_surroundings())
    assert whole == 1
    assert cut < 1


def test_without_annotated_objects_nothing_tells():
    assert separations([finder("none"), finder("segmenter")], []) == [0.5, 0.5]


def test_the_separation_is_the_area_under_the_curve_in_other_images():
    draw = torch.Generator().manual_seed(0)
    features, labels = torch.randn(40, 6, generator=draw), torch.arange(40) % 3
    features[labels == 0] += 1
    images = torch.arange(40) // 2
    unit = torch.nn.functional.normalize(features)
    expected = []
    for known in range(3):
        areas = []
        for row in (labels == known).nonzero().flatten().tolist():
            pairs = [
                (float(unit[row] @ unit[one]), float(unit[row] @ unit[other]))
                for one in range(40)
                for other in range(40)
                if images[row] not in (images[one], images[other])
                and labels[one] == known != labels[other]
            ]
            areas.append(np.mean([own > others for own, others in pairs]))
        expected.append(np.mean(areas))
    assert separation(features, labels, images) == pytest.approx(np.mean(expected), abs=1e-6)


def test_classes_are_told_in_the_space_of_others():
    draw = torch.Generator().manual_seed(0)
    labels, images = torch.arange(400) % 8, torch.arange(400)
    features = torch.eye(9)[labels] + 0.05 * torch.randn(400, 9, generator=draw)
    features[:, 8] += 2 * torch.randn(400, generator=draw)  # within every class, so about none
    assert held_out_separation(features, labels, images) > separation(features, labels, images)
    # Of other classes nobody learns which directions say nothing about one's own.
    own_noise = torch.eye(16)[labels] + 0.05 * torch.randn(400, 16, generator=draw)
    own_noise[torch.arange(400), 8 + labels] += 2 * torch.randn(400, generator=draw)
    assert held_out_separation(features, labels, images) > held_out_separation(
        own_noise, labels, images
    )


def test_few_classes_are_told_in_a_space_that_knows_none():
    labels = torch.tensor([0, 0, 1, 1])
    grouped = torch.tensor([[1.0, 0], [1, 0.01], [0, 1], [0.01, 1]])
    assert held_out_separation(grouped, labels, torch.arange(4)) == 1


def test_the_separation_of_what_is_all_alike_says_nothing():
    labels = torch.tensor([0, 0, 1, 1])
    assert separation(torch.ones(4, 3), labels, torch.arange(4)) == pytest.approx(0.5)
    assert separation(torch.eye(4), labels, torch.zeros(4)) == 0.5
    grouped = torch.tensor([[1.0, 0], [1, 0.01], [0, 1], [0.01, 1]])
    assert separation(grouped, labels, torch.arange(4)) == 1


@pytest.mark.parametrize(
    ("wanted", "segmenter", "has_masks", "ways"),
    [
        ("auto", "grabcut", True, ["none", "both"]),
        ("auto", "grabcut", False, ["none", "segmenter"]),
        ("auto", "none", True, ["none", "own"]),
        ("auto", "none", False, ["none"]),
        ("both", "grabcut", True, ["both"]),
        ("both", "grabcut", False, ["segmenter"]),
        ("both", "none", True, ["own"]),
        ("both", "none", False, ["none"]),
        ("own", "grabcut", True, ["own"]),
        ("own", "grabcut", False, ["none"]),
        ("segmenter", "grabcut", True, ["segmenter"]),
        ("none", "grabcut", True, ["none"]),
    ],
)
def test_ways_of_showing_are_those_that_there_are(wanted, segmenter, has_masks, ways):
    settings = change(Settings(), teacher={"masks": wanted}, segmentation={"segmenter": segmenter})
    assert possible_masks(settings, has_masks=has_masks) == ways


def test_a_segmenter_that_is_wanted_and_not_named_is_told_of():
    with pytest.raises(UserError, match=r"segmentation\.segmenter=grabcut"):
        possible_masks(change(Settings(), teacher={"masks": "segmenter"}), has_masks=True)


@pytest.mark.parametrize(
    ("masks", "outlines", "ways"),
    [
        ("auto", "auto", [("none", False), ("own", False), ("own", True)]),
        ("auto", True, [("none", False), ("own", True)]),
        ("own", False, [("own", False)]),
        ("none", "auto", [("none", False)]),
        ("none", True, [("none", False)]),
    ],
)
def test_only_what_is_cut_out_has_an_outline(masks, outlines, ways):
    settings = change(Settings(), teacher={"masks": masks, "outlines": outlines})
    assert possible_ways(settings, has_masks=True) == ways
