import math

import torch
from torchvision.ops import box_iou

from rncdl.detector.boxes import (
    at_least_float32,
    cell_anchors,
    clip_boxes,
    has_area,
    paired_iou,
    pyramid_anchors,
)

CPU = torch.device("cpu")


def test_no_cells_no_anchors() -> None:
    anchors = pyramid_anchors(((0, 0),), (4,), sizes_px=(8.0,), ratios=(1.0,), device=CPU)
    assert anchors.shape == (0, 4)


def test_cell_anchors_keep_the_area_and_have_the_ratio() -> None:
    boxes = cell_anchors(32, (0.5, 1.0, 2.0))
    width, height = (boxes[:, 2:] - boxes[:, :2]).T
    torch.testing.assert_close(width * height, torch.full((3,), 1024.0))
    torch.testing.assert_close(height / width, torch.tensor([0.5, 1.0, 2.0]))
    torch.testing.assert_close(boxes[:, :2], -boxes[:, 2:])


def test_pyramid_anchors_go_level_row_column_ratio() -> None:
    shapes, strides, sizes, ratios = ((2, 3), (1, 2)), (4, 8), (8.0, 16.0), (1.0, 4.0)
    expected = [
        [
            x * stride - size / math.sqrt(ratio) / 2,
            y * stride - size * math.sqrt(ratio) / 2,
            x * stride + size / math.sqrt(ratio) / 2,
            y * stride + size * math.sqrt(ratio) / 2,
        ]
        for (height, width), stride, size in zip(shapes, strides, sizes, strict=True)
        for y in range(height)
        for x in range(width)
        for ratio in ratios
    ]
    found = pyramid_anchors(
        shapes,
        strides,
        sizes_px=sizes,
        ratios=ratios,
        device=CPU,
    )
    torch.testing.assert_close(found, torch.tensor(expected))


def test_clipping_uses_each_image_s_own_size() -> None:
    boxes = torch.tensor([[-5.0, -5, 50, 50], [3, 4, 5, 6]]).expand(2, 2, 4)
    sizes = torch.tensor([[10, 20], [30, 40]])[:, None]
    expected = torch.tensor(
        [[[0.0, 0, 20, 10], [3, 4, 5, 6]], [[0, 0, 40, 30], [3, 4, 5, 6]]],
    )
    torch.testing.assert_close(clip_boxes(boxes, sizes), expected)


def test_boxes_without_area() -> None:
    nan = float("nan")
    boxes = torch.tensor([[0.0, 0, 1, 1], [1, 0, 1, 5], [0, 2, 5, 1], [nan, 0, 1, 1]])
    assert has_area(boxes).tolist() == [True, False, False, False]
    assert has_area(torch.zeros(0, 4)).tolist() == []


def test_half_precision_is_lifted_and_double_kept() -> None:
    kinds = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    lifted = [at_least_float32(torch.zeros(1, dtype=kind)).dtype for kind in kinds]
    assert lifted == [torch.float32] * 3 + [torch.float64]


def test_paired_iou_is_the_diagonal_of_all_pairs() -> None:
    corners = torch.rand(2, 50, 2, generator=torch.Generator().manual_seed(0))
    boxes, others = (torch.cat([one, one + 0.5], 1) for one in corners)
    torch.testing.assert_close(paired_iou(boxes, others), box_iou(boxes, others).diagonal())
    point = torch.zeros(1, 4)
    assert paired_iou(point, point).tolist() == [0.0]
