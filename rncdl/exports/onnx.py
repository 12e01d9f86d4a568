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
from scipy.optimize import linear_sum_assignment

from rncdl.detector.vit import VitBackbone
from rncdl.errors import UserError
from rncdl.exports.onnx_graph import OPSET, ImageToDetections
from rncdl.files import write_atomically
from rncdl.prediction.predictor import Predictor
from rncdl.version import __version__

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

OUTPUTS = ("boxes", "scores", "labels", "masks")
MAX_BOX_PX = 0.1
MAX_SCORE = 1e-3
_NO_PAIR = 1000.0
"""Costs more than all pairs of an image could save."""
_TRACED_HW = (96, 160)
"""Of the image that is looked at while the graph is traced; any would do."""
_DESCRIPTION = """\
image: (height, width, 3) uint8 RGB, any size. boxes: (D, 4) x0, y0, x1, y1 in its pixels.
scores: (D,), the best first. labels: (D,) index into the metadata's names, the first num_known of
which are known classes and the others clusters. masks: (D, 28, 28) probabilities over each box."""


@dataclass(frozen=True)
class Agreement:
    """How far ONNX Runtime and PyTorch find the same; of several images, all together."""

    num_detections: int = 0
    """PyTorch's"""
    num_alone: int = 0
    """detections of either without a partner: of the same class, box and score within tolerance"""
    boxes_px: float = 0
    """the largest difference between partners' boxes"""
    scores: float = 0
    """the largest difference between partners' scores"""

    def __add__(self, other: "Agreement") -> "Agreement":
        return Agreement(
            self.num_detections + other.num_detections,
            self.num_alone + other.num_alone,
            max(self.boxes_px, other.boxes_px),
            max(self.scores, other.scores),
        )


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
) -> Agreement:
    """What both find in an image (height, width, 3) uint8, in whatever order."""
    boxes, scores, labels, *_ = session.run(None, {"image": pixels})
    found = predictor.predict(pixels, masks=False)
    assert found.scores is not None
    assert found.labels is not None
    moved_px = np.abs(found.boxes_xyxy.numpy()[:, None] - boxes).max(2)
    scored = np.abs(found.scores.numpy()[:, None] - scores)
    may_pair = (moved_px <= MAX_BOX_PX) & (scored <= MAX_SCORE)
    may_pair &= found.labels.numpy()[:, None] == labels
    far = np.where(may_pair, moved_px / MAX_BOX_PX + scored / MAX_SCORE, _NO_PAIR)
    partners = linear_sum_assignment(far)
    is_pair = may_pair[partners]
    return Agreement(
        num_detections=len(found),
        num_alone=len(found) + len(boxes) - 2 * int(is_pair.sum()),
        boxes_px=float(moved_px[partners][is_pair].max(initial=0)),
        scores=float(scored[partners][is_pair].max(initial=0)),
    )


def _import(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise UserError(f"ONNX needs {name}: pip install 'rncdl[onnx]'") from error
