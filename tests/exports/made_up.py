"""Exports of made-up predictions."""

from pathlib import Path
from typing import Any

import numpy as np

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
