"""With the authors' weights the detector gives what Detectron2 gives.

The weights are random, so rounding grows on its way through the layers. In float32 the worst
proposal is 0.04 to 0.11 px from the reference, depending on threads, instruction set and memory
layout. Here the detector runs in float64, the same on every machine; what is left is mostly the
reference's own float32 rounding. Detections of nearly equal score may change places.
"""

import json
import zlib
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from pycocotools import mask as run_lengths
from torch import Tensor, nn
from torch.nn import functional
from torchvision.io import read_image

from rncdl.data.samples import Sample
from rncdl.detector.boxes import REGION_CODER
from rncdl.detector.importing import ImportedDetector, convert_detectron2
from rncdl.detector.locating import Search, locate
from rncdl.detector.model import Detector, ImageBatch
from rncdl.detector.pasting import paste_masks
from rncdl.detector.proposals import select_proposals
from rncdl.errors import UserError
from rncdl.prediction.classifier import Classifier
from rncdl.prediction.detecting import Limits, detect
from tests.shared_data import shared_path

FOLDER = "detectron2_reference"
HEADS = "roi_heads.box_predictor.discovery_model."
TEMPERATURE = 0.1


def rule_tensor(name: str, shape: list[int], statistics: dict[str, np.ndarray]) -> Tensor:
    """The reference's weights: drawn by a generator seeded with the name."""
    if name in statistics:
        return torch.from_numpy(statistics[name])
    rng = np.random.RandomState(zlib.crc32(name.encode()) & 0x7FFFFFFF)
    if len(shape) >= 2:
        values = rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
    elif not shape:
        return torch.tensor(0)
    elif name.endswith("bias"):
        values = rng.uniform(-0.1, 0.1, shape)
    else:
        values = rng.uniform(0.5, 1.5, shape)
    return torch.from_numpy(values.astype(np.float32))


@pytest.fixture(scope="module")
def supervised_state() -> dict[str, Tensor]:
    shapes = json.loads(shared_path(FOLDER, "supervised_checkpoint_keys.json").read_text())
    statistics = dict(np.load(shared_path(FOLDER, "batchnorm_statistics.npz")))
    return {name: rule_tensor(name, shape, statistics) for name, shape in shapes.items()}


