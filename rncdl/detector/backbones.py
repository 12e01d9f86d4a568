"""Backbones: networks that turn an image into the maps C2 to C5."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import torch
import torchvision
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchvision.models.resnet import BasicBlock, ResNet

from rncdl.errors import UserError

RESNETS = ("resnet10", "resnet18", "resnet34", "resnet50", "resnet101")
"""resnet10 is ours: one basic block a stage, for small images on a CPU."""
STRIDES_PX = (4, 8, 16, 32)
TIMM_PREFIX = "timm:"
GROUPS = 32
"""Of GroupNorm (Wu and He, 2018)."""

Norm = Literal["batch", "frozen", "group"]


class Backbone(nn.Module, ABC):
    """A network whose forward gives [C2, C3, C4, C5], at strides 4, 8, 16 and 32.

    Frozen parts receive no gradient and keep their BatchNorm statistics, `.train()` or not.
    """

    channels: tuple[int, int, int, int]
    """of C2, C3, C4, C5"""
    classifier_keys: frozenset[str] = frozenset()
    """Weights a checkpoint of the whole network holds and a detector has no use for."""

    def __init__(self) -> None:
        super().__init__()
        self._frozen_blocks = 0
        self._frozen_norms = False

    @abstractmethod
    def blocks(self) -> list[list[nn.Module]]:
        """The modules of stem, res2, res3, res4 and res5."""

    def freeze(self, num_blocks: int, *, norms: bool) -> None:
        """Stop training the first `num_blocks` blocks, and with `norms` every BatchNorm."""
        self._frozen_blocks = num_blocks
        self._frozen_norms = norms
        for module in self._frozen_modules():
            module.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> "Backbone":
        """Training or evaluation mode, in which frozen parts are always."""
        super().train(mode)
        for module in self._frozen_modules():
            module.eval()
        return self

    def _frozen_modules(self) -> list[nn.Module]:
        blocks = self.blocks()[: self._frozen_blocks] if self._frozen_blocks else []
        frozen = [module for block in blocks for module in block]
        if self._frozen_norms:
            frozen += [module for module in self.modules() if isinstance(module, _BatchNorm)]
        return frozen


class ResNetBackbone(Backbone):
    """torchvision's ResNet without its classifier; parameters keep torchvision's names."""

    def __init__(self, name: str, *, norm: Norm, stride_in_1x1: bool) -> None:
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
        if stride_in_1x1:
            self._stride_in_1x1(name)

    def _stride_in_1x1(self, name: str) -> None:
        for layer in (self.layer2, self.layer3, self.layer4):
            if not hasattr(layer[0], "conv3"):
                raise UserError(
                    f"detector.stride_in_1x1=true: {name} has no bottlenecks; "
                    "set it to false or use resnet50 or resnet101."
                )
            layer[0].conv1.stride, layer[0].conv2.stride = (2, 2), (1, 1)

    def blocks(self) -> list[list[nn.Module]]:
        """The modules of stem, res2, res3, res4 and res5."""
        stem: list[nn.Module] = [self.conv1, self.bn1]
        return [stem, [self.layer1], [self.layer2], [self.layer3], [self.layer4]]

    def forward(self, pixels: Tensor) -> list[Tensor]:
        """[C2, C3, C4, C5] of pixels (B, 3, H, W)."""
        c2 = self.layer1(self.maxpool(self.relu(self.bn1(self.conv1(pixels)))))
        c3 = self.layer2(c2)
        c4 = self.layer3(c3)
        return [c2, c3, c4, self.layer4(c4)]


class TimmBackbone(Backbone):
    """A timm feature model, by its timm name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.network, self.classifier_keys = _create_timm(name)
        info: Any = self.network.feature_info
        reductions = info.reduction()
        if any(reductions.count(stride) != 1 for stride in STRIDES_PX):
            raise UserError(
                f"detector.backbone=timm:{name} has maps at strides {reductions}; "
                f"choose a model that has one map at each of the strides {list(STRIDES_PX)}."
            )
        self._positions = [reductions.index(stride) for stride in STRIDES_PX]
        c2, c3, c4, c5 = (info.channels()[i] for i in self._positions)
        self.channels = (c2, c3, c4, c5)
        self._map_modules = [flat_name(info.module_name()[i]) for i in self._positions]
        self._check_maps(name)

    def blocks(self) -> list[list[nn.Module]]:
        """The modules of stem, res2, res3, res4 and res5, cut where timm takes C2 to C5."""
        units: list[tuple[str, nn.Module]] = []
        for name, child in self.network.named_children():
            holds_maps = any(
                target.startswith(f"{flat_name(name)}_") for target in self._map_modules
            )
            inner = [(f"{flat_name(name)}_{key}", m) for key, m in child.named_children()]
            units += inner if holds_maps else [(flat_name(name), child)]
        names = [name for name, _ in units]
        if not set(self._map_modules) <= set(names):
            raise UserError(
                "detector.frozen_blocks: this timm backbone cannot be cut into blocks; "
                "set detector.frozen_blocks=0."
            )
        ends = [names.index(target) for target in self._map_modules]
        edges = [0, ends[0], *(end + 1 for end in ends)]
        return [[module for _, module in units[a:b]] for a, b in pairwise(edges)]

    def forward(self, pixels: Tensor) -> list[Tensor]:
        """[C2, C3, C4, C5] of pixels (B, 3, H, W)."""
        maps = self.network(pixels)
        return [maps[i] for i in self._positions]

    @torch.no_grad()
    def _check_maps(self, name: str) -> None:
        height, width = 64, 96
        expected = [
            (1, c, height // s, width // s) for c, s in zip(self.channels, STRIDES_PX, strict=True)
        ]
        self.eval()
        try:
            found = [tuple(m.shape) for m in self(torch.zeros(1, 3, height, width))]
        except (AssertionError, RuntimeError) as error:
            raise UserError(
                f"detector.backbone=timm:{name} refuses images of any size ({error}); "
                "choose a convolutional model."
            ) from error
        self.train()
        if found != expected:
            raise UserError(
                f"detector.backbone=timm:{name} gives maps of shape {found}, not {expected}; "
                "choose a convolutional model."
            )


def build_backbone(
    name: str, *, norm: Norm = "batch", stride_in_1x1: bool = False, frozen_blocks: int = 0
) -> Backbone:
    """The backbone called `name` (`resnet50`, `timm:NAME`) with random weights."""
    if name in RESNETS:
        backbone: Backbone = ResNetBackbone(name, norm=norm, stride_in_1x1=stride_in_1x1)
    elif name.startswith(TIMM_PREFIX):
        if norm == "group" or stride_in_1x1:
            raise UserError(
                f"detector.backbone={name}: detector.norm=group and detector.stride_in_1x1 are "
                f"for {', '.join(RESNETS)} only."
            )
        backbone = TimmBackbone(name.removeprefix(TIMM_PREFIX))
    else:
        raise UserError(
            f"detector.backbone={name!r} is unknown; use {', '.join(RESNETS)} or timm:NAME."
        )
    backbone.freeze(frozen_blocks, norms=norm == "frozen")
    return backbone


def import_timm(name: str) -> Any:
    """timm, for the model of that name; takes seconds, so only those who ask for it wait."""
    try:
        import timm
    except ImportError as error:
        raise UserError(
            f"detector.backbone=timm:{name} needs timm: pip install 'rncdl[timm]'"
        ) from error
    return timm


def _create_timm(name: str) -> tuple[nn.Module, frozenset[str]]:
    """The feature model, and the weights that only the whole model has."""
    timm = import_timm(name)
    if not timm.is_model(name):
        near = timm.list_models(f"*{name}*")[:5]
        hint = f" Similar: {', '.join(near)}." if near else ""
        raise UserError(f"detector.backbone=timm:{name}: timm has no such model.{hint}")
    try:
        network = timm.create_model(name, pretrained=False, features_only=True)
    except (AttributeError, RuntimeError, AssertionError) as error:
        raise UserError(
            f"detector.backbone=timm:{name} has no feature maps ({error}); choose another model."
        ) from error
    with torch.device("meta"):
        whole = timm.create_model(name, pretrained=False)
    used = {flat_name(key) for key in network.state_dict()}
    return network, frozenset(key for key in whole.state_dict() if flat_name(key) not in used)


def flat_name(name: str) -> str:
    """A name in one piece: timm's feature models may call `stages.0` `stages_0`."""
    return name.replace(".", "_")
