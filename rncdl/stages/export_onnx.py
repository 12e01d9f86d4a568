"""`rncdl export onnx`: the detector for other programs."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from rncdl.config import change
from rncdl.data.given_images import pixels_of
from rncdl.data.image_paths import find_images
from rncdl.errors import UserError
from rncdl.exports.onnx import Agreement, compare_with_torch, open_onnx, write_onnx
from rncdl.prediction.predictor import HeadChoice, load
from rncdl.stages.predict import split_words
from rncdl.training.progress import ProgressLine, say

MAX_ALONE = 0.01
"""Of the detections: NMS and the choice of proposals may turn on the last bit."""


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
    predictor = load(run_path, **asdict(choice), device="cpu", settings=overrides)
    if min_score is not None:
        settings = change(predictor.settings, predict={"min_score": min_score})
        predictor = replace(predictor, settings=settings)
    write_onnx(predictor, out, overwrite=overwrite)
    say(f"ONNX: {out} ({out.stat().st_size / 1e6:.1f} MB, {len(predictor.names)} classes)")
    if not files:
        return
    session = open_onnx(out)
    agreement = Agreement()
    with ProgressLine("compare", len(files), unit="images") as progress:
        for file in files:
            pixels = np.ascontiguousarray(pixels_of(file).permute(1, 2, 0).numpy())
            agreement += compare_with_torch(session, predictor, pixels)
            progress.advance()
    said = (
        f"Of PyTorch's {agreement.num_detections} detections in {len(files)} images and of ONNX "
        f"Runtime's, {agreement.num_alone} are without a partner; the others' boxes are within "
        f"{agreement.boxes_px:.1g} px, their scores within {agreement.scores:.1g}."
    )
    if agreement.num_alone > MAX_ALONE * agreement.num_detections:
        raise UserError(
            f"{out} does not find what the run finds. {said} Try it on other images: where scores "
            "are equal or nearly so, rounding decides what is kept."
        )
    say(said)
