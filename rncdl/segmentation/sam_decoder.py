"""The prompted half of the Segment Anything Model: from an image's embedding and boxes to masks.

Kirillov et al., Segment Anything (2023). Modules are named as in the published weights. A prompt
is a box or a point; masks as prompts are left out.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH = 256
_NUM_HEADS = 8
_NUM_MASKS = 4
"""mask tokens; a box, which leaves little doubt, is answered by the first, a point by the others:
the part, the object, and what it belongs to"""
_POINT = 1
"""which of the learned point embeddings stands for a place on the object"""
_BOX_CORNERS = (2, 3)
"""which of the learned point embeddings stand for a box's first and second corner"""


class PositionEncoding(nn.Module):
    """Sines and cosines of random projections of a place in the image."""

    positional_encoding_gaussian_matrix: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("positional_encoding_gaussian_matrix", torch.zeros(2, WIDTH // 2))

    def forward(self, places_xy: Tensor) -> Tensor:
        """(..., WIDTH) of places (..., 2), given as shares of the image's sides."""
        angles = 2 * math.pi * ((2 * places_xy - 1) @ self.positional_encoding_gaussian_matrix)
        return torch.cat([angles.sin(), angles.cos()], -1)


class Prompts(nn.Module):
    """Boxes, or points, as two tokens each."""

    def __init__(self) -> None:
        super().__init__()
        self.pe_layer = PositionEncoding()
        self.point_embeddings = nn.ModuleList(nn.Embedding(1, WIDTH) for _ in range(4))
        self.not_a_point_embed = nn.Embedding(1, WIDTH)
        self.no_mask_embed = nn.Embedding(1, WIDTH)

    def forward(self, boxes_xyxy: Tensor, input_px: int) -> Tensor:
        """(R, 2, WIDTH) tokens of boxes (R, 4) in pixels of an input with sides of `input_px`."""
        corners = (boxes_xyxy.reshape(-1, 2, 2) + 0.5) / input_px
        kinds = torch.cat([self.point_embeddings[i].get_parameter("weight") for i in _BOX_CORNERS])
        tokens: Tensor = self.pe_layer(corners) + kinds
        return tokens

    def at_points(self, places_xy: Tensor) -> Tensor:
        """(R, 2, WIDTH) tokens of points (R, 2), given as shares of the input's sides."""
        kind = self.point_embeddings[_POINT].get_parameter("weight")
        tokens = self.pe_layer(places_xy)[:, None] + kind
        nothing = self.not_a_point_embed.weight.expand(len(tokens), 1, -1)
        return torch.cat([tokens, nothing], 1)

    def encode_grid(self, side: int) -> Tensor:
        """(side * side, WIDTH) encodings of the cells of the image's embedding, row by row."""
        centres = (torch.arange(side, device=self.no_mask_embed.weight.device) + 0.5) / side
        y, x = torch.meshgrid(centres, centres, indexing="ij")
        encodings: Tensor = self.pe_layer(torch.stack([x, y], -1)).flatten(0, 1)
        return encodings


class Attention(nn.Module):
    """Multi-head attention whose inner width may be smaller than the tokens'."""

    def __init__(self, inner_width: int) -> None:
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, inner_width)
        self.k_proj = nn.Linear(WIDTH, inner_width)
        self.v_proj = nn.Linear(WIDTH, inner_width)
        self.out_proj = nn.Linear(inner_width, WIDTH)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """(R, n, WIDTH) what each of n queries reads from the values.

        What is the same for all R may be given once, as (1, ...).
        """
        count = max(len(queries), len(keys))
        q, k, v = (
            layer(tokens).unflatten(-1, (_NUM_HEADS, -1)).transpose(1, 2).expand(count, -1, -1, -1)
            for layer, tokens in (
                (self.q_proj, queries),
                (self.k_proj, keys),
                (self.v_proj, values),
            )
        )
        read = functional.scaled_dot_product_attention(q, k, v)
        mixed: Tensor = self.out_proj(read.transpose(1, 2).flatten(2))
        return mixed


class FeedForward(nn.Module):
    """Two linear layers with a ReLU between."""

    def __init__(self, hidden_width: int = 2048) -> None:
        super().__init__()
        self.lin1 = nn.Linear(WIDTH, hidden_width)
        self.lin2 = nn.Linear(hidden_width, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        """The tokens (R, n, WIDTH), moved."""
        moved: Tensor = self.lin2(self.lin1(tokens).relu())
        return moved


class TwoWayBlock(nn.Module):
    """Tokens read each other, then the image; the image reads the tokens."""

    def __init__(self, *, is_first: bool) -> None:
        super().__init__()
        self.is_first = is_first
        self.self_attn = Attention(WIDTH)
        self.norm1 = nn.LayerNorm(WIDTH)
        self.cross_attn_token_to_image = Attention(WIDTH // 2)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = FeedForward()
        self.norm3 = nn.LayerNorm(WIDTH)
        self.cross_attn_image_to_token = Attention(WIDTH // 2)
        self.norm4 = nn.LayerNorm(WIDTH)

    def forward(
        self, tokens: Tensor, pixels: Tensor, prompts: Tensor, places: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Tokens (R, n, WIDTH) and pixels (R, cells, WIDTH; before the first block 1), moved.

        `prompts` and `places` say where each of them is, again in every block but the first.
        """
        if self.is_first:
            tokens = self.self_attn(tokens, tokens, tokens)
        else:
            placed = tokens + prompts
            tokens = tokens + self.self_attn(placed, placed, tokens)
        tokens = self.norm1(tokens)
        placed_pixels = pixels + places
        read = self.cross_attn_token_to_image(tokens + prompts, placed_pixels, pixels)
        tokens = self.norm2(tokens + read)
        tokens = self.norm3(tokens + self.mlp(tokens))
        read = self.cross_attn_image_to_token(placed_pixels, tokens + prompts, tokens)
        return tokens, self.norm4(pixels + read)


class TwoWayTransformer(nn.Module):
    """Two blocks, and a last look of the tokens at the image."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TwoWayBlock(is_first=i == 0) for i in range(2))
        self.final_attn_token_to_image = Attention(WIDTH // 2)
        self.norm_final_attn = nn.LayerNorm(WIDTH)

    def forward(self, prompts: Tensor, pixels: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens (R, n, WIDTH) that began as `prompts`, and pixels (R, cells, WIDTH).

        The `pixels` (1, cells, WIDTH) are the same for all prompts, until these have been read.
        """
        tokens = prompts
        for block in self.layers:
            tokens, pixels = block(tokens, pixels, prompts, places)
        read = self.final_attn_token_to_image(tokens + prompts, pixels + places, pixels)
        return self.norm_final_attn(tokens + read), pixels


class ThreeLayers(nn.Module):
    """An MLP with two hidden layers."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        widths = (WIDTH, WIDTH, WIDTH, outputs)
        self.layers = nn.ModuleList(map(nn.Linear, widths, widths[1:]))

    def forward(self, token: Tensor) -> Tensor:
        """The answer (R, outputs) to a token (R, WIDTH)."""
        first, second, last = self.layers
        answer: Tensor = last(second(first(token).relu()).relu())
        return answer


class ChannelNorm(nn.Module):
    """LayerNorm over the channels of a map (R, channels, H, W)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, values: Tensor) -> Tensor:
        """The map (R, channels, H, W), every place with mean 0 and variance 1."""
        last = values.movedim(1, -1)
        normal = functional.layer_norm(last, last.shape[-1:], self.weight, self.bias, eps=1e-6)
        return normal.movedim(-1, 1)


class MaskDecoder(nn.Module):
    """Masks for each pair of prompt tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = TwoWayTransformer()
        self.iou_token = nn.Embedding(1, WIDTH)
        self.mask_tokens = nn.Embedding(_NUM_MASKS, WIDTH)
        self.output_upscaling = nn.Sequential(
            nn.ConvTranspose2d(WIDTH, WIDTH // 4, 2, stride=2),
            ChannelNorm(WIDTH // 4),
            nn.GELU(),
            nn.ConvTranspose2d(WIDTH // 4, WIDTH // 8, 2, stride=2),
            nn.GELU(),
        )
        self.output_hypernetworks_mlps = nn.ModuleList(
            ThreeLayers(WIDTH // 8) for _ in range(_NUM_MASKS)
        )
        self.iou_prediction_head = ThreeLayers(_NUM_MASKS)

    def forward(self, embedding: Tensor, places: Tensor, prompts: Tensor) -> Tensor:
        """(R, 4 side, 4 side) logits of the one mask that answers a box.

        `embedding` (WIDTH, side, side) of one image, `places` (side * side, WIDTH), `prompts`
        (R, n, WIDTH).
        """
        tokens, fine = self._look(embedding, places, prompts)
        return self._draw(tokens, fine, 0)

    def answer_points(
        self, embedding: Tensor, places: Tensor, prompts: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(R, 3, 4 side, 4 side) logits of the masks that a point may mean, (R, 3) their IoU.

        The IoU with an object's true mask is a prediction. See `forward`.
        """
        tokens, fine = self._look(embedding, places, prompts)
        masks = torch.stack([self._draw(tokens, fine, i) for i in range(1, _NUM_MASKS)], 1)
        return masks, self.iou_prediction_head(tokens[:, 0])[:, 1:]

    def _look(self, embedding: Tensor, places: Tensor, prompts: Tensor) -> tuple[Tensor, Tensor]:
        """What the prompts have become (R, n, WIDTH), and the finer maps (R, c, 4 s, 4 s)."""
        side = embedding.shape[-1]
        own = torch.cat([self.iou_token.weight, self.mask_tokens.weight])
        asked = torch.cat([own.expand(len(prompts), -1, -1), prompts], 1)
        pixels = embedding.flatten(1).T[None]
        tokens, pixels = self.transformer(asked, pixels, places)
        return tokens, self.output_upscaling(pixels.transpose(1, 2).unflatten(2, (side, side)))

    def _draw(self, tokens: Tensor, fine: Tensor, mask: int) -> Tensor:
        weights = self.output_hypernetworks_mlps[mask](tokens[:, 1 + mask])
        return torch.einsum("rc,rchw->rhw", weights, fine)
