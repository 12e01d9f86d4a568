import torch

from rncdl.discovery.extraction import match_proposals

TRUTH = torch.tensor([[0.0, 0.0, 10.0, 10.0], [20.0, 20.0, 40.0, 40.0]])
LABELS = torch.tensor([4, 7])


def match(proposals, *, truth=TRUTH, labels=LABELS, most=100):
    return match_proposals(
        torch.tensor(proposals).reshape(-1, 4), truth, labels, min_iou=0.5, most=most
    )


def test_no_annotations_match_nothing():
    boxes, labels = match([[0.0, 0.0, 10.0, 10.0]], truth=torch.zeros(0, 4), labels=LABELS[:0])
    assert boxes.shape == (0, 4)
    assert labels.shape == (0,)


def test_no_proposals_leave_the_annotations_themselves():
    boxes, labels = match([])
    assert torch.equal(boxes, TRUTH)
    assert labels.tolist() == [4, 7]


def test_proposals_take_the_label_of_what_they_cover_and_background_is_left_out():
    boxes, labels = match(
        [
            [21.0, 21.0, 40.0, 40.0],
            [100.0, 100.0, 120.0, 120.0],  # background
            [0.0, 0.0, 10.0, 19.0],  # IoU 10 / 19 with the first
            [0.0, 0.0, 10.0, 21.0],  # IoU 10 / 21, just too little
        ]
    )
    assert labels.tolist() == [4, 7, 7, 4]
    assert boxes[2:].tolist() == [[21.0, 21.0, 40.0, 40.0], [0.0, 0.0, 10.0, 19.0]]


def test_the_limit_keeps_annotations_first():
    _, labels = match([[21.0, 21.0, 40.0, 40.0]], most=2)
    assert labels.tolist() == [4, 7]
