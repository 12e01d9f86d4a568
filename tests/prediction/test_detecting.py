from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from pycocotools import mask as run_lengths
from torch import Tensor, nn
from torchvision.ops import box_iou

from rncdl.config import DetectorSettings
from rncdl.data.samples import Sample
from rncdl.detector import locating
from rncdl.detector.locating import RegionCache, Search, locate
from rncdl.detector.model import Detector, ImageBatch
from rncdl.detector.proposals import Proposals
from rncdl.prediction.classifier import Classifier, LooksAtPixels, trained_classifier
from rncdl.prediction.detecting import Limits, best_detections, detect
from rncdl.prediction.outlining import outline_regions
from rncdl.regions import Regions
from tests.detector.conftest import rectangle_sample


def brute_force(
    boxes: Tensor, scores: Tensor, *, min_score: float, nms: float, max_detections: int
) -> list[tuple[int, int]]:
    """Every (row, class) above `min_score` in turn, class by class."""
    overlap = box_iou(boxes, boxes)
    kept: list[tuple[int, int]] = []
    for label in range(scores.shape[1]):
        of_class: list[int] = []
        for row in scores[:, label].argsort(descending=True).tolist():
            if scores[row, label] > min_score and all(overlap[row, o] <= nms for o in of_class):
                of_class.append(row)
        kept += [(row, label) for row in of_class]
    kept.sort(key=lambda pair: -scores[pair].item())
    return kept[:max_detections]


def crowded(seed: int, num_boxes: int, num_classes: int) -> tuple[Tensor, Tensor]:
    """Boxes in a few heaps, so that NMS removes most, with scores that are all different."""
    generator = torch.Generator().manual_seed(seed)
    heaps = torch.tensor([[0.0, 0, 50, 50], [400, 300, 480, 420], [900, 20, 1300, 700]])
    boxes = heaps.repeat(num_boxes, 1)[:num_boxes]
    boxes = boxes + torch.rand(num_boxes, 4, generator=generator) * 20
    logits = torch.randn(num_boxes, num_classes, generator=generator) * 2
    return boxes, logits.softmax(1)


@pytest.mark.parametrize("max_detections", [1, 5, 40, 1000])
@pytest.mark.parametrize("min_score", [0.0, 1e-2, 0.9999])
def test_best_detections_equal_brute_force(max_detections: int, min_score: float) -> None:
    for seed in range(3):
        boxes, scores = crowded(seed, 60, 7)
        row, label = best_detections(
            boxes, scores, min_score=min_score, nms=0.5, max_detections=max_detections
        )
        expected = brute_force(
            boxes, scores, min_score=min_score, nms=0.5, max_detections=max_detections
        )
        assert list(zip(row.tolist(), label.tolist(), strict=True)) == expected


def test_no_regions_no_detections() -> None:
    for num_classes in (0, 4):
        row, label = best_detections(
            torch.zeros(0, 4), torch.zeros(0, num_classes), min_score=0, nms=0.5, max_detections=9
        )
        assert row.tolist() == label.tolist() == []


def test_thousands_of_classes_keep_the_fractions_of_pixels() -> None:
    """Two boxes with an IoU just under the threshold survive in every one of 2000 classes."""
    boxes = torch.tensor([[1000.0, 1000, 1001, 1001], [1000.34, 1000, 1001.34, 1001]])
    assert 0.49 < box_iou(boxes, boxes)[0, 1] < 0.5
    scores = torch.linspace(0.1, 0.9, 4000).view(2, 2000)
    row, label = best_detections(boxes, scores, min_score=1e-4, nms=0.5, max_detections=5000)
    assert row.tolist() == [1] * 2000 + [0] * 2000
    assert label.tolist() == list(range(1999, -1, -1)) * 2


@pytest.fixture(scope="module")
def detector(tiny_settings: DetectorSettings) -> Detector:
    torch.manual_seed(0)
    made = Detector(tiny_settings, 3, masks=True).eval()
    nn.init.normal_(made.known_head.weight, std=0.1)  # scores far enough apart to keep their order
    return made


SEARCH = Search(before_nms=50, nms=0.7, per_image=20)
LIMITS = Limits(SEARCH, min_score=1e-4, nms=0.5, max_detections=10)


def known_classifier(detector: Detector) -> Classifier:
    return trained_classifier(detector, "abc")


def run(detector: Detector, samples: list[Sample]) -> list[Regions]:
    (regions,) = detect(detector, samples, [known_classifier(detector)], limits=LIMITS).regions()
    return regions


