from pathlib import Path

import pytest
import torch

from rncdl.config import DetectorSettings, TeacherSettings
from rncdl.detector.efficientnet_lite import LITE0
from rncdl.detector.model import Detector
from rncdl.detector.pretrained import BackboneStart
from rncdl.discovery.teacher import FoundTeacher, Teacher, find_teacher, load_teacher
from rncdl.errors import UserError

NONE = TeacherSettings(weights="none")


@pytest.fixture(scope="module")
def detector() -> Detector:
    settings = DetectorSettings(backbone="resnet10", fpn_channels=8, box_head_width=16)
    return Detector(settings, 2, masks=False).eval()


def test_without_weights_auto_is_the_detectors_own_backbone(detector: Detector):
    found = find_teacher("auto", NONE)
    assert found.name is None
    assert "own backbone" in found.line()
    teacher = load_teacher(found, detector)
    crops = torch.randint(0, 255, (3, 3, 64, 64), dtype=torch.uint8)
    mean, std = (values[:, None, None] for values in (detector.pixel_mean, detector.pixel_std))
    expected = detector.backbone((crops - mean) / std)[-1].mean((2, 3))
    torch.testing.assert_close(teacher.look(crops), expected)
    assert teacher.num_features(64) == expected.shape[1]


def test_a_teacher_never_learns_and_leaves_the_detector_alone(detector: Detector):
    detector.requires_grad_(True)
    teacher = load_teacher(find_teacher("auto", NONE), detector)
    assert not [one for one in teacher.parameters() if one.requires_grad]
    assert all(one.requires_grad for one in detector.backbone.parameters())


def test_no_crops_have_no_features(detector: Detector):
    teacher = load_teacher(find_teacher("auto", NONE), detector)
    features = teacher.look(torch.zeros(0, 3, 64, 64, dtype=torch.uint8))
    assert features.shape == (0, teacher.num_features(64))


def test_a_named_teacher_without_weights_is_an_error():
    pytest.importorskip("timm")
    with pytest.raises(UserError, match=r"resnet18: no weights.*teacher\.weights"):
        find_teacher("resnet18", NONE)


def test_a_name_that_timm_does_not_know_is_an_error(tmp_path: Path):
    pytest.importorskip("timm")
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(1)}, tmp_path / "weights.safetensors")
    found = find_teacher("resnet19", TeacherSettings(weights=tmp_path / "weights.safetensors"))
    with pytest.raises(UserError, match="resnet19"):
        load_teacher(found, detector=None)  # type: ignore[arg-type]


def test_a_timm_model_gives_what_timm_gives_and_takes_a_whole_files_classifier(tmp_path: Path):
    timm = pytest.importorskip("timm")
    from safetensors.torch import save_file

    torch.manual_seed(0)
    whole = timm.create_model("resnet10t", pretrained=False).eval()
    path = tmp_path / "resnet10t.safetensors"
    save_file(whole.state_dict(), path)
    found = find_teacher("resnet10t", TeacherSettings(weights=path))
    device = Detector(DetectorSettings(backbone="resnet10", fpn_channels=8), 2, masks=False)
    teacher = load_teacher(found, device)
    crops = torch.randint(0, 255, (2, 3, 64, 64), dtype=torch.uint8)
    described = timm.get_pretrained_cfg("resnet10t")
    mean, std = (torch.tensor(values)[:, None, None] for values in (described.mean, described.std))
    expected = whole.forward_head(
        whole.forward_features((crops / 255 - mean) / std), pre_logits=True
    )
    torch.testing.assert_close(teacher.look(crops), expected, rtol=1e-4, atol=1e-4)


def test_crops_that_a_network_refuses_are_an_error():
    class Refusing(torch.nn.Module):
        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            raise AssertionError("input size must be a multiple of 14")

    teacher = Teacher(Refusing(), pixel_mean=[0.0] * 3, pixel_std=[1.0] * 3)
    with pytest.raises(UserError, match=r"teacher\.crop_px=96.*multiple of 14"):
        teacher.num_features(96)


def test_what_a_bank_notes_follows_the_weights(tmp_path: Path):
    noted = []
    for content in (b"one", b"two"):
        path = tmp_path / "weights.pt"
        path.write_bytes(content)
        noted.append(FoundTeacher("resnet10t", BackboneStart(path, "a file")).noted())
    assert noted[0] != noted[1]
    assert noted[0]["teacher"] == "resnet10t"


@pytest.mark.skipif(LITE0.find() is None, reason="needs rncdl[demo]")
def test_the_wheels_weights_make_a_teacher(detector: Detector):
    found = find_teacher(LITE0.timm_name, TeacherSettings())
    assert "ImageNet" in found.line()
    assert load_teacher(found, detector).num_features(96) == 1280
