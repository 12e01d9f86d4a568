"""Plain ViTs: maps of any image, blocks that freeze, weights of timm's layout, a simple pyramid."""

from pathlib import Path

import pytest
import timm
import torch

from rncdl.config import DetectorSettings
from rncdl.detector.backbones import build_backbone
from rncdl.detector.losses import supervised_losses
from rncdl.detector.model import Detector
from rncdl.detector.vit import SimplePyramid, VitBackbone
from rncdl.errors import UserError
from tests.detector.conftest import rectangle_sample

TINY = "test_vit"
"""timm's own test model: 6 blocks of width 64, patches of 16 px."""
SMALLER_PATCHES = "vit_small_patch14_dinov2"


@pytest.fixture(scope="module")
def vit_settings(tiny_settings: DetectorSettings) -> DetectorSettings:
    return tiny_settings.model_copy(update={"backbone": f"timm:{TINY}"})


@pytest.mark.parametrize("name", [TINY, SMALLER_PATCHES])
def test_one_map_at_stride_16_of_images_of_any_size(name: str) -> None:
    backbone = build_backbone(f"timm:{name}").eval()
    with torch.no_grad():
        (found,) = backbone(torch.randn(1, 3, 32, 96))
    assert found.shape == (1, *backbone.channels, 2, 6)


def test_a_map_shows_where_in_the_image_something_is() -> None:
    """As timm's own tokens do, for an image of the model's size."""
    backbone = build_backbone(f"timm:{TINY}").eval()
    assert isinstance(backbone, VitBackbone)
    pixels = torch.randn(1, 3, 160, 160)
    with torch.no_grad():
        (found,) = backbone(pixels)
        tokens = backbone.network.forward_features(pixels)
    torch.testing.assert_close(found.flatten(2).transpose(1, 2), tokens[:, 1:])


@pytest.mark.parametrize("count", [0, 1, 3, 7, "all"])
def test_blocks_are_frozen_from_the_patches_on(count: int | str) -> None:
    backbone = build_backbone(f"timm:{TINY}", frozen_blocks=count)  # type: ignore[arg-type]
    num_frozen = 7 if count == "all" else int(count)
    for name, parameter in backbone.named_parameters():
        words = name.removeprefix("network.").split(".")
        first_words = {"blocks": 1 + int(words[1]) if words[0] == "blocks" else 0, "norm": 6}
        assert parameter.requires_grad == (first_words.get(words[0], 0) >= num_frozen), name
    assert backbone.is_frozen == (num_frozen == 7)


def test_more_blocks_than_there_are_cannot_be_frozen() -> None:
    with pytest.raises(UserError, match="this backbone has 7 blocks"):
        build_backbone(f"timm:{TINY}", frozen_blocks=8)


def test_other_patches_are_refused() -> None:
    with pytest.raises(UserError, match="patches of 32 px; choose a model with 14 or 16"):
        build_backbone("timm:vit_small_patch32_224")


def test_a_checkpoint_of_timms_layout_fills_it(
    vit_settings: DetectorSettings, tmp_path: Path
) -> None:
    """Its classifier is left out, and nothing else."""
    state = timm.create_model(TINY).state_dict()
    torch.save(state, tmp_path / "vit.pth")
    settings = vit_settings.model_copy(update={"weights": tmp_path / "vit.pth"})
    detector = Detector(settings, 2, masks=False)
    detector.load_backbone_weights()
    loaded = detector.backbone.published.state_dict()
    assert state.keys() - loaded.keys() == {"head.weight", "head.bias"}
    assert not [name for name in loaded if not torch.equal(loaded[name], state[name])]
    del state["pos_embed"]
    torch.save(state, tmp_path / "vit.pth")
    with pytest.raises(UserError, match="missing: pos_embed"):
        detector.load_backbone_weights()


def test_the_pyramid_has_a_level_for_each_stride() -> None:
    pyramid = SimplePyramid(64, 32)
    levels = pyramid([torch.randn(2, 64, 4, 6)])
    expected = [(16, 24), (8, 12), (4, 6), (2, 3), (1, 2)]
    assert [tuple(level.shape) for level in levels] == [(2, 32, *size) for size in expected]
    # Normalised over the channels, place by place.
    torch.testing.assert_close(levels[0].mean(1), torch.zeros(2, 16, 24), atol=1e-5, rtol=0)


def test_images_are_padded_to_what_the_patches_need(vit_settings: DetectorSettings) -> None:
    detector = Detector(vit_settings, 2, masks=False)
    batch = detector.batch_images([torch.zeros(3, 50, 70, dtype=torch.uint8)])
    assert batch.pixels.shape == (1, 3, 64, 96)
    maps = detector.feature_maps(batch)
    assert [tuple(m.shape[2:]) for m in maps] == [(16, 24), (8, 12), (4, 6), (2, 3), (1, 2)]


def test_a_detector_on_a_vit_learns(vit_settings: DetectorSettings) -> None:
    """All of its parts receive gradients, and the loss of one image falls."""
    detector = Detector(vit_settings, 2, masks=True).train()
    optimizer = torch.optim.AdamW(detector.parameters(), lr=1e-3)
    sample = rectangle_sample([[8, 8, 40, 48], [30, 20, 60, 60]], [0, 1])
    totals = []
    for step in range(12):
        torch.manual_seed(step)
        total = torch.stack(list(supervised_losses(detector, [sample, sample]).values())).sum()
        optimizer.zero_grad()
        total.backward()
        if step == 0:
            untouched = [n for n, p in detector.named_parameters() if p.grad is None]
            assert not untouched
        optimizer.step()
        totals.append(total.item())
    assert sum(totals[-3:]) < sum(totals[:3])
