"""The teacher: a frozen network of others, in whose eyes objects that look alike are near."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rncdl.config import DetectorSettings, TeacherSettings
from rncdl.detector.efficientnet_lite import LITE0, LITE2
from rncdl.detector.model import Detector
from rncdl.detector.pretrained import BackboneStart, find_start
from rncdl.detector.timm_models import TIMM_PREFIX, import_timm, outline_timm
from rncdl.detector.vit import is_plain_vit
from rncdl.detector.weights import load_published
from rncdl.errors import UserError
from rncdl.origins import digest

CHOICES = ("vit_small_patch14_dinov2.lvd142m", LITE2.timm_name, LITE0.timm_name)
"""What `auto` tries, the best first."""
CROPS_AT_ONCE = 128


@dataclass(frozen=True)
class FoundTeacher:
    """Which network is the teacher, and where its weights are from."""

    name: str | None
    """timm's; None: the detector's own backbone"""
    start: BackboneStart

    def line(self) -> str:
        """What to say about it, in one line."""
        if self.name is None:
            return f"Teacher: the detector's own backbone ({self.start.origin})."
        return f"Teacher: {self.name} from {self.start.origin}; it has seen {self.start.has_seen}."

    def noted(self) -> dict[str, str | None]:
        """What a bank of its features depends on; its own backbone is the detector's."""
        path = self.start.path
        weights = None if path is None else digest(path.read_bytes())
        return {"teacher": self.name, "teacher_weights": weights}


def find_teacher(name: str, settings: TeacherSettings) -> FoundTeacher:
    """The network that `discover.teacher` names, with its weights; for `auto` the first to be had.

    Without any, `auto` takes the detector's own backbone.
    """
    if name != "auto":
        start = _start_of(name, settings)
        if start.path is None:
            raise UserError(
                f"discover.teacher={name}: no weights ({start.origin}). Give "
                "teacher.weights=FILE, or say discover.teacher=auto."
            )
        return FoundTeacher(name, start)
    reasons = []
    for choice in CHOICES:
        try:
            start = _start_of(choice, settings)
        except UserError as error:  # no timm here
            start = BackboneStart(None, str(error))
        if start.path is not None:
            return FoundTeacher(choice, start)
        reasons.append(f"{choice}: {start.origin}")
    return FoundTeacher(None, BackboneStart(None, "; ".join(reasons)))


def _start_of(name: str, settings: TeacherSettings) -> BackboneStart:
    return find_start(
        DetectorSettings(backbone=TIMM_PREFIX + name, weights=settings.weights, norm="frozen")
    )


class Teacher(nn.Module):
    """From crops to features; it never learns."""

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(
        self, network: nn.Module, *, pixel_mean: Sequence[float], pixel_std: Sequence[float]
    ) -> None:
        """`network`: from normalised pixels (R, 3, S, S) to features (R, F)."""
        super().__init__()
        self.network = network
        self.register_buffer("pixel_mean", torch.tensor(pixel_mean)[:, None, None])
        self.register_buffer("pixel_std", torch.tensor(pixel_std)[:, None, None])
        self.eval().requires_grad_(False)
        # A crop of 96 px takes EfficientNet-Lite0 half of the time this way on a CPU.
        self.to(memory_format=torch.channels_last)

    @torch.inference_mode()
    def look(self, crops: Tensor) -> Tensor:
        """(R, F) float32 features of crops (R, 3, S, S) uint8."""
        parts = [
            self.network((part.to(self.pixel_mean.device) - self.pixel_mean) / self.pixel_std)
            for part in crops.split(CROPS_AT_ONCE)
        ]
        return torch.cat(parts).float()

    def num_features(self, crop_px: int) -> int:
        """F; an error where the network cannot look at crops of that size."""
        try:
            return self.look(torch.zeros(1, 3, crop_px, crop_px, dtype=torch.uint8)).shape[1]
        except (AssertionError, RuntimeError) as error:
            raise UserError(
                f"teacher.crop_px={crop_px}: the teacher refuses crops of this size ({error})."
            ) from error


def load_teacher(found: FoundTeacher, detector: Detector) -> Teacher:
    """The network, on the detector's device."""
    if found.name is None:
        teacher = Teacher(
            _LastMap(copy.deepcopy(detector.backbone)),
            pixel_mean=detector.settings.pixel_mean,
            pixel_std=detector.settings.pixel_std,
        )
    else:
        assert found.start.path is not None
        teacher = _load_timm(found.name, found.start)
    return teacher.to(detector.device)


def _load_timm(name: str, start: BackboneStart) -> Teacher:
    timm = import_timm(name)
    # A ViT's position embeddings are interpolated to the crop's grid.
    any_size = {"dynamic_img_size": True} if is_plain_vit(name) else {}
    network = timm.create_model(name, pretrained=False, num_classes=0, **any_size)
    whole = set(outline_timm(name).state_dict())
    assert start.path is not None
    load_published(network, start.path, classifier_keys=whole - set(network.state_dict()))
    described: Any = timm.get_pretrained_cfg(name)
    return Teacher(
        network,
        pixel_mean=[255 * value for value in described.mean],
        pixel_std=[255 * value for value in described.std],
    )


class _LastMap(nn.Module):
    """The mean of a backbone's last map."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, pixels: Tensor) -> Tensor:
        return self.backbone(pixels)[-1].mean((2, 3))
