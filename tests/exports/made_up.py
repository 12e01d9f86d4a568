"""Exports of made-up predictions."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rncdl.data.masks import encode_rle, rle_to_json
from rncdl.exports.records import ExportRequest
from rncdl.prediction.folder import PredictionFolder
from rncdl.stages.export import export

BOXES = [[4.0, 6.0, 20.0, 10.0], [30.0, 20.0, 12.0, 16.0]]
NAMES = ("a/1 ü.png", "b/1 ü.png", "none.png")


def mask_of(box: list[float]) -> np.ndarray:
    x, y, w, h = map(int, box)
    mask = np.zeros((48, 64), dtype=bool)
    mask[y : y + h, x : x + w] = True
    return mask


def run_export(predictions: PredictionFolder, out: Path, name: str, **changes: Any) -> Path:
    request = ExportRequest(format=name, out=out, **{"min_score": 0.1, **changes})
    assert export(request, predictions, overwrite=False) == 0
    return out


def detection(image_id: int, category_id: int, box: Sequence[float], mask: np.ndarray) -> dict:
    """An entry of predictions.json."""
    return {
        "image_id": image_id,
        "category_id": category_id,
        "score": 0.9 / category_id,
        "bbox": list(box),
        "segmentation": rle_to_json(encode_rle(mask)),
    }


def write_predictions(
    path: Path, files: Sequence[Path], names: Sequence[str], entries: Sequence[dict]
) -> PredictionFolder:
    """What `rncdl predict` would write. files: images of 64 × 48; names: a known class, others."""
    folder = PredictionFolder(path)
    folder.path.mkdir()
    images = [
        {"id": i, "file_name": str(file), "width": 64, "height": 48}
        for i, file in enumerate(files, 1)
    ]
    categories = [
        {"id": i + 1, "name": name, "cluster": i - 1 if i else None} for i, name in enumerate(names)
    ]
    folder.images_file.write_text(json.dumps({"images": images, "categories": categories}))
    folder.origin_file.write_text("{}")
    lines = ",\n".join(map(json.dumps, entries))
    folder.predictions_file.write_text(f"[\n{lines}\n]\n" if lines else "[\n]\n")
    return folder
