"""`rncdl export onnx` of a run, and the page's example of how to use the file without torch."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import rncdl
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
    assert "As in PyTorch on 1 images" in said
    return folder


def test_the_example_finds_without_torch_what_the_predictor_finds(exported, discovered):
    page = (REPOSITORY / "docs" / "exporting.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
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
    # Pillow and the predictor differ where a mask touches its box's edge.
    areas = np.array([row[5] for row in rows], dtype=float)
    assert expected.masks is not None
    print(np.c_[areas, expected.masks.sum((1, 2))])
    np.testing.assert_allclose(areas, expected.masks.sum((1, 2)), rtol=0.1, atol=20)


def test_an_existing_file_is_refused(exported, discovered):
    out = exported / "detector.onnx"
    before = out.stat().st_mtime_ns
    said = run_rncdl("export", "onnx", "--run", discovered, "--out", out, code=2)
    assert "--overwrite" in said
    assert out.stat().st_mtime_ns == before
