"""SGD as the paper uses it."""

from typing import Any

import torch
from torch import nn

MOMENTUM = 0.9
_NORMS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)


def make_sgd(module: nn.Module, *, weight_decay: float) -> torch.optim.SGD:
    """SGD over the trainable parameters of `module`; norm layers are not decayed.

    The rate is set anew before each step (see `schedule`), so none is given here.
    """
    norm_parameters = {
        id(parameter)
        for layer in module.modules()
        if isinstance(layer, _NORMS)
        for parameter in layer.parameters(recurse=False)
    }
    trainable = [p for p in module.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trainable if id(p) not in norm_parameters]},
        {"params": [p for p in trainable if id(p) in norm_parameters], "weight_decay": 0.0},
    ]
    return torch.optim.SGD(
        [group for group in groups if group["params"]],
        lr=0.0,
        momentum=MOMENTUM,
        weight_decay=weight_decay,
        # One kernel for all parameters; under float16 the scaler then need not be waited for.
        fused=all(parameter.is_cuda for parameter in trainable),
    )
