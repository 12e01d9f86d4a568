from argparse import Namespace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torchvision.models import resnet18

from rncdl.detector.backbones import build_backbone
from rncdl.detector.weights import load_backbone_weights, read_state_dict
from rncdl.errors import UserError
from tests.shared_data import shared_path


@pytest.fixture(scope="module")
def torchvision_state() -> dict[str, Tensor]:
    torch.manual_seed(5)
    return dict(resnet18(weights=None).state_dict())


def assert_loaded(path: Path, state: dict[str, Tensor]) -> None:
    backbone = build_backbone("resnet18")
    load_backbone_weights(backbone, path)
    for name, value in backbone.state_dict().items():
        assert torch.equal(value, state[name]), name


def test_an_empty_state_dict_misses_everything(tmp_path: Path) -> None:
    torch.save({}, tmp_path / "a.pth")
    with pytest.raises(UserError, match=r"a\.pth.*\n  missing: bn1\.bias") as error:
        load_backbone_weights(build_backbone("resnet18"), tmp_path / "a.pth")
    assert "unexpected" not in str(error.value)


def test_torchvision_file(tmp_path: Path, torchvision_state: dict[str, Tensor]) -> None:
    torch.save(torchvision_state, tmp_path / "a.pth")
    assert_loaded(tmp_path / "a.pth", torchvision_state)


def test_safetensors_file(tmp_path: Path, torchvision_state: dict[str, Tensor]) -> None:
    save_file(torchvision_state, tmp_path / "a.safetensors")
    assert_loaded(tmp_path / "a.safetensors", torchvision_state)


def test_moco_takes_the_query_encoder_only(
    tmp_path: Path, torchvision_state: dict[str, Tensor]
) -> None:
    body = {k: v for k, v in torchvision_state.items() if not k.startswith("fc.")}
    moco = {f"module.encoder_q.{k}": v for k, v in body.items()}
    moco |= {f"module.encoder_k.{k}": v + 1 for k, v in body.items()}
    for part in ("fc.0", "fc.2"):
        for side in "qk":
            moco[f"module.encoder_{side}.{part}.weight"] = torch.zeros(2, 2)
    moco |= {"module.queue": torch.zeros(2, 2), "module.queue_ptr": torch.zeros(1)}
    torch.save({"epoch": 200, "arch": "resnet18", "state_dict": moco}, tmp_path / "moco.pth.tar")
    assert_loaded(tmp_path / "moco.pth.tar", torchvision_state)
    moco["module.decoder.weight"] = torch.zeros(1)
    torch.save({"state_dict": moco}, tmp_path / "moco.pth.tar")
    with pytest.raises(UserError, match=r"unexpected: module\.decoder\.weight"):
        load_backbone_weights(build_backbone("resnet18"), tmp_path / "moco.pth.tar")


@pytest.mark.parametrize("prefix", ["backbone.", "module.backbone."])
def test_dino_takes_the_teachers_backbone_only(
    prefix: str, tmp_path: Path, torchvision_state: dict[str, Tensor]
) -> None:
    body = {k: v for k, v in torchvision_state.items() if not k.startswith("fc.")}
    head = {f"{prefix.replace('backbone', 'head')}last_layer.weight_v": torch.zeros(2, 2)}
    teacher = {**{f"{prefix}{k}": v for k, v in body.items()}, **head}
    student = {key: value + 1 for key, value in teacher.items()}
    saved = {"student": student, "teacher": teacher, "epoch": 3, "args": Namespace(arch="resnet18")}
    torch.save(saved, tmp_path / "dino.pth")
    assert_loaded(tmp_path / "dino.pth", torchvision_state)


def test_old_files_without_batch_counters(
    tmp_path: Path, torchvision_state: dict[str, Tensor]
) -> None:
    old = {k: v for k, v in torchvision_state.items() if "num_batches" not in k}
    torch.save(old, tmp_path / "old.pth")
    assert_loaded(tmp_path / "old.pth", torchvision_state)


def test_timm_safetensors() -> None:
    path = shared_path("weights", "tf_efficientnet_lite0.safetensors")
    backbone = build_backbone("timm:tf_efficientnet_lite0")
    load_backbone_weights(backbone, path)
    stored = load_file(path)
    loaded = backbone.state_dict()
    for name in ("conv_stem.weight", "blocks.6.0.bn3.running_var"):
        assert torch.equal(loaded[f"network.{name}"], stored[name])


def test_timm_names_with_a_flattened_part(tmp_path: Path) -> None:
    import timm

    whole = timm.create_model("convnext_atto", pretrained=False).state_dict()
    torch.save(whole, tmp_path / "convnext.pth")
    backbone = build_backbone("timm:convnext_atto")
    load_backbone_weights(backbone, tmp_path / "convnext.pth")
    assert torch.equal(backbone.state_dict()["network.stem_0.weight"], whole["stem.0.weight"])


def test_missing_unexpected_and_misshapen_weights_are_listed(
    tmp_path: Path, torchvision_state: dict[str, Tensor]
) -> None:
    state = dict(torchvision_state)
    state["layer9.weight"] = state.pop("layer2.0.conv1.weight")
    torch.save(state, tmp_path / "bad.pth")
    with pytest.raises(UserError) as error:
        load_backbone_weights(build_backbone("resnet18"), tmp_path / "bad.pth")
    assert "bad.pth" in str(error.value)
    assert "missing: layer2.0.conv1.weight" in str(error.value)
    assert "unexpected: layer9.weight" in str(error.value)
    state = torchvision_state | {"bn1.bias": torch.zeros(3)}
    torch.save(state, tmp_path / "bad.pth")
    with pytest.raises(UserError, match=r"bn1\.bias \[3\] instead of \[64\]"):
        load_backbone_weights(build_backbone("resnet18"), tmp_path / "bad.pth")


def test_files_that_are_no_weights(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such weights file"):
        read_state_dict(tmp_path / "absent.pth")
    for name in ("text.pth", "text.safetensors"):
        (tmp_path / name).write_text("not weights")
        with pytest.raises(UserError, match="cannot be read as weights"):
            read_state_dict(tmp_path / name)
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(UserError, match="holds a list"):
        read_state_dict(tmp_path / "list.pth")
    torch.save({"epoch": 3}, tmp_path / "epoch.pth")
    with pytest.raises(UserError, match="no tensors: epoch"):
        read_state_dict(tmp_path / "epoch.pth")


class Payload:
    """Something only code could rebuild."""


def test_pickled_code_is_never_run(tmp_path: Path) -> None:
    torch.save({"state_dict": Payload()}, tmp_path / "code.pth")
    with pytest.raises(UserError, match="cannot be read as weights"):
        read_state_dict(tmp_path / "code.pth")
