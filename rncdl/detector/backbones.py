"""Backbones by name."""

from typing import Literal

from rncdl.detector.backbone_blocks import Backbone
from rncdl.detector.resnet import RESNETS, Norm, ResNetBackbone
from rncdl.detector.timm_models import TIMM_PREFIX, TimmBackbone
from rncdl.detector.vit import VitBackbone, is_plain_vit
from rncdl.errors import UserError


def build_backbone(
    name: str,
    *,
    norm: Norm = "batch",
    frozen_blocks: int | Literal["all"] = 0,
) -> Backbone:
    """The backbone called `name` (`resnet50`, `timm:NAME`) with random weights."""
    if name in RESNETS:
        backbone: Backbone = ResNetBackbone(name, norm=norm)
    elif name.startswith(TIMM_PREFIX):
        if norm == "group":
            raise UserError(
                f"detector.backbone={name}: detector.norm=group is for {', '.join(RESNETS)} only."
            )
        timm_name = name.removeprefix(TIMM_PREFIX)
        backbone = (VitBackbone if is_plain_vit(timm_name) else TimmBackbone)(timm_name)
    else:
        raise UserError(
            f"detector.backbone={name!r} is unknown; use {', '.join(RESNETS)} or timm:NAME."
        )
    backbone.freeze(frozen_blocks, norms=norm == "frozen")
    return backbone
