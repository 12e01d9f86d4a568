"""`rncdl import`, on checkpoints of exactly the authors' layout."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from rncdl.errors import UserError
from rncdl.models import load_detector, load_heads
from rncdl.run_folder import RunFolder
from rncdl.stages.imports import import_checkpoint
from tests.detector.test_detectron2_parity import (
    discovery_state,  # noqa: F401
    expected,  # noqa: F401
    supervised_state,  # noqa: F401
)

NAMES = ",".join(f"class {k}" for k in range(80))


def run_import(state: dict[str, Tensor], folder: Path, *, known: str = NAMES) -> RunFolder:
    checkpoint = folder / "model_final.pth"
    torch.save({"model": state}, checkpoint)
    run = RunFolder(folder / "run")
    import_checkpoint(checkpoint, run.path, known=known, preset=None, overrides=["seed=3"])
    return run


def test_a_supervised_checkpoint_becomes_a_run(
    supervised_state: dict[str, Tensor],  # noqa: F811
    expected: dict[str, Tensor],  # noqa: F811
    tmp_path: Path,
):
    run = run_import(supervised_state, tmp_path)
    detector = load_detector(run, run.settings(), run.split()).eval()
    with torch.no_grad():
        logits = detector.known_head(expected["box_features"])
    wanted = expected["supervised_logits_known_and_background"]
    assert (logits - wanted).abs().max() <= 1e-3 * wanted.abs().max()
    assert run.settings().seed == 3
    assert run.settings().detector.backbone == "resnet50"
    assert run.discovery_names() == []
    with pytest.raises(UserError, match="already holds a run"):
        run_import(supervised_state, tmp_path)


def test_a_discovery_checkpoint_brings_its_heads(
    discovery_state: dict[str, Tensor],  # noqa: F811
    expected: dict[str, Tensor],  # noqa: F811
    tmp_path: Path,
):
    run = run_import(discovery_state, tmp_path)
    assert run.discovery_names() == ["main"]
    detector = load_detector(run, run.settings(), run.split())
    heads = load_heads(run, detector, "main").eval()
    with torch.no_grad():
        (logits,) = heads(expected["box_features"])
    wanted = expected["discovery_logits_known_then_novel"]
    assert logits.shape == (10, 140)
    assert (logits - wanted).abs().max() <= 1e-3 * wanted.abs().max()


def test_names_must_be_as_many_as_outputs(
    supervised_state: dict[str, Tensor],  # noqa: F811
    tmp_path: Path,
):
    with pytest.raises(UserError, match="knows 80 classes, --known names 2"):
        run_import(supervised_state, tmp_path, known="cat,dog")
    assert not RunFolder(tmp_path / "run").exists
