"""The detector as one ONNX file that runs without torch."""

import copy
import io
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rncdl.detector.vit import VitBackbone
from rncdl.errors import UserError
from rncdl.exports.onnx_graph import OPSET, ImageToDetections
from rncdl.files import write_atomically
from rncdl.prediction.predictor import Predictor
from rncdl.version import __version__

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

OUTPUTS = ("boxes", "scores", "labels", "masks")
_TRACED_HW = (96, 160)
"""Of the image that is looked at while the graph is traced; any would do."""
_DESCRIPTION = """\
image: (height, width, 3) uint8 RGB, any size. boxes: (D, 4) x0, y0, x1, y1 in its pixels.
scores: (D,), the best first. labels: (D,) index into the metadata's names, the first num_known of
which are known classes and the others clusters. masks: (D, 28, 28) probabilities over each box."""


@dataclass(frozen=True)
class Difference:
    """By how much ONNX Runtime and PyTorch differ on an image, detection by detection."""

    boxes_px: float
    scores: float
    same_classes: bool
    """also: as many detections"""


def write_onnx(predictor: Predictor, path: Path, *, overwrite: bool = False) -> None:
    """The whole detector, from an image of any size to named detections, in one file.

    It classifies and cuts as the predictor's settings say, in float32.
    """
    if path.exists() and not overwrite:
        raise UserError(f"{path} exists already: choose another --out, or give --overwrite.")
    write_atomically(path, encode_onnx(predictor))


def encode_onnx(predictor: Predictor) -> bytes:
    """The content of the file."""
    onnx = _import("onnx")
    if isinstance(predictor.detector.backbone, VitBackbone):
        raise UserError(
            f"detector.backbone={predictor.settings.detector.backbone}: a ViT resamples its "
            "position embeddings for every image size, which an ONNX graph cannot hold; export a "
            "run with a ResNet or another convolutional backbone."
        )
    graph = copy.deepcopy(ImageToDetections(predictor)).cpu().eval()
    has_masks = predictor.detector.mask_head is not None
    names = list(OUTPUTS) if has_masks else list(OUTPUTS[:-1])
    image = torch.zeros((*_TRACED_HW, 3), dtype=torch.uint8)
    encoded = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        # Of what tracing might freeze, which the tests look after, and of its newer sibling, which
        # cannot export data-dependent NMS.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            graph,
            (image,),
            encoded,  # type: ignore[arg-type]  # of paths alone the hints speak
            dynamo=False,
            opset_version=OPSET,
            input_names=["image"],
            output_names=names,
            dynamic_axes={
                "image": {0: "height", 1: "width"},
                **{name: {0: "detections"} for name in names},
            },
        )
    model = onnx.load_from_string(encoded.getvalue())
    model.doc_string = _DESCRIPTION
    model.producer_name, model.producer_version = "rncdl", __version__
    onnx.helper.set_model_props(model, _metadata(predictor))
    onnx.checker.check_model(model)
    return model.SerializeToString()


def _metadata(predictor: Predictor) -> dict[str, str]:
    """JSON values, to be found again in a session's `get_modelmeta().custom_metadata_map`."""
    values: dict[str, Any] = {
        "names": predictor.names,
        "num_known": len(predictor.known),
        "discovery": predictor.discovery,
        "predict": predictor.settings.predict.model_dump(mode="json"),
    }
    return {key: json.dumps(value) for key, value in values.items()}


def open_onnx(path: Path, *, threads: int = 0) -> "InferenceSession":
    """The file in ONNX Runtime on the CPU; `threads`: 0 takes all cores."""
    runtime = _import("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    return runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def compare_with_torch(
    session: "InferenceSession", predictor: Predictor, pixels: np.ndarray
) -> Difference:
    """What both find in an image (height, width, 3) uint8."""
    boxes, scores, labels, *_ = session.run(None, {"image": pixels})
    found = predictor.predict(pixels, masks=False)
    assert found.scores is not None
    assert found.labels is not None
    if len(found) != len(boxes) or not np.array_equal(found.labels.numpy(), labels):
        return Difference(np.inf, np.inf, same_classes=False)
    return Difference(
        boxes_px=_largest(found.boxes_xyxy.numpy() - boxes),
        scores=_largest(found.scores.numpy() - scores),
        same_classes=True,
    )


def _largest(difference: np.ndarray) -> float:
    return float(np.abs(difference).max(initial=0))


def _import(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise UserError(f"ONNX needs {name}: pip install 'rncdl[onnx]'") from error
