import sys

import pytest
import torch
from torch import nn

from rncdl.detector.backbones import Backbone, build_backbone
from rncdl.errors import UserError


def one_training_step(backbone: Backbone) -> None:
    backbone.train()
    optimizer = torch.optim.SGD([p for p in backbone.parameters() if p.requires_grad], lr=0.1)
    maps = backbone(torch.randn(2, 3, 64, 64))
    torch.stack([m.square().mean() for m in maps]).sum().backward()
    optimizer.step()


def moved_tensors(backbone: Backbone) -> set[str]:
    """Names of parameters and statistics that a training step changes."""
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    one_training_step(backbone)
    return {n for n, value in backbone.state_dict().items() if not torch.equal(value, before[n])}


@pytest.mark.parametrize(
    ("name", "channels"),
    [("resnet18", (64, 128, 256, 512)), ("resnet50", (256, 512, 1024, 2048))],
)
def test_maps_have_the_announced_channels_and_strides(name: str, channels: tuple[int, ...]) -> None:
    backbone = build_backbone(name).eval()
    with torch.no_grad():
        maps = backbone(torch.zeros(1, 3, 64, 96))
    assert backbone.channels == channels
    assert [tuple(m.shape[1:]) for m in maps] == [
        (c, 64 // s, 96 // s) for c, s in zip(channels, (4, 8, 16, 32), strict=True)
    ]


def test_nothing_frozen_everything_moves() -> None:
    backbone = build_backbone("resnet18")
    assert moved_tensors(backbone) == set(backbone.state_dict())


@pytest.mark.parametrize("num_blocks", [1, 3, 5])
def test_frozen_blocks_keep_parameters_and_statistics(num_blocks: int) -> None:
    backbone = build_backbone("resnet18", frozen_blocks=num_blocks)
    parts = [("conv1.", "bn1."), ("layer1.",), ("layer2.",), ("layer3.",), ("layer4.",)]
    if num_blocks == 5:
        backbone.train()
        backbone(torch.randn(2, 3, 64, 64))
        assert not any(p.requires_grad for p in backbone.parameters())
        assert backbone.state_dict()["layer4.1.bn2.num_batches_tracked"] == 0
        return
    moved = moved_tensors(backbone)
    for index, part in enumerate(parts):
        names = {name for name in backbone.state_dict() if name.startswith(part)}
        assert (names & moved) == (set() if index < num_blocks else names)


def test_frozen_norms_keep_still_while_convolutions_move() -> None:
    backbone = build_backbone("resnet18", norm="frozen")
    moved = moved_tensors(backbone)
    assert moved == {name for name, p in backbone.named_parameters() if p.dim() == 4}


def test_frozen_blocks_stay_frozen_after_synchronised_norms_replace_them() -> None:
    backbone = build_backbone("resnet18", frozen_blocks=2, norm="frozen")
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(backbone)
    converted.train()
    norms = [m for m in converted.modules() if isinstance(m, nn.SyncBatchNorm)]
    assert norms
    assert not any(norm.training for norm in norms)


def test_group_norm_has_no_statistics() -> None:
    names = build_backbone("resnet18", norm="group").state_dict()
    assert not [name for name in names if "running" in name]


def test_bottlenecks_stride_in_their_3x3_convolution() -> None:
    block = build_backbone("resnet50").get_submodule("layer3.0")
    convolutions = [block.get_submodule(name) for name in ("conv1", "conv2")]
    assert [c.stride for c in convolutions if isinstance(c, nn.Conv2d)] == [(1, 1), (2, 2)]


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UserError, match="'resnet19' is unknown"):
        build_backbone("resnet19")
    with pytest.raises(UserError, match="timm has no such model"):
        build_backbone("timm:resnet19")


def test_timm_backbone_can_be_frozen_block_by_block() -> None:
    backbone = build_backbone("timm:tf_efficientnet_lite0", frozen_blocks=2)
    assert backbone.channels == (24, 40, 112, 320)
    moved = moved_tensors(backbone)
    frozen_parts = ("conv_stem.", "bn1.", "blocks.0.", "blocks.1.")
    frozen = {
        name
        for name in backbone.state_dict()
        if name.removeprefix("network.").startswith(frozen_parts)
    }
    assert not moved & frozen
    statistics = {name for name in backbone.state_dict() if name.endswith("running_mean")}
    assert statistics - frozen <= moved
    assert all(p.requires_grad == (name not in frozen) for name, p in backbone.named_parameters())


def test_timm_models_that_take_one_size_only_are_refused() -> None:
    with pytest.raises(UserError, match="choose a convolutional model or a plain ViT"):
        build_backbone("timm:swin_tiny_patch4_window7_224")


def test_timm_models_without_the_four_strides_are_refused() -> None:
    with pytest.raises(UserError, match=r"strides \[4, 8, 16, 32\]"):
        build_backbone("timm:vit_relpos_small_patch16_224")


def test_group_norm_is_not_offered_for_timm() -> None:
    with pytest.raises(UserError, match=r"detector\.norm=group"):
        build_backbone("timm:resnet10t", norm="group")


def test_without_timm_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match=r"pip install 'rncdl\[timm\]'"):
        build_backbone("timm:resnet10t")
