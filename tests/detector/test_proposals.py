import torch
from torch import Tensor
from torchvision.ops import box_iou

from rncdl.detector.proposals import AnchorScores, select_proposals

SIZES = [(40, 60), (64, 64)]


def random_scores(seed: int = 0) -> AnchorScores:
    generator = torch.Generator().manual_seed(seed)
    corners = torch.rand(60, 2, generator=generator) * 40
    sides = 5 + torch.rand(60, 2, generator=generator) * 30
    return AnchorScores(
        logits=torch.randn(2, 60, generator=generator),
        deltas=torch.randn(2, 60, 4, generator=generator) * 0.2,
        anchors_xyxy=torch.cat((corners, corners + sides), 1),
        level_counts=(40, 15, 5),
    )


def decoded(anchors: Tensor, deltas: Tensor) -> Tensor:
    side = anchors[:, 2:] - anchors[:, :2]
    centre = anchors[:, :2] + side / 2 + deltas[:, :2] * side
    half = side * deltas[:, 2:].exp() / 2
    return torch.cat((centre - half, centre + half), 1)


def reference(
    scores: AnchorScores, image: int, *, nms: float, before: int, after: int
) -> tuple[Tensor, Tensor]:
    """Level by level, box by box."""
    height, width = SIZES[image]
    boxes = decoded(scores.anchors_xyxy, scores.deltas[image])
    boxes = boxes.clamp(min=0).minimum(torch.tensor([width, height, width, height]))
    kept: list[int] = []
    start = 0
    for count in scores.level_counts:
        order = scores.logits[image, start : start + count].argsort(descending=True)[:before]
        level: list[int] = []
        for index in (order + start).tolist():
            x0, y0, x1, y1 = boxes[index].tolist()
            if x1 <= x0 or y1 <= y0:
                continue
            if all(box_iou(boxes[[index]], boxes[[other]]) <= nms for other in level):
                level.append(index)
        kept += level
        start += count
    kept.sort(key=lambda index: -scores.logits[image, index].item())
    return boxes[kept[:after]], scores.logits[image, kept[:after]]


def test_nothing_when_every_box_is_empty() -> None:
    scores = random_scores()
    scores.anchors_xyxy = torch.tensor([-50.0, -50, -40, -40]).expand(60, 4)
    scores.deltas = torch.zeros(2, 60, 4)
    for nms in (0.7, None):
        found = select_proposals(scores, SIZES, nms=nms, before_nms=10, after_nms=10)
        assert [len(p.boxes_xyxy) for p in found] == [0, 0]
        assert [len(p.objectness) for p in found] == [0, 0]


def test_equals_the_reference() -> None:
    scores = random_scores()
    for nms, before, after in ((0.5, 12, 20), (0.3, 100, 100), (0.7, 40, 7)):
        found = select_proposals(scores, SIZES, nms=nms, before_nms=before, after_nms=after)
        for image, proposals in enumerate(found):
            boxes, logits = reference(scores, image, nms=nms, before=before, after=after)
            torch.testing.assert_close(proposals.boxes_xyxy, boxes)
            torch.testing.assert_close(proposals.objectness, logits)


def test_without_nms_the_best_of_all_levels() -> None:
    scores = random_scores()
    found = select_proposals(scores, SIZES, nms=None, before_nms=60, after_nms=25)
    for image, proposals in enumerate(found):
        boxes, logits = reference(scores, image, nms=1.0, before=60, after=25)
        torch.testing.assert_close(proposals.boxes_xyxy, boxes)
        torch.testing.assert_close(proposals.objectness, logits)


def test_no_gradient_flows_through_proposals() -> None:
    scores = random_scores()
    scores.deltas.requires_grad_()
    (first, _) = select_proposals(scores, SIZES, nms=0.7, before_nms=10, after_nms=10)
    assert not first.boxes_xyxy.requires_grad
