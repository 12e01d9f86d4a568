"""`rncdl export onnx`: the detector for other programs."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from rncdl.config import change
from rncdl.data.given_images import pixels_of
from rncdl.data.image_paths import find_images
from rncdl.errors import UserError
from rncdl.exports.onnx import compare_with_torch, open_onnx, write_onnx
from rncdl.prediction.predictor import HeadChoice, load
from rncdl.stages.predict import split_words
from rncdl.training.progress import ProgressLine, say

MAX_BOX_PX = 0.1
MAX_SCORE = 1e-3


def export_onnx(
    words: Sequence[str],
    run_path: Path,
    *,
    out: Path,
    choice: HeadChoice,
    min_score: float | None,
    overwrite: bool,
) -> None:
    """Write the run's detector to `out`, and compare it with PyTorch on the images among the words.

    `words` are files, folders, globs, and settings such as predict.nms=0.4.
    """
    named, overrides = split_words(words)
    files = find_images(named, outside=out) if named else []
    predictor = load(run_path, **asdict(choice), device="cpu", overrides=overrides)
    if min_score is not None:
        settings = change(predictor.settings, predict={"min_score": min_score})
        predictor = replace(predictor, settings=settings)
    write_onnx(predictor, out, overwrite=overwrite)
    say(f"ONNX: {out} ({out.stat().st_size / 1e6:.1f} MB, {len(predictor.names)} classes)")
    if not files:
        return
    session = open_onnx(out)
    largest_px = largest_score = 0.0
    with ProgressLine("compare", len(files), unit="images") as progress:
        for file in files:
            pixels = np.ascontiguousarray(pixels_of(file).permute(1, 2, 0).numpy())
            found = compare_with_torch(session, predictor, pixels)
            if not found.same_classes or found.boxes_px > MAX_BOX_PX or found.scores > MAX_SCORE:
                raise UserError(
                    f"{file}: ONNX Runtime finds something else in it than PyTorch ({found}). "
                    "Equal scores, or a CPU without AVX2, may do that; compare on other images."
                )
            largest_px = max(largest_px, found.boxes_px)
            largest_score = max(largest_score, found.scores)
            progress.advance(1)
    say(
        f"As in PyTorch on {len(files)} images: boxes to {largest_px:.1g} px, scores to "
        f"{largest_score:.1g}, the same classes."
    )
