"""MobileSAM (Zhang et al., 2023): the Segment Anything Model with a small image encoder.

The encoder is timm's TinyViT with a stride of 16 instead of 32. Published for images of 1024 px,
which take about 2 s of CPU; at 384 px, a tenth of that, small photographs are outlined as well.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.ops import masks_to_boxes, nms
from torchvision.transforms.v2.functional import resize

from rncdl.errors import UserError
from rncdl.segmentation.sam_decoder import WIDTH, ChannelNorm, MaskDecoder, Prompts
from rncdl.segmentation.segmenter import Proposed, Proposer, Segmenter, pixels_of_box

_PIXEL_MEAN = (123.675, 116.28, 103.53)
_PIXEL_STD = (58.395, 57.12, 57.375)
_BOXES_AT_ONCE = 16
_POINTS_AT_ONCE = 64
_PROPOSAL_NMS = 0.7
_STABLE = 1.0
"""A mask is stable that hardly changes when its threshold is moved by so much up and down."""
_UNUSED = (
    "image_encoder.norm_head.",
    "image_encoder.head.",
    "prompt_encoder.mask_downscaling.",
)
"""Parts of the published weights that boxes and points have no use for."""


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


class MobileSam(nn.Module, Segmenter, Proposer):
    """Masks by MobileSAM; an image is looked at once for all its boxes or points."""

    def __init__(self, input_px: int = 1024, points_per_side: int = 16) -> None:
        """`input_px`: the image's longer side as it is looked at; the weights are for 1024.

        `points_per_side`: of the grid whose points are asked for the objects they lie on.
        """
        super().__init__()
        self.input_px = input_px
        self.points_per_side = points_per_side
        self.image_encoder = ImageEncoder()
        self.prompt_encoder = Prompts()
        self.mask_decoder = MaskDecoder()
        self.eval()

    @property
    def device(self) -> torch.device:
        """Where it looks; images come from the host, and masks go back there."""
        return self.prompt_encoder.no_mask_embed.weight.device

    def segment(self, image: np.ndarray, boxes_xyxy: np.ndarray) -> np.ndarray:
        """See `Segmenter`."""
        height, width = image.shape[:2]
        masks = np.zeros((len(boxes_xyxy), height, width), dtype=bool)
        touched = [pixels_of_box(box, height, width) for box in boxes_xyxy]
        seen = [i for i, (rows, columns) in enumerate(touched) if masks[i, rows, columns].size]
        if not seen:
            return masks
        logits = self.mask_logits(image, torch.from_numpy(boxes_xyxy[seen]).float()).cpu()
        for i, of_box in zip(seen, logits.numpy() > 0, strict=True):
            inside = of_box[touched[i]]
            masks[i][touched[i]] = inside if inside.any() else True
        return masks

    @torch.no_grad()
    def propose(
        self, image: np.ndarray, *, limit: int, taken_xyxy: np.ndarray | None = None
    ) -> Proposed:
        """See `Proposer`. The score is the predicted IoU times how stable the mask is."""
        size = self._shown_size(image)
        grid = self._grid(size)
        if taken_xyxy is not None:
            stretch = np.tile([size[1] / image.shape[1], size[0] / image.shape[0]], 2)
            taken = torch.from_numpy(taken_xyxy * stretch / self.input_px)
            grid = grid[~inside(grid, taken.to(grid))]
        if not len(grid):
            return Proposed(np.zeros((0, *image.shape[:2]), dtype=bool), np.zeros(0))
        embedding = self._embed(image, size)
        places = self.prompt_encoder.encode_grid(embedding.shape[-1])
        masks, fits = [], []
        for points in grid.split(_POINTS_AT_ONCE):
            prompts = self.prompt_encoder.at_points(points)
            of_points, of_masks = self.mask_decoder.answer_points(embedding, places, prompts)
            masks.append(of_points.flatten(0, 1))
            fits.append(of_masks.flatten())
        coarse = torch.cat(masks)
        scores = torch.cat(fits) * stability(coarse)
        rows = best_masks(coarse > 0, scores, limit=limit)
        logits = self._at_pixels(coarse[rows], size, image.shape[:2])
        return Proposed((logits > 0).cpu().numpy(), scores[rows].cpu().numpy())

    @torch.no_grad()
    def mask_logits(self, image: np.ndarray, boxes_xyxy: Tensor) -> Tensor:
        """(R, H, W) logits over the whole image (H, W, 3) uint8."""
        height, width = image.shape[:2]
        size = self._shown_size(image)
        embedding = self._embed(image, size)
        places = self.prompt_encoder.encode_grid(embedding.shape[-1])
        stretch = boxes_xyxy.new_tensor((size[1] / width, size[0] / height)).repeat(2)
        parts = []
        for boxes in (boxes_xyxy * stretch).to(self.device).split(_BOXES_AT_ONCE):
            prompts = self.prompt_encoder(boxes, self.input_px)
            coarse = self.mask_decoder(embedding, places, prompts)
            parts.append(self._at_pixels(coarse, size, (height, width)))
        return torch.cat(parts)

    def _shown_size(self, image: np.ndarray) -> tuple[int, int]:
        """Height and width of an image (H, W, 3) as it is looked at."""
        height, width = image.shape[:2]
        scale = self.input_px / max(height, width)
        return max(1, int(height * scale + 0.5)), max(1, int(width * scale + 0.5))

    def _grid(self, size: tuple[int, int]) -> Tensor:
        """(P, 2) points all over the image, as shares of the square it is padded to."""
        cells = (torch.arange(self.points_per_side) + 0.5) / self.points_per_side
        points = torch.cartesian_prod(cells, cells) * torch.tensor(size[::-1]) / self.input_px
        return points.to(self.device)

    def _at_pixels(
        self, coarse: Tensor, size: tuple[int, int], image_hw: tuple[int, ...]
    ) -> Tensor:
        """Logits (R, H, W) of the image's own pixels."""
        side = self.input_px
        full = functional.interpolate(coarse[:, None], (side, side), mode="bilinear")
        shown = full[..., : size[0], : size[1]]
        return functional.interpolate(shown, image_hw[:2], mode="bilinear")[:, 0]

    def _embed(self, image: np.ndarray, size: tuple[int, int]) -> Tensor:
        """(WIDTH, side, side) of an image (H, W, 3) resized to `size` and padded to a square."""
        pixels = torch.from_numpy(image).permute(2, 0, 1).to(self.device)
        resized = resize(pixels, list(size), antialias=True)
        mean, std = (
            torch.tensor(values, device=self.device)[:, None, None]
            for values in (_PIXEL_MEAN, _PIXEL_STD)
        )
        padding = (0, self.input_px - size[1], 0, self.input_px - size[0])
        [embedding] = self.image_encoder(functional.pad((resized - mean) / std, padding)[None])
        no_mask = self.prompt_encoder.no_mask_embed.weight[0][:, None, None]
        return embedding + no_mask


