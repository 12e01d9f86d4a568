"""timm's models as backbones."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from rncdl.detector.backbone_blocks import STRIDES_PX, Backbone
from rncdl.errors import UserError

TIMM_PREFIX = "timm:"


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

    def blocks(self) -> list[list[nn.Module | nn.Parameter]]:
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

    @property
    def published(self) -> nn.Module:
        """The network as timm makes it."""
        return self.network

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
                "choose a convolutional model or a plain ViT."
            ) from error
        self.train()
        if found != expected:
            raise UserError(
                f"detector.backbone=timm:{name} gives maps of shape {found}, not {expected}; "
                "choose a convolutional model or a plain ViT."
            )


def import_timm(name: str) -> Any:
    """timm, for the model of that name; takes seconds, so only those who ask for it wait."""
    try:
        import timm
    except ImportError as error:
        raise UserError(
            f"detector.backbone=timm:{name} needs timm: pip install 'rncdl[timm]'"
        ) from error
    if not timm.is_model(name):
        near = timm.list_models(f"*{name}*")[:5]
        hint = f" Similar: {', '.join(near)}." if near else ""
        raise UserError(f"detector.backbone=timm:{name}: timm has no such model.{hint}")
    return timm


def outline_timm(name: str) -> Any:
    """The whole model without memory for its weights."""
    timm = import_timm(name)
    with torch.device("meta"):
        return timm.create_model(name, pretrained=False)


def _create_timm(name: str) -> tuple[nn.Module, frozenset[str]]:
    """The feature model, and the weights that only the whole model has."""
    timm = import_timm(name)
    try:
        network = timm.create_model(name, pretrained=False, features_only=True)
    except (AttributeError, RuntimeError, AssertionError) as error:
        raise UserError(
            f"detector.backbone=timm:{name} has no feature maps ({error}); choose another model."
        ) from error
    whole = outline_timm(name)
    used = {flat_name(key) for key in network.state_dict()}
    return network, frozenset(key for key in whole.state_dict() if flat_name(key) not in used)


def flat_name(name: str) -> str:
    """A name in one piece: timm's feature models may call `stages.0` `stages_0`."""
    return name.replace(".", "_")
