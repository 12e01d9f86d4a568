import json
from pathlib import Path

import pytest

from rncdl.data.masks import encode_rle, rle_to_json
from rncdl.prediction.folder import PredictionFolder
from tests.data.made_up import write_image
from tests.exports.made_up import BOXES, NAMES, mask_of


@pytest.fixture
def predictions(tmp_path: Path) -> PredictionFolder:
    """Two images of one name with a known and a novel object each, and one without any."""
    folder = PredictionFolder(tmp_path / "found")
    files = [write_image(tmp_path / "photos" / name) for name in NAMES]
    images = [
        {"id": i, "file_name": str(file), "width": 64, "height": 48}
        for i, file in enumerate(files, 1)
    ]
    categories = [
        {"id": 1, "name": "cat", "cluster": None},
        {"id": 2, "name": "novel_0000", "cluster": 0},
    ]
    folder.path.mkdir()
    folder.images_file.write_text(json.dumps({"images": images, "categories": categories}))
    folder.origin_file.write_text("{}")
    entries = [
        {
            "image_id": image_id,
            "category_id": row + 1,
            "score": 0.9 - row / 2,
            "bbox": box,
            "segmentation": rle_to_json(encode_rle(mask_of(box))),
        }
        for image_id in (1, 2)
        for row, box in enumerate(BOXES)
    ]
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    folder.predictions_file.write_text(f"[\n{lines}\n]\n")
    return folder
