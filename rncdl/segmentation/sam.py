"""MobileSAM (Zhang et al., 2023): the Segment Anything Model with a small image encoder.

The encoder is timm's TinyViT with a stride of 16 instead of 32. About 2 s of CPU per image.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.transforms.v2.functional import resize

from rncdl.errors import UserError
from rncdl.segmentation.sam_decoder import WIDTH, BoxPrompts, ChannelNorm, MaskDecoder
from rncdl.segmentation.segmenter import Segmenter, pixels_of_box

_INPUT_PX = 1024
_PIXEL_MEAN = (123.675, 116.28, 103.53)
_PIXEL_STD = (58.395, 57.12, 57.375)
_BOXES_AT_ONCE = 16
_UNUSED = (
    "image_encoder.norm_head.",
    "image_encoder.head.",
    "prompt_encoder.mask_downscaling.",
    "prompt_encoder.not_a_point_embed.",
    "mask_decoder.iou_prediction_head.",
)
"""Parts of the published weights that a box has no use for."""


class ImageEncoder(nn.Module):
    """TinyViT and a neck of two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        try:
            import timm
        except ImportError as error:
            raise UserError(
                "segmentation.segmenter=sam needs timm: pip install 'rncdl[timm]'."
            ) from error
        backbone: Any = timm.create_model("tiny_vit_5m_224", pretrained=False, num_classes=0)
        backbone.head = nn.Identity()
        backbone.stages[3].downsample.conv2.conv.stride = (1, 1)
        self.backbone = backbone
        self.neck = nn.Sequential(
            nn.Conv2d(320, WIDTH, 1, bias=False),
            ChannelNorm(WIDTH),
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False),
            ChannelNorm(WIDTH),
        )

    def forward(self, pixels: Tensor) -> Tensor:
        """The images' embeddings (B, WIDTH, H / 16, W / 16)."""
        embedding: Tensor = self.neck(self.backbone(pixels))
        return embedding


class MobileSam(nn.Module, Segmenter):
    """Masks by MobileSAM; an image is looked at once for all its boxes."""

    def __init__(self, input_px: int = _INPUT_PX) -> None:
        """`input_px`: the image's longer side as it is looked at; the weights are for 1024."""
        super().__init__()
        self.input_px = input_px
        self.image_encoder = ImageEncoder()
        self.prompt_encoder = BoxPrompts()
        self.mask_decoder = MaskDecoder()
        self.eval()

    def segment(self, image: np.ndarray, boxes_xyxy: np.ndarray) -> np.ndarray:
        """See `Segmenter`."""
        height, width = image.shape[:2]
        masks = np.zeros((len(boxes_xyxy), height, width), dtype=bool)
        touched = [pixels_of_box(box, height, width) for box in boxes_xyxy]
        seen = [i for i, (rows, columns) in enumerate(touched) if masks[i, rows, columns].size]
        if not seen:
            return masks
        logits = self.mask_logits(image, torch.from_numpy(boxes_xyxy[seen]).float())
        for i, of_box in zip(seen, logits.numpy() > 0, strict=True):
            inside = of_box[touched[i]]
            masks[i][touched[i]] = inside if inside.any() else True
        return masks

    @torch.no_grad()
    def mask_logits(self, image: np.ndarray, boxes_xyxy: Tensor) -> Tensor:
        """(R, H, W) logits over the whole image (H, W, 3) uint8."""
        height, width = image.shape[:2]
        side = self.input_px
        scale = side / max(height, width)
        size = [max(1, int(length * scale + 0.5)) for length in (height, width)]
        embedding = self._embed(torch.from_numpy(image).permute(2, 0, 1), size)
        places = self.prompt_encoder.encode_grid(embedding.shape[-1])
        stretch = boxes_xyxy.new_tensor((size[1] / width, size[0] / height)).repeat(2)
        parts = []
        for boxes in (boxes_xyxy * stretch).split(_BOXES_AT_ONCE):
            prompts = self.prompt_encoder(boxes, side)
            coarse = self.mask_decoder(embedding, places, prompts)[:, None]
            full = functional.interpolate(coarse, (side, side), mode="bilinear")
            shown = full[..., : size[0], : size[1]]
            parts.append(functional.interpolate(shown, (height, width), mode="bilinear")[:, 0])
        return torch.cat(parts)

    def _embed(self, pixels: Tensor, size: list[int]) -> Tensor:
        """(WIDTH, side, side) of an image (3, H, W) resized to `size` and padded to a square."""
        resized = resize(pixels, size, antialias=True)
        mean, std = (torch.tensor(values)[:, None, None] for values in (_PIXEL_MEAN, _PIXEL_STD))
        padding = (0, self.input_px - size[1], 0, self.input_px - size[0])
        [embedding] = self.image_encoder(functional.pad((resized - mean) / std, padding)[None])
        no_mask = self.prompt_encoder.no_mask_embed.weight[0][:, None, None]
        return embedding + no_mask


def load_mobile_sam(path: Path) -> MobileSam:
    """MobileSAM with the published weights of `path` (mobile_sam.pt)."""
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file; give segmentation.sam_weights=FILE.") from error
    except Exception as error:
        raise UserError(f"{path}: cannot be read as PyTorch weights ({error}).") from error
    model = MobileSam()
    try:
        model.load_state_dict(rename_weights(saved))
    except (RuntimeError, AttributeError, TypeError) as error:
        raise UserError(
            f"{path}: not the weights of MobileSAM; take mobile_sam.pt ({error})."
        ) from error
    return model


def rename_weights(saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Published weights under this module's and timm's names, without what a box does not need."""
    return {_rename(name): values for name, values in saved.items() if not name.startswith(_UNUSED)}


def _rename(name: str) -> str:
    part, _, rest = name.partition(".")
    if part != "image_encoder" or rest.startswith("neck."):
        return name
    rest = rest.replace("seq.0.", "conv1.").replace("seq.2.", "conv2.").replace(".c.", ".conv.")
    if rest.startswith("layers."):
        _, stage, inner = rest.split(".", 2)
        # Published: a stage ends with the step to the next one; timm: it begins with it.
        number = int(stage) + inner.startswith("downsample.")
        rest = f"stages.{number}.{inner}"
    return f"image_encoder.backbone.{rest}"
