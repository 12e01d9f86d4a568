"""`rncdl export`: detections in the format of another tool."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from rncdl.data.datasets import BadImage
from rncdl.data.image_paths import find_images
from rncdl.exports.export_folder import ExportFolder, place_image
from rncdl.exports.exported import ExportRequest, FoundImage, Placing, Plan
from rncdl.exports.predictions import Predictions
from rncdl.exports.writer import Writer
from rncdl.exports.writers import choose_shape, writer_for
from rncdl.gallery.drawings import choose_shown
from rncdl.prediction.folder import BatchLog, PredictionFolder
from rncdl.prediction.predictor import HeadChoice
from rncdl.stages.predict import predict, split_words
from rncdl.training.interruption import Interrupted, stop_request
from rncdl.training.progress import ProgressLine, say, warn


def predict_for_export(
    words: Sequence[str],
    run: Path,
    out: Path,
    *,
    choice: HeadChoice,
    overwrite: bool,
) -> PredictionFolder:
    """The detections that an export is made from, kept in its folder. Images in `out` are none."""
    folder = ExportFolder(out)
    folder.require_own()
    named, settings = split_words(words)
    files = find_images(named, outside=out)
    predict(
        [*map(str, files), *settings],
        run,
        out=folder.predictions.path,
        choice=choice,
        min_score=None,
        draw=False,
        overwrite=overwrite,
    )
    return folder.predictions


def export(request: ExportRequest, predictions_dir: PredictionFolder, *, overwrite: bool) -> int:
    """Write the export; returns how many images are not in it. Interrupted, it goes on later."""
    kind = writer_for(request)
    folder = ExportFolder(request.out)
    folder.require_own()
    predictions = Predictions(predictions_dir)
    shape = choose_shape(request, has_masks=predictions.has_masks)
    origin = {
        "format": request.format,
        "predictions": predictions.origin,
        "min_score": request.min_score,
        "only": request.only,
        "overlapping": request.keep_overlapping,
        "shape": shape,
        "images": request.placing,
        "val_share": request.val_share,
    }
    folder.begin(origin, written=kind.written, overwrite=overwrite)
    if not folder.is_finished:
        plan = Plan(
            out=request.out,
            classes=predictions.classes(request.only),
            shape=shape,
            placing=request.placing,
            images_root=predictions.images_root,
            num_images=len(predictions),
            val_share=request.val_share,
        )
        writer = kind(plan)
        _add_images(request, predictions, writer, folder)
        writer.finish(folder.lines)
        folder.finish([*predictions_dir.skipped_images(), *folder.skipped()])
    say(f"Exported: {kind.how_to_open.format(out=request.out)}")
    if folder.num_skipped():
        warn(f"{folder.num_skipped()} images were not exported: {folder.skipped_images_file}")
    return folder.num_skipped()


def _add_images(
    request: ExportRequest, predictions: Predictions, writer: Writer, folder: ExportFolder
) -> None:
    """Every image that is not in the log yet."""
    with (
        closing(BatchLog(folder.log_file)) as log,
        stop_request() as stop,
        ProgressLine("export", len(predictions), unit="images", start=log.num_batches) as progress,
    ):
        for image in _images(request, predictions, start=log.num_batches):
            try:
                if not image.source.is_file():
                    raise FileNotFoundError("the image is not there any more")
                if request.placing is not Placing.LEAVE:
                    place_image(
                        image.source, request.out / writer.image_path(image), request.placing
                    )
            except FileNotFoundError as error:
                bad = BadImage(str(image.source), f"{image.source}: {error}")
                warn(bad.reason)
                log.write([], [bad])
            else:
                log.write([writer.add(image)], [])
            progress.advance()
            if stop:
                raise Interrupted(
                    "Stopped; the same command goes on from here.", exit_code=stop.exit_code
                )


def _images(
    request: ExportRequest, predictions: Predictions, *, start: int
) -> Iterator[FoundImage]:
    for image in predictions.images(only=request.only, min_score=request.min_score, start=start):
        if request.keep_overlapping or not image.objects:
            yield image
            continue
        boxes = np.array([one.box_xyxy for one in image.objects])
        scores = np.array([one.score for one in image.objects])
        kept = choose_shown(boxes, scores, min_score=request.min_score)
        yield replace(image, objects=tuple(image.objects[row] for row in kept.tolist()))
