"""`rncdl predict`: from anyone's images to detections in a folder."""

import io
import json
import os
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from rncdl.config import change
from rncdl.data.datasets import BadImage
from rncdl.data.image_headers import read_sizes_of_all
from rncdl.data.image_paths import find_images
from rncdl.data.records import ImageRecord
from rncdl.errors import UserError
from rncdl.files import write_atomically
from rncdl.gallery.drawings import MIN_SHOWN_SCORE, draw_marks
from rncdl.gallery.examples import region_marks
from rncdl.gallery.thumbnails import open_picture
from rncdl.naming.decisions import Decisions
from rncdl.origins import digest
from rncdl.prediction.classifier import for_drawings
from rncdl.prediction.detections import Detections, encode_detections
from rncdl.prediction.folder import BatchLog, PredictionFolder
from rncdl.prediction.inference import Inference, predict_images
from rncdl.prediction.predictor import HeadChoice, Predictor, load
from rncdl.regions import Regions
from rncdl.run_folder import RunFolder
from rncdl.training.interruption import Interrupted, stop_request
from rncdl.training.processes import Processes, join_processes
from rncdl.training.progress import say, warn

_DRAWING_QUALITY = 90
_Category = dict[str, Any]


def predict(
    words: Sequence[str],
    run_path: Path,
    *,
    out: Path,
    choice: HeadChoice,
    min_score: float | None,
    draw: bool,
    overwrite: bool,
) -> int:
    """Detections of all images in `out`; returns how many images could not be read.

    That is for the first process to say: in the others it is 0.

    `words` are files, folders, globs, and settings such as predict.nms=0.4. What an earlier,
    interrupted call has done in `out` is kept; one with another origin is refused.
    """
    named, overrides = split_words(words)
    files = find_images(named, outside=out)
    predictor = load(
        run_path, discovery=choice.discovery, head=choice.head, raw=True, settings=overrides
    )
    asked = {} if min_score is None else {"min_score": min_score}
    settings = change(predictor.settings, predict=asked, data={"on_bad_image": "skip"})
    predictor = replace(predictor, settings=settings)
    images, unreadable = read_headers(files)
    run, folder = RunFolder(run_path), PredictionFolder(out)
    shown_score = MIN_SHOWN_SCORE if min_score is None else min_score
    with join_processes(predictor.settings.device) as processes:
        # Read once for all: people may be deciding at this moment.
        decisions = processes.from_main(partial(_decisions, run, predictor, choice))
        predictor = replace(predictor, classifier=predictor.classifier.decided(decisions))
        origin = {**_origin(run, predictor, images, head=choice.head), "draw": draw}
        _open_folder(folder, origin, overwrite=overwrite, processes=processes)
        if not folder.is_finished:
            if processes.is_main:
                _warn_of(unreadable)
            _predict_share(
                predictor,
                images,
                folder,
                draw_above=shown_score if draw else None,
                processes=processes,
            )
            processes.wait_for_all()
            if processes.is_main:
                folder.finish(
                    images,
                    categories=categories_of(predictor),
                    unreadable=unreadable,
                    num_processes=processes.count,
                )
            processes.wait_for_all()
        skipped = folder.skipped_images()
        if processes.is_main:
            say(f"Predictions: {folder.predictions_file} ({len(files) - len(skipped)} images)")
            if skipped:
                warn(f"{len(skipped)} images could not be read: {folder.skipped_images_file}")
    return len(skipped) if processes.is_main else 0


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Words that name images, and settings (key=value); what exists as a file is an image."""
    settings = [
        word
        for word in words
        if re.match(r"[a-z_]+(\.[a-z_]+)*=", word) and not os.path.exists(word)
    ]
    return [word for word in words if word not in settings], settings


def read_headers(files: Sequence[Path]) -> tuple[list[ImageRecord], list[BadImage]]:
    """The images whose headers can be read, and the others. An id is the place in the list."""
    images, unreadable = [], []
    sizes_of_files = zip(files, read_sizes_of_all(files), strict=True)
    for image_id, (file, sizes) in enumerate(sizes_of_files, 1):
        if isinstance(sizes, UserError):
            unreadable.append(BadImage(str(file), str(sizes)))
        else:
            height, width = sizes[0]
            images.append(ImageRecord(image_id, file, height, width))
    return images, unreadable


def categories_of(predictor: Predictor) -> list[_Category]:
    """The predictor's labels as COCO categories, counted from 1: {id, name, cluster, clusters}.

    `cluster` is the first cluster's number, None for a known class; `clusters` are all that people
    made the class of, of a known one too.
    """
    num_known = len(predictor.known)
    return [
        {
            "id": label + 1,
            "name": name,
            "cluster": clusters[0] if label >= num_known else None,
            "clusters": list(clusters),
        }
        for label, (name, clusters) in enumerate(
            zip(predictor.names, predictor.clusters, strict=True)
        )
    ]


def _decisions(run: RunFolder, predictor: Predictor, choice: HeadChoice) -> Decisions | None:
    """What people have decided about the clusters; None where that does not count."""
    if predictor.discovery is None or choice.raw:
        return None
    return run.discovery(predictor.discovery).decisions(choice.head)


def _open_folder(
    folder: PredictionFolder, origin: dict[str, Any], *, overwrite: bool, processes: Processes
) -> None:
    """Refuse what another call has made; else note what is being made. All processes look first."""
    # As many processes as before: each goes on with its own share.
    origin = {**origin, "processes": processes.count}
    folder.require_origin(origin, overwrite=overwrite)
    processes.wait_for_all()
    if processes.is_main:
        folder.begin(origin, overwrite=overwrite)
    processes.wait_for_all()


def _predict_share(
    predictor: Predictor,
    images: Sequence[ImageRecord],
    folder: PredictionFolder,
    *,
    draw_above: float | None,
    processes: Processes,
) -> None:
    """This process's batches that are still to do; `draw_above`: least score drawn, None: none."""
    classifiers = [predictor.classifier]
    if draw_above is not None:
        classifiers.append(for_drawings(predictor.classifier))
    fields_of = {
        one["id"]: {key: one[key] for key in ("name", "cluster", "clusters")}
        for one in categories_of(predictor)
    }
    with (
        closing(BatchLog(folder.batches_file(processes.rank))) as log,
        stop_request() as stop,
        closing(
            predict_images(
                Inference(predictor.detector, classifiers, predictor.settings),
                images,
                processes=processes,
                start_batch=log.num_batches,
            )
        ) as batches,
    ):
        for batch in batches:
            found, *shown = batch.regions
            if draw_above is not None:
                _draw(predictor, batch.images, shown[0], folder, min_score=draw_above)
            columns = Detections.of_images(batch.images, found)
            in_file = replace(columns, category_ids=columns.category_ids + 1, within_cut=None)
            log.write(encode_detections(in_file, fields_of=fields_of), batch.bad_images)
            _warn_of(batch.bad_images)
            if stop:
                raise Interrupted(
                    "Stopped; the same command goes on from here.", exit_code=stop.exit_code
                )


