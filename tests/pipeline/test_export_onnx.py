"""`rncdl export onnx` of a run, and the page's example of how to use the file without torch."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import rncdl
from rncdl.errors import UserError
from rncdl.exports.onnx import Agreement
from rncdl.prediction.predictor import HeadChoice
from rncdl.stages import export_onnx as stage
from tests.pipeline.tiny import REPOSITORY, environment, run_rncdl


@pytest.fixture(scope="module")
def exported(world: Path, discovered: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with detector.onnx and photo.png, at another size than the network's."""
    folder = tmp_path_factory.mktemp("exported")
    drawn = sorted((world / "images").glob("val*"))[0]
    Image.open(drawn).convert("RGB").resize((150, 110)).save(folder / "photo.png")
    said = run_rncdl(
        *("export", "onnx", "--run", discovered, "--out", folder / "detector.onnx"),
        folder / "photo.png",
    )
    assert re.search(r"in 1 images and of ONNX Runtime's, 0 are without a partner", said)
    return folder


def test_the_example_finds_without_torch_what_the_predictor_finds(exported, discovered):
    page = (REPOSITORY / "docs" / "exporting.md").read_text()
    examples = re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    (example,) = (one for one in examples if "onnxruntime" in one)
    assert "import torch" not in example
    without_torch = f"import sys\nsys.modules['torch'] = None\n{example}"
    done = subprocess.run(
        [sys.executable, "-c", without_torch],
        cwd=exported,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split(maxsplit=6) for line in done.stdout.splitlines()]
    expected = rncdl.load(discovered).predict(exported / "photo.png")
    assert len(rows) == len(expected) > 0
    assert [row[6] for row in rows] == expected.names
    found = np.array([row[:5] for row in rows], dtype=float)
    np.testing.assert_allclose(found[:, 0], expected.scores, atol=1e-3)
    np.testing.assert_allclose(found[:, 1:], expected.boxes_xyxy, atol=0.1)
    areas = np.array([row[5] for row in rows], dtype=float)
    assert expected.masks is not None
    np.testing.assert_allclose(areas, expected.masks.sum((1, 2)), rtol=0.01, atol=1)


def test_an_existing_file_is_refused(exported, discovered):
    out = exported / "detector.onnx"
    before = out.stat().st_mtime_ns
    said = run_rncdl("export", "onnx", "--run", discovered, "--out", out, code=2)
    assert "--overwrite" in said
    assert out.stat().st_mtime_ns == before


def test_a_file_that_finds_something_else_is_told(exported, discovered, tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "compare_with_torch", lambda *_: Agreement(100, 2))
    out = tmp_path / "other.onnx"
    choice = HeadChoice()
    with pytest.raises(UserError, match=r"other\.onnx does not find what the run.* 2 are without"):
        stage.export_onnx(
            [str(exported / "photo.png")],
            discovered,
            out=out,
            choice=choice,
            min_score=None,
            overwrite=False,
        )
