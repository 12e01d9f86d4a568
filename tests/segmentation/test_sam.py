import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from rncdl.errors import UserError
from rncdl.segmentation.sam import (
    MobileSam,
    best_masks,
    inside,
    load_mobile_sam,
    rename_weights,
    stability,
)
from rncdl.segmentation.sam_decoder import WIDTH, Attention, ChannelNorm, Prompts
from tests.pretend_gpu import GPU, pretend_gpu

INPUT_PX = 64


@pytest.fixture(scope="module")
def sam() -> MobileSam:
    torch.manual_seed(0)
    model = MobileSam(INPUT_PX)
    matrix = model.prompt_encoder.pe_layer.positional_encoding_gaussian_matrix
    matrix.copy_(torch.randn_like(matrix))
    return model


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)


def test_masks_lie_in_their_boxes_and_every_visible_box_has_one(sam, image):
    boxes = np.array([[5, 5, 20, 25], [-9, -9, 3, 3], [50, 50, 60, 60], [0, 0, 40, 30]], float)
    masks = sam.segment(image, boxes)
    assert masks.shape == (4, 30, 40)
    assert masks.any((1, 2)).tolist() == [True, True, False, True]
    assert not masks[0, :5].any()
    assert not masks[0, :, 20:].any()
    assert not masks[1, 3:].any()


def test_no_box_costs_nothing(sam, image):
    assert sam.segment(image, np.zeros((0, 4))).shape == (0, 30, 40)


def test_a_box_is_answered_alike_in_any_company(sam, image):
    rng = np.random.default_rng(1)
    corners = torch.from_numpy(rng.uniform(0, 20, (20, 2)))
    boxes = torch.cat([corners, corners + 8], 1).float()
    together = sam.mask_logits(image, boxes)
    alone = sam.mask_logits(image, boxes[17:18])
    torch.testing.assert_close(together[17:18], alone, atol=1e-4, rtol=1e-4)


def test_other_boxes_get_other_answers(sam, image):
    boxes = torch.tensor([[2.0, 2.0, 12.0, 12.0], [20.0, 10.0, 38.0, 28.0]])
    first, second = sam.mask_logits(image, boxes)
    assert not torch.allclose(first, second)


def test_what_is_proposed_is_in_order_apart_and_never_empty(sam, image):
    proposed = sam.propose(image, limit=9)
    assert 0 < len(proposed.masks) <= 9
    assert proposed.masks.shape == (len(proposed.scores), 30, 40)
    assert (np.diff(proposed.scores) <= 0).all()
    assert proposed.masks.any((1, 2)).all()


def test_nothing_is_asked_about_what_is_taken(sam, image, monkeypatch):
    asked = []
    at_points = sam.prompt_encoder.at_points

    def note_and_answer(points):
        asked.append(points)
        return at_points(points)

    monkeypatch.setattr(sam.prompt_encoder, "at_points", note_and_answer)
    sam.propose(image, limit=9, taken_xyxy=np.array([[0.0, 0, 20, 30]]))
    points = torch.cat(asked)
    assert len(points) == sam.points_per_side**2 / 2
    assert (points[:, 0] * INPUT_PX >= INPUT_PX / 2).all()
    everything = np.array([[0.0, 0, 40, 30]])
    assert sam.propose(image, limit=9, taken_xyxy=everything).masks.shape == (0, 30, 40)
    sam.propose(image, limit=9, taken_xyxy=np.zeros((0, 4)))
    assert len(torch.cat(asked)) == 1.5 * sam.points_per_side**2


def test_points_in_one_of_the_boxes():
    points = torch.tensor([[1.0, 1], [5, 5], [9, 1]])
    assert inside(points, torch.tensor([[0.0, 0, 2, 2], [4, 4, 6, 6]])).tolist() == [1, 1, 0]
    assert inside(points, torch.zeros(0, 4)).tolist() == [0, 0, 0]


def test_points_lie_on_the_image_and_not_on_its_padding(sam, image):
    points = sam._grid(sam._shown_size(image)) * INPUT_PX
    assert points.shape == (sam.points_per_side**2, 2)
    assert points.min() > 0
    assert points.amax(0)[0] < 64
    assert points.amax(0)[1] < 48


def test_of_masks_with_one_box_the_best_is_kept():
    masks = torch.zeros(4, 10, 10, dtype=torch.bool)
    masks[0, 1:5, 1:5] = masks[1, 1:5, 1:5] = masks[2, 6:9, 6:9] = True
    scores = torch.tensor([0.5, 0.9, 0.7, 1.0])  # the last one is empty
    assert best_masks(masks, scores, limit=9).tolist() == [1, 2]
    assert best_masks(masks, scores, limit=1).tolist() == [1]