def _draw(
    predictor: Predictor,
    images: Sequence[ImageRecord],
    found: Sequence[Regions],
    folder: PredictionFolder,
    *,
    min_score: float,
) -> None:
    """A drawing of each image, with nothing on it where nothing was found."""
    names = predictor.names
    for image, regions in zip(images, found, strict=True):
        picture = open_picture(image)
        if picture is not None:
            marks = region_marks(regions, names, predictor.known, min_score=min_score)
            encoded = io.BytesIO()
            draw_marks(picture, marks).save(encoded, "JPEG", quality=_DRAWING_QUALITY)
            write_atomically(folder.drawing_file(image), encoded.getvalue())


def _warn_of(bad_images: Sequence[BadImage]) -> None:
    for bad in bad_images:
        warn(bad.reason)


def _origin(
    run: RunFolder, predictor: Predictor, images: Sequence[ImageRecord], *, head: int
) -> dict[str, Any]:
    """Everything that detections depend on; the batches too, whose images share their padding."""
    settings, name = predictor.settings, predictor.discovery
    named = predictor.classifier.named
    weights = [run.detector_file]
    if name is not None:
        of_discovery = run.discovery(name)
        weights += [of_discovery.heads_file, of_discovery.detector_file]
    listed = [[image.id, str(image.path), image.height, image.width] for image in images]
    return {
        "run": str(run.path.resolve()),
        "weights": digest(*(path.read_bytes() for path in weights if path.is_file())),
        "discovery": name,
        "head": head,
        "decisions": None if named is None else digest(json.dumps(asdict(named)).encode()),
        "images": f"{len(images)} readable, {digest(json.dumps(listed).encode())}",
        "eval_short_side_px": settings.data.eval_short_side_px,
        "long_side_px": settings.data.long_side_px,
        "precision": settings.train.precision,
        **settings.predict.model_dump(mode="json"),
    }
