import pytest
import torch
from torch import Tensor

from rncdl.detector.pooling import align_by_level, align_by_rows, assign_levels, pool_regions


def pyramid(seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(2, 3, 24 // 2**i, 32 // 2**i, generator=generator, dtype=torch.float64)
        for i in range(4)
    ]


def awkward_boxes() -> Tensor:
    """Inside, across every border, outside, without area, all over the image."""
    boxes = [
        [10.2, 5.1, 40.7, 60.3],
        [-21.3, -20.9, 30.7, 31.1],
        [100.3, 70.1, 201.7, 150.9],
        [300, 300, 400, 400],
        [8, 8, 8, 8],
        [0, 0, 128, 96],
        [3.3, 4.4, 5.5, 6.6],
    ]
    return torch.tensor(boxes, dtype=torch.float64)


def test_levels_of_known_sizes() -> None:
    sides = torch.tensor([0.0, 1, 55, 57, 111, 112, 223, 224, 447, 448, 5000])
    boxes = torch.stack((sides * 0, sides * 0, sides, sides), 1)
    levels = assign_levels(boxes, reference_px=224, num_levels=4)
    assert levels.tolist() == [0, 0, 0, 0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("sampling_ratio", [0, 2])
def test_no_boxes(sampling_ratio: int) -> None:
    none = torch.zeros(0, 4, dtype=torch.float64)
    found = pool_regions(
        pyramid(),
        [none, none],
        output_size=7,
        reference_px=32,
        sampling_ratio=sampling_ratio,
    )
    assert found.shape == (0, 3, 7, 7)


@pytest.mark.parametrize("sampling_ratio", [1, 2, 3])
def test_both_ways_agree_in_value_and_gradient(sampling_ratio: int) -> None:
    boxes = awkward_boxes()
    images = torch.arange(len(boxes)) % 2
    for level in range(4):
        levels = torch.full((len(boxes),), level)
        results = []
        for align in (align_by_level, align_by_rows):
            maps = [m.requires_grad_() for m in pyramid()]
            pooled = align(
                maps,
                boxes,
                images=images,
                levels=levels,
                output_size=5,
                sampling_ratio=sampling_ratio,
            )
            pooled.square().sum().backward()
            results.append((pooled.detach(), maps[level].grad))
        (values, gradient), (other_values, other_gradient) = results
        torch.testing.assert_close(values, other_values)
        torch.testing.assert_close(gradient, other_gradient)


@pytest.mark.parametrize("sampling_ratio", [0, 2])
def test_regions_keep_their_order_and_image(sampling_ratio: int) -> None:
    boxes = awkward_boxes()
    split = [boxes[:3], boxes[3:]]
    together = pool_regions(
        pyramid(), split, output_size=4, reference_px=32, sampling_ratio=sampling_ratio
    )
    row = 0
    for image, image_boxes in enumerate(split):
        for box in image_boxes:
            alone = pool_regions(
                [m[[image]] for m in pyramid()],
                [box[None]],
                output_size=4,
                reference_px=32,
                sampling_ratio=sampling_ratio,
            )
            torch.testing.assert_close(together[row], alone[0])
            row += 1


def test_a_constant_map_is_pooled_to_its_value() -> None:
    maps = [torch.full((1, 1, 24 // 2**i, 32 // 2**i), 2.0**i) for i in range(4)]
    boxes = torch.tensor([[10.0, 10, 20, 20], [10, 10, 60, 60], [5, 5, 120, 90]])
    found = pool_regions(maps, [boxes], output_size=3, reference_px=64, sampling_ratio=2)
    levels = assign_levels(boxes, reference_px=64, num_levels=4)
    assert levels.tolist() == [0, 1, 2]
    torch.testing.assert_close(found[:, 0, 1, 1], 2.0**levels)