def test_detections_are_sorted_and_in_the_pixels_of_the_image_on_disk(detector: Detector) -> None:
    sample = rectangle_sample([[8, 8, 40, 48]], [1])
    (small,) = run(detector, [sample])
    sample.original_size = (192, 128)
    (large,) = run(detector, [sample])
    assert len(small) == 10
    torch.testing.assert_close(large.boxes_xyxy, small.boxes_xyxy * torch.tensor([2.0, 3, 2, 3]))
    assert small.scores is not None
    assert small.labels is not None
    assert small.rles is not None
    assert large.rles is not None
    assert torch.equal(small.scores, small.scores.sort(descending=True).values)
    assert set(small.labels.tolist()) <= {0, 1, 2}
    for rle, box in zip(large.rles, large.boxes_xyxy, strict=True):
        assert rle["size"] == [192, 128]
        x, y, width, height = run_lengths.toBbox(rle).tolist()
        if width and height:
            assert x >= box[0] - 1
            assert y >= box[1] - 1
            assert x + width <= box[2] + 1
            assert y + height <= box[3] + 1


def test_images_of_a_batch_get_their_own_detections(detector: Detector) -> None:
    samples = [rectangle_sample([[8, 8, 40, 48]], [0]), rectangle_sample([[30, 2, 60, 60]], [1])]
    together = run(detector, samples)
    for sample, regions in zip(samples, together, strict=True):
        (alone,) = run(detector, [sample])
        torch.testing.assert_close(regions.boxes_xyxy, alone.boxes_xyxy, rtol=1e-3, atol=1e-2)


def test_unwanted_outputs_leave_their_places_to_others(detector: Detector) -> None:
    samples = [rectangle_sample([[8, 8, 40, 48]], [0])]
    [best] = run(detector, samples)
    assert best.labels is not None
    unwanted = best.labels[0]
    whole = known_classifier(detector)
    classifiers = [whole, whole.limited_to(torch.arange(3) != unwanted)]
    [every], [some] = detect(detector, samples, classifiers, limits=LIMITS).regions()
    assert every.labels is not None
    assert some.labels is not None
    assert some.within_cut is not None
    assert (every.labels == unwanted).any()
    assert not (some.labels == unwanted).any()
    assert len(some) == 10
    assert some.within_cut.sum() == (every.labels != unwanted).sum()


class ByWidth(nn.Module, LooksAtPixels):
    """Scores a box by its width in the first output and by its image's brightness in the second."""

    def __init__(self) -> None:
        super().__init__()
        self.times_asked = 0

    def classify_boxes(self, batch: ImageBatch, boxes: Sequence[Tensor]) -> Tensor:
        self.times_asked += 1
        return torch.cat(
            [
                torch.stack([(own[:, 2] - own[:, 0]) / 64, image.mean().sigmoid().expand(len(own))])
                for own, image in zip(boxes, batch.pixels, strict=True)
            ],
            1,
        ).T


def test_a_classifier_may_look_at_the_boxes_in_the_image(detector: Detector) -> None:
    """It is shown the boxes that are returned, and asked once for all that it serves."""
    samples = [rectangle_sample([[8, 8, 40, 48]], [0]), rectangle_sample([], [])]
    samples[0].original_size = (128, 128)
    by_width = ByWidth()
    classifier = Classifier(by_width, names=("wide", "bright"), num_known=2)
    classifiers = [classifier, classifier.limited_to(torch.tensor([True, False]))]
    _, some = detect(detector, samples, classifiers, limits=LIMITS).regions()
    assert by_width.times_asked == 1
    for regions, scale in zip(some, (2, 1), strict=True):
        assert regions.scores is not None
        assert len(regions)
        widths = regions.boxes_xyxy[:, 2] - regions.boxes_xyxy[:, 0]
        torch.testing.assert_close(regions.scores, widths / (64 * scale))


def test_each_refinement_starts_where_the_last_one_ended(detector: Detector) -> None:
    nn.init.normal_(detector.box_regressor.weight, std=0.1)
    samples = [rectangle_sample([[8, 8, 40, 48]], [0])]
    batch = detector.batch_images([samples[0].image])
    maps = detector.feature_maps(batch)
    with torch.no_grad():
        once, twice = (
            locate(detector, maps, batch, search=replace(SEARCH, refinements=count))
            for count in (1, 2)
        )
        features = detector.region_features(maps, once.boxes)
        (moved,) = detector.refine_boxes(features, once.boxes, batch.sizes_hw)
    assert not torch.allclose(once.boxes[0], twice.boxes[0], atol=0.5)
    torch.testing.assert_close(twice.boxes[0], moved)
    torch.testing.assert_close(twice.features, features)
    assert torch.equal(twice.objectness[0], once.objectness[0])


