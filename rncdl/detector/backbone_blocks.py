"""Backbone: a network that turns an image into maps, and whose parts can be frozen."""

from abc import ABC, abstractmethod
from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from rncdl.errors import UserError

STRIDES_PX = (4, 8, 16, 32)


class Backbone(nn.Module, ABC):
    """A network whose forward gives [C2, C3, C4, C5], at strides 4 to 32, or one map at stride 16.

    Frozen parts receive no gradient and keep their BatchNorm statistics, `.train()` or not.
    """

    channels: tuple[int, ...]
    """of each map"""
    size_divisor: int = 1
    """It must divide the sides of an image."""
    classifier_keys: frozenset[str] = frozenset()
    """Weights a checkpoint of the whole network holds and a detector has no use for."""

    def __init__(self) -> None:
        super().__init__()
        self._frozen_blocks = 0
        self._frozen_norms = False

    @abstractmethod
    def blocks(self) -> list[list[nn.Module | nn.Parameter]]:
        """The parts that can be frozen one after the other: stem, res2, res3, res4, res5."""

    @property
    def published(self) -> nn.Module:
        """The network whose parameters have the names that published files have."""
        return self

    def freeze(self, num_blocks: int | Literal["all"], *, norms: bool) -> None:
        """Stop training the first `num_blocks` blocks, and with `norms` every BatchNorm."""
        if num_blocks == 0 and not norms:
            return  # some networks cannot be cut into blocks
        count = len(self.blocks()) if num_blocks else 0
        self._frozen_blocks = count if num_blocks == "all" else num_blocks
        if self._frozen_blocks > count:
            raise UserError(
                f"detector.frozen_blocks={num_blocks}: this backbone has {count} blocks; "
                "give at most that many, or all."
            )
        self._frozen_norms = norms
        for part in self._frozen_parts():
            part.requires_grad_(False)
        self.train(self.training)

    @property
    def is_frozen(self) -> bool:
        """True where nothing of it is trained: a map depends on the image alone."""
        return not any(parameter.requires_grad for parameter in self.parameters())

    def train(self, mode: bool = True) -> "Backbone":
        """Training or evaluation mode, in which frozen parts are always."""
        super().train(mode)
        for part in self._frozen_parts():
            if isinstance(part, nn.Module):
                part.eval()
        return self

    def _frozen_parts(self) -> list[nn.Module | nn.Parameter]:
        blocks = self.blocks()[: self._frozen_blocks] if self._frozen_blocks else []
        frozen = [part for block in blocks for part in block]
        if self._frozen_norms:
            frozen += [module for module in self.modules() if isinstance(module, _BatchNorm)]
        return frozen
