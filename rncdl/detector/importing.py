"""Checkpoints of the paper's authors (made with Detectron2) as detectors of this project."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rncdl.config import DetectorSettings
from rncdl.detector.model import Detector
from rncdl.detector.weights import check_keys, check_shapes, read_state_dict
from rncdl.errors import UserError

DISCOVERY_PREFIX = "supervised_rcnn."
COPY_PREFIXES = (
    "proposals_extractor_rcnn.",
    "discovery_feature_extractor.",
    "discovery_gt_class_predictions_extractor.",
)
"""Where discovery checkpoints hold the same network again."""
HEADS = "roi_heads.box_predictor.discovery_model."
MEMORY = f"{HEADS}memory_feat"
RESNET_BLOCKS = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3)}
ABSENT_BACKGROUND_LOGIT = -1e4
"""Bias of the background that discovery threw away: its probability is zero, its value finite."""


@dataclass(frozen=True)
class ImportedDetector:
    """A foreign checkpoint in this project's terms."""

    settings: DetectorSettings
    num_known: int
    masks: bool
    state: dict[str, Tensor]
    """For `Detector.load_state_dict`, complete."""
    novel_heads: tuple[dict[str, Tensor], ...]
    """Of discovery checkpoints, one per head: `projection.0.weight` ..., `prototypes`."""


def read_detectron2(path: Path) -> ImportedDetector:
    """The authors' supervised or discovery checkpoint in the file at `path`."""
    return convert_detectron2(read_state_dict(path), source=path)


def convert_detectron2(
    state: Mapping[str, Tensor], *, source: Path | str = "checkpoint"
) -> ImportedDetector:
    """The detector (and novel heads) that a checkpoint's `model` holds.

    Every key is used or known to be needless; an error that begins with `source` lists others.
    """
    is_discovery = any(key.startswith(DISCOVERY_PREFIX) for key in state)
    network, stray = _without_copies(state) if is_discovery else (dict(state), [])
    network.pop(MEMORY, None)
    novel_heads = _take_novel_heads(network)
    settings = _settings_of(network, source)
    layers = _layer_names(settings)
    converted: dict[str, Tensor] = {}
    for key, value in network.items():
        name = _our_name(key, layers)
        if name is None:
            stray.append(key)
        else:
            converted[name] = value
    if is_discovery and {"known_head.weight", "known_head.bias"} <= converted.keys():
        _append_background(converted)
    num_known = len(converted["known_head.bias"]) - 1 if "known_head.bias" in converted else 1
    masks = settings.masks == "on"
    with torch.device("meta"):
        expected = Detector(settings, num_known, masks=masks).state_dict()
    check_keys(source, missing=expected.keys() - converted.keys(), unexpected=stray)
    check_shapes(source, found=converted, expected=expected)
    return ImportedDetector(
        settings=settings,
        num_known=num_known,
        masks=masks,
        state=converted,
        # A supervised checkpoint holds novel heads too, as they were drawn at random.
        novel_heads=novel_heads if is_discovery else (),
    )


