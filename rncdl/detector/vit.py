"""Plain vision transformers as backbones: one map at stride 16, and a pyramid made from it."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.convnext import LayerNorm2d

from rncdl.detector.backbone_blocks import Backbone
from rncdl.detector.timm_models import import_timm, outline_timm
from rncdl.errors import UserError

STRIDE_PX = 16
PATCHES_PX = (14, 16)
"""Smaller patches of 14 px see the image shrunk by 14 / 16, so that theirs is this stride too."""


def is_plain_vit(name: str) -> bool:
    """Whether the timm model of that name is a ViT whose blocks all have the same map."""
    outline = outline_timm(name)
    from timm.models.eva import Eva
    from timm.models.vision_transformer import VisionTransformer

    return isinstance(outline, VisionTransformer | Eva)


class VitBackbone(Backbone):
    """A timm ViT (DINOv2, DINOv3, MAE, CLIP, ...) whose forward gives its last map."""

    size_divisor = 2 * STRIDE_PX
    """The map has a half, which P5 is made of."""

    def __init__(self, name: str) -> None:
        super().__init__()
        # Of any size: position embeddings are interpolated to the image's grid.
        self.network = import_timm(name).create_model(name, pretrained=False, dynamic_img_size=True)
        every_key = self.network.state_dict().keys()
        self.network.reset_classifier(0, "")
        self.network.fc_norm = nn.Identity()  # of pooled tokens, of which there are none here
        self.classifier_keys = frozenset(every_key - self.network.state_dict().keys())
        self._patch_px = self.network.patch_embed.patch_size[0]
        if self._patch_px not in PATCHES_PX:
            raise UserError(
                f"detector.backbone=timm:{name} has patches of {self._patch_px} px; choose a model "
                f"with {' or '.join(map(str, PATCHES_PX))}."
            )
        self.channels = (self.network.embed_dim,)

    def blocks(self) -> list[list[nn.Module | nn.Parameter]]:
        """Patch embedding and tokens; each transformer block; the norm goes with the last one."""
        network: Any = self.network
        trained_as_one = ("blocks", "norm", "fc_norm", "head", "head_drop")
        first: list[nn.Module | nn.Parameter] = list(network.parameters(recurse=False))
        first += [m for name, m in network.named_children() if name not in trained_as_one]
        *others, last = network.blocks
        return [first, *([block] for block in others), [last, network.norm]]

    @property
    def published(self) -> nn.Module:
        """The network as timm makes it."""
        return self.network

    def forward(self, pixels: Tensor) -> list[Tensor]:
        """The map (B, C, H / 16, W / 16) of pixels (B, 3, H, W), sides that 16 divides."""
        if self._patch_px != STRIDE_PX:
            size = [side // STRIDE_PX * self._patch_px for side in pixels.shape[2:]]
            pixels = functional.interpolate(pixels, size=size, mode="bilinear", antialias=True)
        return self.network.forward_intermediates(
            pixels, indices=1, norm=True, output_fmt="NCHW", intermediates_only=True
        )


class SimplePyramid(nn.Module):
    """P2 to P6 from one map at stride 16, each level by itself (Li et al., ViTDet, 2022)."""

    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        half, quarter = channels // 2, channels // 4
        to_stride_4 = nn.Sequential(
            nn.ConvTranspose2d(channels, half, 2, stride=2),
            LayerNorm2d(half, eps=1e-6),
            nn.GELU(),
            nn.ConvTranspose2d(half, quarter, 2, stride=2),
        )
        to_stride_8 = nn.ConvTranspose2d(channels, half, 2, stride=2)
        scales = (
            (to_stride_4, quarter),
            (to_stride_8, half),
            (nn.Identity(), channels),
            (nn.MaxPool2d(2), channels),
        )
        self.levels = nn.ModuleList(
            nn.Sequential(scale, *_narrow(width, out_channels)) for scale, width in scales
        )

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """[P2, P3, P4, P5, P6] of the one map."""
        (only,) = maps
        levels = [level(only) for level in self.levels]
        return [*levels, functional.max_pool2d(levels[-1], 1, stride=2)]


def _narrow(channels: int, out_channels: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels, out_channels, 1, bias=False),
        LayerNorm2d(out_channels, eps=1e-6),
        nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
        LayerNorm2d(out_channels, eps=1e-6),
    ]
