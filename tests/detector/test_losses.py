import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torchvision.ops import box_iou

from rncdl.config import DetectorSettings
from rncdl.data.unlabelled_objects import WITHOUT_CLASS
from rncdl.detector.boxes import ANCHOR_CODER, REGION_CODER
from rncdl.detector.locating import Search
from rncdl.detector.losses import (
    SampledRegions,
    SupervisedStep,
    anchor_fit_loss,
    anchor_losses,
    crop_masks,
    iou_loss,
    region_losses,
    sample_regions,
    supervised_losses,
)
from rncdl.detector.model import Detector
from rncdl.detector.proposals import AnchorScores
from rncdl.prediction.classifier import trained_classifier
from rncdl.prediction.detecting import Limits, detect
from tests.detector.conftest import rectangle_sample

NAMES = {"rpn_objectness", "rpn_box", "box", "class", "mask"}


def anchor_scores(anchors: Tensor, num_images: int) -> AnchorScores:
    torch.manual_seed(0)
    return AnchorScores(
        logits=torch.randn(num_images, len(anchors)),
        deltas=torch.randn(num_images, len(anchors), 4),
        anchors_xyxy=anchors,
        level_counts=(len(anchors),),
    )


def test_anchor_losses_by_hand() -> None:
    # On the annotation; IoU 0.5, between the thresholds, so ignored; far away, background.
    anchors = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 20], [50, 50, 60, 60]])
    scores = anchor_scores(anchors, 2)
    truth = [torch.tensor([[0.0, 0, 10, 11]]), torch.zeros(0, 4)]
    objectness, box = anchor_losses(
        scores, truth, positive_iou=0.7, negative_iou=0.3, num_samples=4, positive_share=0.5
    )
    logits = scores.logits
    chosen = torch.cat((logits[0, [0, 2]], logits[1]))
    targets = torch.tensor([1.0, 0, 0, 0, 0])
    expected = functional.binary_cross_entropy_with_logits(chosen, targets, reduction="sum")
    torch.testing.assert_close(objectness, expected / 8)
    offsets = ANCHOR_CODER.encode_single(truth[0], anchors[:1])
    torch.testing.assert_close(box, (scores.deltas[0, :1] - offsets).abs().sum() / 8)


def test_objectness_by_fit_learns_from_anchors_on_objects_alone() -> None:
    # IoU 10/11 with the annotation; 0.5; less than 0.3; and one of an image without annotations.
    anchors = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 22], [0, 8, 10, 18]])
    scores = anchor_scores(anchors, 2)
    scores.logits.requires_grad_()
    truth = [torch.tensor([[0.0, 0, 10, 11]]), torch.zeros(0, 4)]
    loss = anchor_fit_loss(scores, truth, num_samples=8)
    predicted = scores.logits[0, :2].sigmoid()
    expected = (predicted - torch.tensor([10 / 11, 0.5])).abs().mean()
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert scores.logits.grad is not None
    assert scores.logits.grad[0, :2].all()
    assert not scores.logits.grad[0, 2]
    assert not scores.logits.grad[1].any()


def test_objectness_by_fit_without_any_annotation_teaches_nothing() -> None:
    scores = anchor_scores(torch.tensor([[0.0, 0, 10, 10]]), 1)
    assert anchor_fit_loss(scores, [torch.zeros(0, 4)], num_samples=8) == 0


def test_the_best_anchor_of_an_annotation_counts_even_when_it_fits_badly() -> None:
    anchors = torch.tensor([[0.0, 0, 10, 10], [50, 50, 60, 60]])
    scores = anchor_scores(anchors, 1)
    _, box = anchor_losses(
        scores,
        [torch.tensor([[0.0, 0, 2, 2]])],
        positive_iou=0.7,
        negative_iou=0.3,
        num_samples=4,
        positive_share=0.5,
    )
    assert box > 0


def test_sampling_keeps_the_shares() -> None:
    torch.manual_seed(0)
    truth = torch.tensor([[0.0, 0, 10, 10], [20, 20, 40, 40]])
    boxes = torch.cat(
        (
            truth[[0]].repeat(30, 1),
            truth[[1]].repeat(30, 1),
            torch.tensor([[60.0, 60, 70, 70]] * 60),
        )
    )
    sampled = sample_regions(boxes, truth, positive_iou=0.5, num_samples=40, positive_share=0.25)
    assert len(sampled.boxes_xyxy) == 40
    assert (sampled.matches >= 0).sum() == 10
    positive = sampled.matches >= 0
    assert torch.equal(sampled.boxes_xyxy[positive], truth[sampled.matches[positive]])
    assert (sampled.boxes_xyxy[~positive] == torch.tensor([60.0, 60, 70, 70])).all()