def _without_copies(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """The network of a discovery checkpoint, and the keys that are neither its nor a copy's."""
    network, stray = {}, []
    for key, value in state.items():
        if key.startswith(DISCOVERY_PREFIX):
            network[key.removeprefix(DISCOVERY_PREFIX)] = value
            continue
        prefix = next((p for p in COPY_PREFIXES if key.startswith(p)), "")
        # Copies wrap a part in one of the same name: roi_heads.roi_heads.box_head.
        original = re.sub(r"\b(\w+)\.\1\.", r"\1.", key.removeprefix(prefix))
        if not prefix or DISCOVERY_PREFIX + original not in state:
            stray.append(key)
    return network, stray


def _take_novel_heads(network: dict[str, Tensor]) -> tuple[dict[str, Tensor], ...]:
    """The novel heads' tensors by head, removed from `network`."""
    projection = re.compile(re.escape(HEADS) + r"head_unlab\.projectors\.(\d+)\.mlp\.([013]\.\w+)")
    prototypes = re.compile(re.escape(HEADS) + r"head_unlab\.prototypes\.(\d+)\.prototypes\.weight")
    heads: dict[int, dict[str, Tensor]] = {}
    for key in list(network):
        if found := projection.fullmatch(key):
            name = f"projection.{found[2]}"
        elif found := prototypes.fullmatch(key):
            name = "prototypes"
        else:
            continue
        heads.setdefault(int(found[1]), {})[name] = network.pop(key)
    return tuple(heads[index] for index in sorted(heads))


def _settings_of(network: Mapping[str, Tensor], source: Path | str) -> DetectorSettings:
    """The architecture, read off names and shapes; what neither shows is as the authors had it."""

    def find(pattern: str) -> list[str]:
        return [key for key in network if re.fullmatch(pattern, key)]

    blocks = tuple(
        len(find(rf"backbone\.bottom_up\.res{stage}\.\d+\.conv1\.weight")) for stage in range(2, 6)
    )
    backbone = next((name for name, count in RESNET_BLOCKS.items() if count == blocks), None)
    lateral = network.get("backbone.fpn_lateral2.weight")
    box_layer = network.get("roi_heads.box_head.fc1.weight")
    if backbone is None or lateral is None or box_layer is None:
        raise UserError(
            f"{source}: not a checkpoint of the authors' R50-FPN or R101-FPN model "
            f"(backbone.bottom_up.res2 to res5 have {blocks} blocks)."
        )
    mask_layers = find(r"roi_heads\.mask_head\.mask_fcn\d+\.weight")
    return DetectorSettings(
        backbone=backbone,
        weights="none",
        norm="batch" if find(r".*stem\.conv1\.norm\.num_batches_tracked") else "frozen",
        fpn_channels=len(lateral),
        fpn_norm="backbone.fpn_lateral2.norm.weight" in network,
        roi_sampling_ratio=0,
        roi_reference_px=224,
        box_head_width=len(box_layer),
        box_head_norm=False,
        mask_head_width=len(network[mask_layers[0]]) if mask_layers else 256,
        mask_head_layers=len(mask_layers) or 4,
        mask_head_norm="roi_heads.mask_head.mask_fcn1.norm.weight" in network,
        masks="on" if mask_layers else "off",
    )


def _layer_names(settings: DetectorSettings) -> dict[str, tuple[str, str]]:
    """Their name of each layer -> ours, and ours of the norm that goes with it."""
    no_norm = ""
    names = {
        "backbone.bottom_up.stem.conv1": ("backbone.conv1", "backbone.bn1"),
        "proposal_generator.rpn_head.conv": ("rpn_head.conv.0.0", no_norm),
        "proposal_generator.rpn_head.objectness_logits": ("rpn_head.cls_logits", no_norm),
        "proposal_generator.rpn_head.anchor_deltas": ("rpn_head.bbox_pred", no_norm),
        "roi_heads.box_head.fc1": ("box_head.fc1", no_norm),
        "roi_heads.box_head.fc2": ("box_head.fc2", no_norm),
        "roi_heads.box_predictor.bbox_pred": ("box_regressor", no_norm),
        f"{HEADS}head_lab": ("known_head", no_norm),
        "roi_heads.mask_head.deconv": ("mask_head.predictor.conv5_mask", no_norm),
        "roi_heads.mask_head.predictor": ("mask_head.predictor.mask_fcn_logits", no_norm),
    }
    for layer, num_blocks in enumerate(RESNET_BLOCKS[settings.backbone], 1):
        for block in range(num_blocks):
            theirs = f"backbone.bottom_up.res{layer + 1}.{block}"
            ours = f"backbone.layer{layer}.{block}"
            names[f"{theirs}.shortcut"] = (f"{ours}.downsample.0", f"{ours}.downsample.1")
            for i in (1, 2, 3):
                names[f"{theirs}.conv{i}"] = (f"{ours}.conv{i}", f"{ours}.bn{i}")
    for level in range(4):
        for theirs, ours in (("lateral", "inner_blocks"), ("output", "layer_blocks")):
            block_name = f"pyramid.{ours}.{level}"
            names[f"backbone.fpn_{theirs}{level + 2}"] = (f"{block_name}.0", f"{block_name}.1")
    for i in range(settings.mask_head_layers):
        ours = f"mask_head.convolutions.{i}"
        names[f"roi_heads.mask_head.mask_fcn{i + 1}"] = (f"{ours}.0", f"{ours}.1")
    return names


def _our_name(key: str, layers: Mapping[str, tuple[str, str]]) -> str | None:
    """Our name of a Detectron2 tensor, None where there is none."""
    module, _, leaf = key.rpartition(".")
    layer = module.removesuffix(".norm")
    if layer not in layers:
        return None
    weight_owner, norm = layers[layer]
    owner = weight_owner if layer == module else norm
    return f"{owner}.{leaf}" if owner else None


def _append_background(state: dict[str, Tensor]) -> None:
    weight, bias = state["known_head.weight"], state["known_head.bias"]
    state["known_head.weight"] = torch.cat((weight, weight.new_zeros(1, weight.shape[1])))
    state["known_head.bias"] = torch.cat((bias, bias.new_tensor([ABSENT_BACKGROUND_LOGIT])))