@pytest.fixture(scope="module")
def discovery_state(supervised_state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors as a discovery checkpoint holds them."""
    shapes = json.loads(shared_path(FOLDER, "discovery_checkpoint_keys.json").read_text())
    state = {}
    for name, shape in shapes.items():
        original = name.partition(".")[2].replace("roi_heads.roi_heads.", "roi_heads.")
        original = original.replace("box_predictor.box_predictor.", "box_predictor.")
        tensor = supervised_state[original]
        state[name] = tensor[:-1] if ".head_lab." in name else tensor
        assert list(state[name].shape) == shape
    return state


@pytest.fixture(scope="module")
def expected() -> dict[str, Tensor]:
    arrays = np.load(shared_path(FOLDER, "expected.npz"))
    return {name: torch.from_numpy(arrays[name]) for name in arrays}


@pytest.fixture(scope="module")
def imported(supervised_state: dict[str, Tensor]) -> ImportedDetector:
    return convert_detectron2(supervised_state)


@dataclass
class Run:
    detector: Detector
    sample: Sample
    batch: ImageBatch
    maps: list[Tensor]
    given: list[Tensor]
    features: Tensor


@pytest.fixture(scope="module")
def run(imported: ImportedDetector, expected: dict[str, Tensor]) -> Run:
    detector = Detector(imported.settings, imported.num_known, masks=imported.masks)
    detector.load_state_dict(imported.state)
    detector.double().eval().requires_grad_(False)
    image = read_image(str(shared_path(FOLDER, "image.png")))
    nothing = torch.zeros(0, 4)
    sample = Sample(image, nothing, torch.zeros(0, dtype=torch.long), None, 0, "", (224, 320))
    batch = detector.batch_images([image])
    maps = detector.feature_maps(batch)
    given = [expected["given_boxes_xyxy"].double()]
    return Run(detector, sample, batch, maps, given, detector.region_features(maps, given))


def assert_relative(found: Tensor, wanted: Tensor) -> None:
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() <= 1e-3 * wanted.abs().max()


def assert_close_boxes(found: Tensor, wanted: Tensor) -> None:
    """0.05 px, but for at most one coordinate in a hundred; none by 0.1 px."""
    error = (found - wanted).abs()
    assert (error > 0.05).double().mean() <= 0.01
    assert error.max() < 0.1


def novel_logits(tensors: dict[str, Tensor], features: Tensor) -> Tensor:
    """The novel head written out: MLP with BatchNorm and ReLU, then cosine / temperature."""
    hidden = functional.linear(
        features, tensors["projection.0.weight"], tensors["projection.0.bias"]
    )
    mean, variance = tensors["projection.1.running_mean"], tensors["projection.1.running_var"]
    hidden = (hidden - mean) / (variance + 1e-5).sqrt()
    hidden = hidden * tensors["projection.1.weight"] + tensors["projection.1.bias"]
    projected = functional.linear(
        hidden.relu(), tensors["projection.3.weight"], tensors["projection.3.bias"]
    )
    prototypes = functional.normalize(tensors["prototypes"])
    return functional.normalize(projected) @ prototypes.T / TEMPERATURE


def test_pyramid_maps(run: Run, expected: dict[str, Tensor]) -> None:
    for level, found in zip("23456", run.maps, strict=True):
        wanted = expected[f"fpn_p{level}"]
        assert_relative(found[0, : len(wanted)], wanted)


def test_box_features_logits_and_offsets(run: Run, expected: dict[str, Tensor]) -> None:
    assert_relative(run.features, expected["box_features"])
    logits = run.detector.known_head(run.features)
    assert_relative(logits, expected["supervised_logits_known_and_background"])
    deltas = run.detector.box_regressor(run.features)
    assert_relative(deltas, expected["box_deltas"])
    unclipped = REGION_CODER.decode_single(deltas, run.given[0])
    assert (unclipped - expected["refined_boxes_xyxy"]).abs().max() < 0.05


def test_refined_boxes_are_clipped(run: Run, expected: dict[str, Tensor]) -> None:
    (refined,) = run.detector.refine_boxes(run.features, run.given, run.batch.sizes_hw)
    limit = torch.tensor([320.0, 224.0, 320.0, 224.0])
    wanted = expected["refined_boxes_xyxy"].clamp(min=0).minimum(limit)
    assert (refined - wanted).abs().max() < 0.05


def test_mask_logits(run: Run, expected: dict[str, Tensor]) -> None:
    assert_relative(run.detector.mask_logits(run.maps, run.given), expected["mask_logits"])


def test_best_proposals(run: Run, expected: dict[str, Tensor]) -> None:
    scores, sizes = run.detector.score_anchors(run.maps), run.batch.sizes_hw
    (proposals,) = select_proposals(scores, sizes, nms=0.7, before_nms=1000, after_nms=1000)
    assert_close_boxes(proposals.boxes_xyxy[:100], expected["rpn_boxes_xyxy_nms07"])
    assert_relative(proposals.objectness[:100], expected["rpn_logits_nms07"])


def test_discovery_proposals(run: Run, expected: dict[str, Tensor]) -> None:
    search = Search(before_nms=1000, nms=None, per_image=50)
    located = locate(run.detector, run.maps, run.batch, search=search)
    assert_close_boxes(located.boxes[0], expected["proposals50_boxes_xyxy"])
    assert_relative(located.objectness[0], expected["proposals50_objectness"])


def test_discovery_checkpoint(
    run: Run, discovery_state: dict[str, Tensor], expected: dict[str, Tensor]
) -> None:
    found = convert_detectron2(discovery_state)
    assert found.num_known == 80
    assert not found.has_background
    (novel,) = found.novel_heads
    weight, bias = found.state["known_head.weight"], found.state["known_head.bias"]
    features = expected["box_features"]
    known = functional.linear(features, weight, bias)
    logits = torch.cat((known[:, :-1], novel_logits(novel, features)), 1)
    assert_relative(logits, expected["discovery_logits_known_then_novel"])
    assert (known.softmax(1)[:, -1] == 0).all()


def test_discovery_detections(
    run: Run,
    imported: ImportedDetector,
    discovery_state: dict[str, Tensor],
    expected: dict[str, Tensor],
) -> None:
    (head,) = convert_detectron2(discovery_state).novel_heads
    novel = {name: tensor.double() for name, tensor in head.items()}

    class Outputs(nn.Module):
        def forward(self, features: Tensor) -> Tensor:
            known = run.detector.known_head(features)[:, :-1]
            return torch.cat((known, novel_logits(novel, features)), 1).softmax(1)

    without_masks = Detector(imported.settings, imported.num_known, masks=False).double().eval()
    without_masks.load_state_dict(imported.state, strict=False)
    search = Search(before_nms=1000, nms=0.9, per_image=1000)
    limits = Limits(search, min_score=1e-4, nms=0.5, max_detections=300)
    classifier = Classifier(Outputs(), names=(), num_known=80)
    ((found,),) = detect(without_masks, [run.sample], [classifier], limits=limits).regions()
    assert found.scores is not None
    assert found.labels is not None
    assert len(found) == 300
    distance = (found.boxes_xyxy - expected["detections_boxes_xyxy"][:, None]).abs().amax(2)
    distance[expected["detections_classes"][:, None] != found.labels] = torch.inf
    nearest_px, partner = distance.min(1)
    assert nearest_px.max() < 0.05
    assert sorted(partner.tolist()) == list(range(300))
    assert (found.scores[partner] - expected["detections_scores"]).abs().max() < 1e-3


def test_pasted_masks_of_the_best_detections(run: Run, expected: dict[str, Tensor]) -> None:
    boxes = expected["detections_boxes_xyxy"][:40].double()
    masks = run.detector.mask_logits(run.maps, [boxes]).sigmoid()
    rles = paste_masks(masks, boxes, (224, 320))
    areas = torch.tensor([int(run_lengths.area(rle)) for rle in rles])
    wanted = expected["detections_mask_area_px"][:40]
    assert ((areas - wanted).abs() <= 2 + 0.01 * wanted).all()


def test_supervised_checkpoint_has_a_background_and_no_trained_novel_heads(
    imported: ImportedDetector,
) -> None:
    assert imported.num_known == 80
    assert imported.has_background
    assert imported.novel_heads == ()
    assert imported.masks
    assert imported.settings.backbone == "resnet50"


def test_missing_and_unexpected_keys_are_listed(supervised_state: dict[str, Tensor]) -> None:
    state = dict(supervised_state)
    state["roi_heads.extra.weight"] = state.pop("roi_heads.box_head.fc2.bias")
    with pytest.raises(UserError) as error:
        convert_detectron2(state, source="a.pth")
    assert "a.pth" in str(error.value)
    assert "missing: box_head.fc2.bias" in str(error.value)
    assert "unexpected: roi_heads.extra.weight" in str(error.value)


def test_stray_copies_of_a_discovery_checkpoint_are_listed(
    discovery_state: dict[str, Tensor],
) -> None:
    state = dict(discovery_state)
    state["discovery_feature_extractor.backbone.unheard"] = torch.zeros(1)
    with pytest.raises(UserError, match=r"unexpected: discovery_feature_extractor\.backbone"):
        convert_detectron2(state)


def test_wrong_shapes_are_listed(supervised_state: dict[str, Tensor]) -> None:
    state = dict(supervised_state)
    state["roi_heads.box_head.fc2.bias"] = torch.zeros(3)
    with pytest.raises(UserError, match=r"box_head\.fc2\.bias \[3\] instead of \[1024\]"):
        convert_detectron2(state)