def test_boxes_are_fitted_to_masks_where_there_are_any(
    detector: Detector, tiny_settings: DetectorSettings
) -> None:
    batch = detector.batch_images([rectangle_sample([[8, 8, 40, 48]], [0]).image])
    fitted = replace(SEARCH, mask_share=1.0)
    maskless = Detector(tiny_settings, 3, masks=False).eval()
    maskless.load_state_dict(detector.state_dict(), strict=False)
    with torch.no_grad():
        maps = detector.feature_maps(batch)
        plain, moved, unmoved = (
            locate(one, maps, batch, search=search).boxes[0]
            for one, search in ((detector, SEARCH), (detector, fitted), (maskless, fitted))
        )
    assert not torch.equal(plain, moved)
    assert torch.equal(plain, unmoved)


@pytest.mark.parametrize("with_masks", [True, False])
def test_what_was_seen_is_not_searched_for_again(
    detector: Detector, monkeypatch: pytest.MonkeyPatch, with_masks: bool
) -> None:
    samples = [rectangle_sample([[8, 8, 40, 48]], [0]), rectangle_sample([[30, 2, 60, 60]], [1])]
    samples[1].image_index = 1
    classifiers, cache = [known_classifier(detector)], RegionCache()

    def look() -> list[Regions]:
        (found,) = detect(
            detector, samples, classifiers, limits=LIMITS, with_masks=with_masks, cache=cache
        ).regions()
        return found

    first = look()
    assert cache.get([1, 0]) is None
    monkeypatch.setattr(Detector, "score_anchors", None)
    if not with_masks:
        monkeypatch.setattr(Detector, "feature_maps", None)
    for one, other in zip(first, look(), strict=True):
        assert one.scores is not None
        assert other.scores is not None
        assert torch.equal(one.boxes_xyxy, other.boxes_xyxy)
        assert torch.equal(one.scores, other.scores)
        assert one.rles == other.rles
        assert (one.rles is not None) == with_masks


def test_regions_beyond_the_cache_s_room_are_not_kept(detector: Detector) -> None:
    batch = detector.batch_images([rectangle_sample([[8, 8, 40, 48]], [0]).image])
    with torch.no_grad():
        located = locate(detector, detector.feature_maps(batch), batch, search=SEARCH)
    num_bytes = 20 * (64 + 4) * 4
    cache = RegionCache(most_bytes=2 * num_bytes + 1)
    for image in (1, 2, 2, 3):
        cache.keep([image], located)
    assert cache.get([2]) is located
    assert cache.get([3]) is None


def test_an_image_without_proposals_has_no_detections(
    detector: Detector, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = Proposals(torch.zeros(0, 4), torch.zeros(0))
    monkeypatch.setattr(locating, "select_proposals", lambda *_, **__: [nothing])
    limits = replace(LIMITS, search=replace(SEARCH, refinements=2, mask_share=0.5))
    samples, classifiers = [rectangle_sample([], [])], [known_classifier(detector)]
    ((regions,),) = detect(detector, samples, classifiers, limits=limits).regions()
    assert len(regions) == 0
    assert regions.rles == []


def test_a_detector_without_masks_gives_boxes_alone(tiny_settings: DetectorSettings) -> None:
    (regions,) = run(
        Detector(tiny_settings, 3, masks=False).eval(), [rectangle_sample([[8, 8, 40, 48]], [0])]
    )
    assert len(regions) == 10
    assert regions.rles is None


def test_masks_and_features_come_as_asked(detector: Detector) -> None:
    samples, classifiers = [rectangle_sample([[8, 8, 40, 48]], [1])], [known_classifier(detector)]
    plain = run(detector, samples)[0]
    lean = detect(
        detector, samples, classifiers, limits=LIMITS, with_masks=False, with_features=True
    ).regions()[0][0]
    assert plain.features is None
    assert plain.rles is not None
    assert lean.rles is None
    assert torch.equal(plain.boxes_xyxy, lean.boxes_xyxy)
    assert lean.features is not None
    assert lean.scores is not None
    assert lean.labels is not None
    again = detector.known_head(lean.features).softmax(1)
    rows = torch.arange(len(lean))
    assert torch.allclose(again[rows, lean.labels], lean.scores, atol=1e-6)


def test_regions_found_before_get_the_masks_that_they_had(detector: Detector) -> None:
    sample = rectangle_sample([[8, 8, 40, 48]], [1])
    sample.original_size = (192, 128)
    (found,) = run(detector, [sample])
    assert found.rles is not None
    assert max(run_lengths.area(found.rles)) > 0
    again = outline_regions(detector, sample, found.boxes_xyxy)
    for before, after in zip(found.rles, again, strict=True):
        assert after["size"] == [192, 128]
        overlap = run_lengths.iou([after], [before], [0])[0, 0]
        assert overlap > 0.99 or run_lengths.area(before) == run_lengths.area(after) == 0
    assert outline_regions(detector, sample, torch.zeros(0, 4)) == []