@pytest.mark.parametrize("num_boxes", [0, 5])
def test_sampling_without_annotations_gives_background(num_boxes: int) -> None:
    sampled = sample_regions(
        torch.rand(num_boxes, 4),
        torch.zeros(0, 4),
        positive_iou=0.5,
        num_samples=40,
        positive_share=0.25,
    )
    assert sampled.matches.tolist() == [-1] * num_boxes


def test_region_losses_by_hand() -> None:
    torch.manual_seed(0)
    truth = [
        torch.tensor([[0.0, 0, 10, 10]]),
        torch.zeros(0, 4),
        torch.tensor([[5.0, 5, 9, 9], [1, 1, 30, 40]]),
    ]
    labels = [torch.tensor([2]), torch.zeros(0, dtype=torch.long), torch.tensor([0, 1])]
    regions = [
        SampledRegions(torch.tensor([[0.0, 0, 9, 9], [50, 50, 60, 60]]), torch.tensor([0, -1])),
        SampledRegions(torch.tensor([[1.0, 1, 2, 2]]), torch.tensor([-1])),
        SampledRegions(torch.tensor([[2.0, 2, 30, 30]]), torch.tensor([1])),
    ]
    logits, deltas = torch.randn(4, 4), torch.randn(4, 4)
    class_loss, box_loss = region_losses(
        logits, deltas, regions=regions, truth_boxes=truth, truth_labels=labels
    )
    expected = functional.cross_entropy(logits, torch.tensor([2, 3, 3, 1]))
    torch.testing.assert_close(class_loss, expected)
    first = REGION_CODER.encode_single(truth[0], regions[0].boxes_xyxy[:1])
    last = REGION_CODER.encode_single(truth[2][1:], regions[2].boxes_xyxy)
    error = (deltas[:1] - first).abs().sum() + (deltas[3:] - last).abs().sum()
    torch.testing.assert_close(box_loss, error / 4)


def test_objects_without_a_class_teach_boxes_alone() -> None:
    torch.manual_seed(0)
    truth = [torch.tensor([[0.0, 0, 10, 10], [20, 20, 40, 40]])]
    boxes = torch.tensor([[0.0, 0, 9, 9], [20, 20, 40, 42], [60, 60, 70, 70]])
    regions = [SampledRegions(boxes, torch.tensor([0, 1, -1]))]
    logits, deltas = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4)
    labels = [torch.tensor([2, WITHOUT_CLASS])]
    class_loss, box_loss = region_losses(
        logits, deltas, regions=regions, truth_boxes=truth, truth_labels=labels
    )
    torch.testing.assert_close(
        class_loss, functional.cross_entropy(logits[[0, 2]], torch.tensor([2, 3]))
    )
    encoded = REGION_CODER.encode_single(truth[0], boxes[:2])
    torch.testing.assert_close(box_loss, (deltas[:2] - encoded).abs().sum() / 3)


def test_regions_of_objects_without_a_class_alone_have_a_class_loss_of_zero() -> None:
    box = torch.tensor([[0.0, 0, 10, 10]])
    class_loss, _ = region_losses(
        torch.randn(1, 4),
        torch.randn(1, 4),
        regions=[SampledRegions(box, torch.tensor([0]))],
        truth_boxes=[box],
        truth_labels=[torch.tensor([WITHOUT_CLASS])],
    )
    assert class_loss == 0


def test_no_regions_cost_nothing() -> None:
    none = SampledRegions(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))
    losses = region_losses(
        torch.zeros(0, 4),
        torch.zeros(0, 4),
        regions=[none],
        truth_boxes=[torch.zeros(0, 4)],
        truth_labels=[torch.zeros(0, dtype=torch.long)],
    )
    assert [loss.item() for loss in losses] == [0, 0]


def test_the_iou_of_regions_on_objects_is_learned_and_of_no_others() -> None:
    truth = [torch.zeros(0, 4), torch.tensor([[60.0, 60, 70, 70], [0, 0, 10, 10]])]
    regions = [
        SampledRegions(torch.tensor([[0.0, 0, 9, 9]]), torch.tensor([-1])),
        SampledRegions(
            torch.tensor([[0.0, 0, 10, 8], [30, 30, 40, 40], [60, 60, 70, 70]]),
            torch.tensor([1, -1, 0]),
        ),
    ]
    predicted = torch.tensor([0.9, 0.5, 0.9, 0.7], requires_grad=True)
    loss = iou_loss(predicted, regions=regions, truth_boxes=truth)
    torch.testing.assert_close(loss, torch.tensor((0.3 + 0.3) / 2))
    loss.backward()
    assert predicted.grad is not None
    assert predicted.grad.tolist() == [0, -0.5, 0, -0.5]


def test_without_an_object_the_iou_costs_nothing() -> None:
    none = SampledRegions(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))
    loss = iou_loss(
        torch.zeros(0, requires_grad=True), regions=[none], truth_boxes=[torch.zeros(0, 4)]
    )
    loss.backward()
    assert loss == 0