def inside(points: Tensor, boxes_xyxy: Tensor) -> Tensor:
    """(P,) bool, which points (P, 2) lie in one of the boxes (n, 4)."""
    within = (points[:, None] >= boxes_xyxy[:, :2]) & (points[:, None] < boxes_xyxy[:, 2:])
    return within.all(2).any(1)


def stability(logits: Tensor) -> Tensor:
    """(R,) how little masks (R, h, w) change with their threshold: the IoU of two of them."""
    inner = (logits > _STABLE).flatten(1).sum(1)
    outer = (logits > -_STABLE).flatten(1).sum(1)
    return inner / outer.clamp(min=1)


def best_masks(masks: Tensor, scores: Tensor, *, limit: int) -> Tensor:
    """Rows of the masks (R, h, w) with the best scores, of those whose boxes overlap one alone."""
    filled = masks.flatten(1).any(1).nonzero().flatten()
    corners = masks_to_boxes(masks[filled])
    boxes = corners + corners.new_tensor([0, 0, 1, 1])
    return filled[nms(boxes, scores[filled], _PROPOSAL_NMS)[:limit]]


def load_mobile_sam(path: Path, *, input_px: int = 1024, points_per_side: int = 16) -> MobileSam:
    """MobileSAM with the published weights of `path` (mobile_sam.pt)."""
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file; give segmentation.sam_weights=FILE.") from error
    except Exception as error:
        raise UserError(f"{path}: cannot be read as PyTorch weights ({error}).") from error
    model = MobileSam(input_px, points_per_side)
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
