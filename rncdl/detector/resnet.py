"""ResNets as backbones."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torchvision
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, ResNet

from rncdl.detector.backbone_blocks import Backbone

RESNETS = ("resnet10", "resnet18", "resnet34", "resnet50", "resnet101")
"""resnet10 is ours: one basic block a stage, for small images on a CPU."""
GROUPS = 32
"""Of GroupNorm (Wu and He, 2018)."""

Norm = Literal["batch", "frozen", "group"]


class ResNetBackbone(Backbone):
    """torchvision's ResNet without its classifier; parameters keep torchvision's names."""

    def __init__(self, name: str, *, norm: Norm) -> None:
        super().__init__()
        norm_layer: Callable[[int], nn.Module] = nn.BatchNorm2d
        if norm == "group":
            norm_layer = partial(nn.GroupNorm, GROUPS)
        if name == "resnet10":
            network = ResNet(BasicBlock, [1, 1, 1, 1], norm_layer=norm_layer)
        else:
            network = getattr(torchvision.models, name)(weights=None, norm_layer=norm_layer)
        width = network.fc.in_features
        self.channels = (width // 8, width // 4, width // 2, width)
        self.classifier_keys = frozenset(("fc.weight", "fc.bias"))
        self.conv1 = network.conv1
        self.bn1 = network.bn1
        self.relu = network.relu
        self.maxpool = network.maxpool
        self.layer1 = network.layer1
        self.layer2 = network.layer2
        self.layer3 = network.layer3
        self.layer4 = network.layer4

    def blocks(self) -> list[list[nn.Module | nn.Parameter]]:
        """The modules of stem, res2, res3, res4 and res5."""
        stem: list[nn.Module | nn.Parameter] = [self.conv1, self.bn1]
        return [stem, [self.layer1], [self.layer2], [self.layer3], [self.layer4]]

    def forward(self, pixels: Tensor) -> list[Tensor]:
        """[C2, C3, C4, C5] of pixels (B, 3, H, W)."""
        c2 = self.layer1(self.maxpool(self.relu(self.bn1(self.conv1(pixels)))))
        c3 = self.layer2(c2)
        c4 = self.layer3(c3)
        return [c2, c3, c4, self.layer4(c4)]