def test_a_detector_learns_the_iou_where_it_is_told_to(tiny_settings: DetectorSettings) -> None:
    sample = rectangle_sample([[8, 8, 40, 40]], [1])
    told = Detector(tiny_settings.model_copy(update={"localisation": True}), 2, masks=True)
    assert supervised_losses(told, [sample]).keys() == NAMES | {"iou"}
    not_told = Detector(tiny_settings, 2, masks=True)
    assert supervised_losses(not_told, [sample]).keys() == NAMES
    assert not_told.predict_iou(torch.zeros(3, 64)) is None
    # The images without annotations that stand in for unreadable ones reach the new layer too.
    empty = rectangle_sample([], [])
    torch.stack(list(supervised_losses(told, [empty]).values())).sum().backward()
    assert told.localiser is not None
    assert told.localiser.weight.grad is not None


def test_cropped_masks() -> None:
    masks = torch.zeros(3, 40, 60, dtype=torch.bool)
    masks[2, 10:30, 20:40] = True
    boxes = torch.tensor([[20.0, 10, 40, 30], [0, 10, 40, 30], [20, 10, 40, 30]])
    found = crop_masks(masks, boxes, mask_index=torch.tensor([2, 2, 0]), size=4)
    right_half = torch.tensor([0.0, 0, 1, 1]).expand(4, 4)
    assert torch.equal(found, torch.stack((torch.ones(4, 4), right_half, torch.zeros(4, 4))))


def test_a_cell_is_inside_where_half_of_it_is() -> None:
    masks = torch.zeros(1, 20, 20, dtype=torch.bool)
    for covered_px, inside in ((4, 0.0), (6, 1.0)):
        masks[0, :, :covered_px] = True
        box = torch.tensor([[0.0, 0, 10, 20]])
        found = crop_masks(masks, box, mask_index=torch.tensor([0]), size=1)
        assert found.item() == inside


def test_images_without_annotations_reach_every_parameter(
    tiny_settings: DetectorSettings,
) -> None:
    detector = Detector(tiny_settings, 3, masks=True)
    losses = supervised_losses(detector, [rectangle_sample([], [])])
    assert losses.keys() == NAMES
    assert losses["rpn_box"] == losses["box"] == losses["mask"] == 0
    torch.stack(list(losses.values())).sum().backward()
    assert [n for n, p in detector.named_parameters() if p.grad is None] == []
    statistics = [v for n, v in detector.state_dict().items() if "running" in n]
    assert all(value.isfinite().all() for value in statistics)


def test_annotations_without_masks_teach_boxes_only(tiny_settings: DetectorSettings) -> None:
    sample = rectangle_sample([[8, 8, 40, 48]], [1])
    sample.masks = None
    losses = supervised_losses(Detector(tiny_settings, 3, masks=True), [sample])
    assert losses["mask"] == 0
    assert losses["box"] > 0
    assert "mask" not in supervised_losses(Detector(tiny_settings, 3, masks=False), [sample])


def test_the_mask_loss_alone_is_weighed(tiny_settings: DetectorSettings) -> None:
    sample = rectangle_sample([[8, 8, 40, 48]], [1])
    found = []
    for weight in (1.0, 3.0):
        torch.manual_seed(0)
        settings = tiny_settings.model_copy(update={"mask_loss_weight": weight})
        found.append(supervised_losses(Detector(settings, 3, masks=True), [sample]))
    plain, weighed = found
    for name in NAMES:
        factor = 3 if name == "mask" else 1
        torch.testing.assert_close(weighed[name], factor * plain[name])


def test_a_small_detector_learns_an_image_by_heart(tiny_settings: DetectorSettings) -> None:
    torch.manual_seed(0)
    sample = rectangle_sample([[8, 8, 40, 48]], [1])
    # A random, frozen backbone will do, and BatchNorm's statistics would need more steps.
    quick = {"norm": "group", "frozen_blocks": 5, "fpn_norm": False, "mask_head_norm": False}
    settings = tiny_settings.model_copy(update=quick)
    step = SupervisedStep(Detector(settings, 3, masks=True))
    optimizer = torch.optim.Adam(step.parameters(), lr=1e-3)
    history = []
    for _ in range(40):
        losses = step([sample])
        total = torch.stack(list(losses.values())).sum()
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        history.append(total.item())
    assert losses.keys() == NAMES
    assert sum(history[-5:]) < 0.4 * sum(history[:5])
    detector = step.detector.eval()
    limits = Limits(
        Search(before_nms=100, nms=0.7, per_image=50), min_score=0.3, nms=0.5, max_detections=5
    )
    names = [str(k) for k in range(detector.num_known)]
    classifier = trained_classifier(detector, names)
    ((found,),) = detect(detector, [sample], [classifier], limits=limits).regions()
    assert found.labels is not None
    assert found.labels[0] == 1
    assert box_iou(found.boxes_xyxy[:1], sample.boxes_xyxy) > 0.6