def test_a_mask_with_a_sharp_edge_is_stable():
    logits = torch.zeros(2, 4, 4)
    logits[0] = torch.where(torch.arange(4) < 2, 5.0, -5.0)
    logits[1] = torch.tensor([2.0, 0.5, -0.5, -2.0])
    assert stability(logits).tolist() == pytest.approx([1, 1 / 3])
    assert stability(torch.full((1, 4, 4), -9.0)).tolist() == [0]


def test_on_a_gpu_it_sees_the_same(sam, image):
    boxes = torch.tensor([[5.0, 5, 20, 25], [0, 0, 3, 3]])
    with pretend_gpu():
        there = copy.deepcopy(sam).to(GPU)
        logits = there.mask_logits(image, boxes).cpu()
        assert there.segment(image, boxes.numpy()).shape == (2, 30, 40)
        assert there.propose(image, limit=5).masks.shape[1:] == (30, 40)
    torch.testing.assert_close(logits, sam.mask_logits(image, boxes), atol=1e-3, rtol=1e-3)


def test_published_names_become_ours():
    weight = torch.zeros(1)
    renamed = {
        "image_encoder.patch_embed.seq.2.bn.bias": (
            "image_encoder.backbone.patch_embed.conv2.bn.bias"
        ),
        "image_encoder.layers.0.blocks.1.conv3.c.weight": (
            "image_encoder.backbone.stages.0.blocks.1.conv3.conv.weight"
        ),
        "image_encoder.layers.2.downsample.conv1.c.weight": (
            "image_encoder.backbone.stages.3.downsample.conv1.conv.weight"
        ),
        "image_encoder.layers.3.blocks.0.attn.attention_biases": (
            "image_encoder.backbone.stages.3.blocks.0.attn.attention_biases"
        ),
        "image_encoder.neck.3.bias": "image_encoder.neck.3.bias",
        "mask_decoder.mask_tokens.weight": "mask_decoder.mask_tokens.weight",
    }
    unused = ("image_encoder.head.bias", "prompt_encoder.mask_downscaling.0.weight")
    given = dict.fromkeys((*renamed, *unused), weight)
    assert list(rename_weights(given)) == list(renamed.values())


def test_a_file_of_other_weights_is_refused(tmp_path):
    path = tmp_path / "weights.pt"
    with pytest.raises(UserError, match="no such file"):
        load_mobile_sam(path)
    torch.save({"conv1.weight": torch.zeros(3)}, path)
    with pytest.raises(UserError, match=r"weights\.pt: not the weights of MobileSAM"):
        load_mobile_sam(path)
    path.write_bytes(b"nonsense")
    with pytest.raises(UserError, match="cannot be read as PyTorch weights"):
        load_mobile_sam(path)


def test_attention_is_pytorchs():
    torch.manual_seed(0)
    ours, official = Attention(WIDTH), nn.MultiheadAttention(WIDTH, 8, batch_first=True)
    layers = (ours.q_proj, ours.k_proj, ours.v_proj)
    with torch.no_grad():
        official.in_proj_weight.copy_(torch.cat([layer.weight for layer in layers]))
        official.in_proj_bias.copy_(torch.cat([layer.bias for layer in layers]))
    official.out_proj = ours.out_proj  # type: ignore[assignment]
    queries, keys, values = (
        torch.randn(2, 3, WIDTH),
        torch.randn(2, 7, WIDTH),
        torch.randn(2, 7, WIDTH),
    )
    expected, _ = official(queries, keys, values)
    torch.testing.assert_close(ours(queries, keys, values), expected, atol=1e-5, rtol=1e-4)


def test_channel_norm_levels_each_place():
    values = ChannelNorm(8)(torch.randn(2, 8, 3, 3) * 7 + 2)
    torch.testing.assert_close(values.mean(1), torch.zeros(2, 3, 3), atol=1e-5, rtol=0)
    torch.testing.assert_close(values.var(1, correction=0), torch.ones(2, 3, 3), atol=1e-3, rtol=0)


def test_places_are_encoded_by_sines_of_their_projection():
    prompts = Prompts()
    matrix = prompts.pe_layer.positional_encoding_gaussian_matrix
    matrix.zero_()
    matrix[0, 0] = 1
    grid = prompts.encode_grid(4)
    assert grid.shape == (16, WIDTH)
    x = torch.arange(4) / 4 + 0.125
    torch.testing.assert_close(grid[:4, 0], torch.sin(2 * math.pi * (2 * x - 1)))
    torch.testing.assert_close(grid[0, 1:128], torch.zeros(127))
    torch.testing.assert_close(grid[0, 129:], torch.ones(127))
