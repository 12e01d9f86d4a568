"""What the pixels themselves say about a mask (ours).

The finest map has a cell for 4 × 4 pixels. Small objects and thin parts are lost in it, and what it
holds was learned from known classes; colours and edges know no class.
"""

import torch
from torch import Tensor, nn


class MaskDetail(nn.Module):
    """Corrects the mask head's logits by the pixels under the mask; untaught, by nothing."""

    def __init__(self, mask_width: int, channels: int) -> None:
        """`mask_width`: channels of what the mask head makes its logits from."""
        super().__init__()
        self.look = _layer(3, channels)
        self.mix = nn.Sequential(
            _layer(channels + mask_width + 1, channels), _layer(channels, channels)
        )
        self.correction = nn.Conv2d(channels, 1, 1)
        for values in self.correction.parameters():
            nn.init.zeros_(values)

    def forward(self, pixels: Tensor, hidden: Tensor, logits: Tensor) -> Tensor:
        """(R, 1, S, S) what is to be added to the logits (R, 1, S, S).

        `pixels` (R, 3, S, S) of the image, `hidden` (R, mask_width, S, S).
        """
        correction: Tensor = self.correction(
            self.mix(torch.cat([self.look(pixels), hidden, logits], 1))
        )
        return correction


def _layer(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )
