from pathlib import Path

import pytest

from rncdl.prediction.folder import PredictionFolder
from tests.data.made_up import write_image
from tests.exports.made_up import BOXES, NAMES, detection, mask_of, write_predictions


@pytest.fixture
def predictions(tmp_path: Path) -> PredictionFolder:
    """Two images of one name with a known and a novel object each, and one without any."""
    files = [write_image(tmp_path / "photos" / name) for name in NAMES]
    entries = [
        detection(image_id, row + 1, box, mask_of(box))
        for image_id in (1, 2)
        for row, box in enumerate(BOXES)
    ]
    return write_predictions(tmp_path / "found", files, ["cat", "novel_0000"], entries)
