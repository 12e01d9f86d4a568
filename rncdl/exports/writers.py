"""The formats by name."""

from rncdl.errors import UserError, did_you_mean
from rncdl.exports.coco import CocoWriter, FiftyOneWriter
from rncdl.exports.cvat import CvatWriter
from rncdl.exports.exported import ExportRequest, Shape
from rncdl.exports.huggingface import HuggingFaceWriter
from rncdl.exports.label_studio import LabelStudioWriter
from rncdl.exports.voc import VocWriter
from rncdl.exports.writer import Writer
from rncdl.exports.yolo import YoloWriter

WRITERS: dict[str, type[Writer]] = {
    "coco": CocoWriter,
    "yolo": YoloWriter,
    "voc": VocWriter,
    "label-studio": LabelStudioWriter,
    "cvat": CvatWriter,
    "fiftyone": FiftyOneWriter,
    "huggingface": HuggingFaceWriter,
}


def writer_for(request: ExportRequest) -> type[Writer]:
    """The format's writer; UserError where there is none, or it cannot do what is asked."""
    kind = WRITERS.get(request.format)
    if kind is None:
        raise UserError(
            f"{request.format!r} is no format to export to; there are {', '.join(WRITERS)}."
            + did_you_mean(request.format, WRITERS)
        )
    if request.shape is not None and request.shape not in kind.shapes:
        raise UserError(
            f"--shape {request.shape}: {request.format} holds {' or '.join(kind.shapes)}."
        )
    if request.placing not in kind.placings:
        raise UserError(
            f"--images {request.placing}: {request.format} needs the images in its folder; "
            f"give {' or '.join(kind.placings)}."
        )
    return kind


def choose_shape(request: ExportRequest, *, has_masks: bool) -> Shape:
    """What was asked for, else the first that format and detections both have."""
    if request.shape not in (None, Shape.BOX) and not has_masks:
        raise UserError(
            f"--shape {request.shape}: these detections have no masks; leave it out, or give box."
        )
    if request.shape is not None:
        return request.shape
    return writer_for(request).shapes[0] if has_masks else Shape.BOX
