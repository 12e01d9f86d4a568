"""The ONNX file finds in ONNX Runtime what the predictor finds in PyTorch."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rncdl.config import Settings, resolve_settings
from rncdl.data.samples import unlabelled_sample
from rncdl.data.transforms import resize_sample, resized_size
from rncdl.detector.model import Detector
from rncdl.errors import UserError
from rncdl.exports.onnx import Agreement, compare_with_torch, open_onnx, write_onnx
from rncdl.exports.onnx_graph import network_size, resize, suppress_within_classes
from rncdl.models import build_heads
from rncdl.naming.decisions import Decisions
from rncdl.prediction.classifier import discovery_classifier, trained_classifier
from rncdl.prediction.predictor import Predictor
from tests.pipeline.tiny import SETTINGS

KNOWN = ("cat", "dog", "Füchse")
SIZES_HW = [(64, 64), (50, 120), (131, 77), (20, 33), (300, 90), (9, 200)]
"""As the network wants it, wide, tall, to be enlarged, to be shrunk, limited by the long side."""


def made_up_image(height: int, width: int) -> np.ndarray:
    """Coloured rectangles on noise."""
    draw = np.random.default_rng(height * 1000 + width)
    image = draw.integers(0, 80, (height, width, 3), dtype=np.uint8)
    for _ in range(6):
        y, x = draw.integers(0, height), draw.integers(0, width)
        image[y : y + height // 3 + 1, x : x + width // 3 + 1] = draw.integers(0, 256, 3)
    return image


def made_up_detector(settings: Settings, *, masks: bool) -> Detector:
    """Random weights, large enough that boxes move and scores differ."""
    torch.manual_seed(3)
    detector = Detector(settings.detector, len(KNOWN), masks=masks)
    torch.nn.init.normal_(detector.known_head.weight, std=0.2)
    torch.nn.init.normal_(detector.box_regressor.weight, std=0.3)
    if detector.localiser is not None:
        torch.nn.init.normal_(detector.localiser.weight, std=0.3)
    if detector.mask_detail is not None:
        torch.nn.init.normal_(detector.mask_detail.correction.weight)
    return detector.eval()


def made_up_predictor(*overrides: str, masks: bool = True, discovery: bool = True) -> Predictor:
    settings = resolve_settings(overrides=[*SETTINGS, *overrides])
    detector = made_up_detector(settings, masks=masks)
    if not discovery:
        return Predictor(detector, trained_classifier(detector, KNOWN), settings)
    heads = build_heads(detector, settings.discover)
    classifier = discovery_classifier(detector, heads, KNOWN, predict=settings.predict)
    return Predictor(detector, classifier, settings, "main")


def export(predictor: Predictor, folder: Path) -> Any:
    write_onnx(predictor, folder / "detector.onnx")
    return open_onnx(folder / "detector.onnx", threads=1)


def require_equal(session: Any, predictor: Predictor) -> None:
    """On images of several sizes; something is found in each."""
    for size_hw in SIZES_HW:
        image = made_up_image(*size_hw)
        found = compare_with_torch(session, predictor, image)
        assert found.num_alone == 0, size_hw
        assert found.boxes_px < 0.1, size_hw
        assert found.scores < 1e-4, size_hw
        assert found.num_detections > 0, size_hw


class ChangedSession:
    """Finds what a predictor finds, changed."""

    def __init__(self, predictor: Predictor, change: Callable[..., tuple[np.ndarray, ...]]) -> None:
        self.predictor, self.change = predictor, change

    def run(self, names: None, given: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        found = self.predictor.predict(given["image"], masks=False)
        assert found.scores is not None
        assert found.labels is not None
        return self.change(found.boxes_xyxy.numpy(), found.scores.numpy(), found.labels.numpy())


FIRST = np.arange(1000) == 0


@pytest.mark.parametrize(
    ("change", "num_alone"),
    [
        pytest.param(lambda b, s, c: (b, s, c), 0, id="nothing"),
        pytest.param(lambda b, s, c: (b[::-1], s[::-1], c[::-1]), 0, id="the order"),
        pytest.param(lambda b, s, c: (b + 0.05, s, c), 0, id="boxes a little"),
        pytest.param(lambda b, s, c: (b[1:], s[1:], c[1:]), 1, id="one is missing"),
        pytest.param(lambda b, s, c: (b, s, c + FIRST[: len(c)]), 2, id="one class"),
        pytest.param(lambda b, s, c: (b + 0.2 * FIRST[: len(b), None], s, c), 2, id="one box"),
        pytest.param(lambda b, s, c: (b, s + 0.002 * FIRST[: len(s)], c), 2, id="one score"),
    ],
)
def test_a_comparison_counts_detections_without_a_partner(change, num_alone):
    # Few, and no two of them alike.
    predictor = made_up_predictor("predict.max_detections=4", "predict.nms=0.1")
    session: Any = ChangedSession(predictor, change)
    found = compare_with_torch(session, predictor, made_up_image(64, 64))
    assert (found.num_detections, found.num_alone) == (4, num_alone)
    assert found.boxes_px <= 0.051
    assert found.scores == 0


def test_agreements_add_up():
    found = Agreement(3, 1, boxes_px=0.01, scores=2e-5) + Agreement(4, 0, boxes_px=0.02, scores=0)
    assert found == Agreement(7, 1, boxes_px=0.02, scores=2e-5)


@pytest.mark.parametrize(
    "predictor",
    [
        pytest.param(lambda: made_up_predictor(), id="discovery"),
        pytest.param(lambda: made_up_predictor(discovery=False), id="as trained"),
        pytest.param(lambda: made_up_predictor(masks=False), id="no masks"),
        pytest.param(
            lambda: made_up_predictor("predict.refinements=2", "predict.mask_share=0.7"),
            id="refined twice, moved to masks",
        ),
        pytest.param(
            lambda: made_up_predictor("predict.region_nms=0.5", "detector.localisation=true"),
            id="kept apart, the best fit first",
        ),
        pytest.param(
            lambda: made_up_predictor("predict.region_nms=0.5", "predict.mask_share=0.7"),
            id="kept apart, moved to masks",
        ),
        pytest.param(
            lambda: made_up_predictor("detector.mask_detail=4", "predict.mask_share=0.7"),
            id="moved to masks of some detail",
        ),
        pytest.param(
            lambda: made_up_predictor("predict.known=trained", "predict.score=objectness"),
            id="known as trained, by objectness",
        ),
        pytest.param(lambda: made_up_predictor("predict.score=foreground"), id="by foreground"),
        pytest.param(
            lambda: made_up_predictor("detector.localisation=true", "predict.score=localisation"),
            id="by localisation",
        ),
        pytest.param(lambda: made_up_predictor("detector.norm=group"), id="group norm"),
        pytest.param(
            lambda: made_up_predictor(
                "detector.backbone=timm:tf_efficientnet_lite0",
                "detector.norm=frozen",
                "detector.box_head_norm=true",
            ),
            id="timm's Lite0",
        ),
    ],
)
def test_the_file_finds_what_the_predictor_finds(predictor, tmp_path):
    made = predictor()
    require_equal(export(made, tmp_path), made)


def test_clusters_are_joined_as_people_decided(tmp_path):
    """Two make one class, one belongs to a known class, one is ignored."""
    predictor = made_up_predictor()
    decisions = Decisions({0: "owl", 5: "owl", 2: "cat", 4: "cat", 7: "bee"}, frozenset({3}))
    decided = replace(predictor, classifier=predictor.classifier.decided(decisions))
    session = export(decided, tmp_path)
    require_equal(session, decided)
    expected = [*KNOWN, "owl", "novel_0001", "novel_0006", "bee"]
    assert metadata(session)["names"] == expected


def test_unwanted_classes_are_not_found(tmp_path):
    predictor = made_up_predictor()
    wanted = torch.arange(len(predictor.names)) % 2 == 0
    limited = replace(predictor, classifier=predictor.classifier.limited_to(wanted))
    session = export(limited, tmp_path)
    require_equal(session, limited)
    (labels,) = session.run(["labels"], {"image": made_up_image(64, 64)})
    assert set(labels % 2) == {0}


def test_masks_are_probabilities_over_the_boxes_of_the_detector_itself(tmp_path):
    predictor = made_up_predictor()
    session = export(predictor, tmp_path)
    image = made_up_image(64, 64)
    boxes, masks = session.run(["boxes", "masks"], {"image": image})
    detector = predictor.detector
    with torch.no_grad():
        batch = detector.batch_images([torch.from_numpy(image).permute(2, 0, 1)])
        logits = detector.mask_logits(detector.feature_maps(batch), [torch.from_numpy(boxes)])
    assert masks.shape == (len(boxes), 28, 28)
    np.testing.assert_allclose(masks, logits.sigmoid().numpy(), atol=1e-3)


def metadata(session: Any) -> dict[str, Any]:
    written = session.get_modelmeta().custom_metadata_map
    return {key: json.loads(value) for key, value in written.items()}


def test_nothing_found_is_no_rows(tmp_path):
    predictor = made_up_predictor("predict.min_score=1.0")
    outputs = export(predictor, tmp_path).run(None, {"image": made_up_image(50, 70)})
    assert [output.shape for output in outputs] == [(0, 4), (0,), (0,), (0, 28, 28)]


def test_a_detector_without_masks_gives_none(tmp_path):
    session = export(made_up_predictor(masks=False), tmp_path)
    assert [output.name for output in session.get_outputs()] == ["boxes", "scores", "labels"]


def test_the_metadata_say_what_labels_mean_and_what_made_the_file(tmp_path):
    predictor = made_up_predictor("predict.nms=0.4")
    found = metadata(export(predictor, tmp_path))
    assert found["names"] == [*KNOWN, *(f"novel_{n:04}" for n in range(8))]
    assert found["num_known"] == 3
    assert found["discovery"] == "main"
    assert found["predict"]["nms"] == 0.4


def test_a_vit_is_refused_with_the_reason(tmp_path):
    predictor = made_up_predictor("detector.backbone=timm:vit_tiny_patch16_224")
    with pytest.raises(UserError, match=r"backbone=timm:vit_tiny\w+: a ViT resamples"):
        write_onnx(predictor, tmp_path / "detector.onnx")


def test_a_file_is_not_replaced_unasked(tmp_path):
    out = tmp_path / "detector.onnx"
    out.write_bytes(b"precious")
    predictor = made_up_predictor()
    with pytest.raises(UserError, match=r"detector\.onnx exists already.*--overwrite"):
        write_onnx(predictor, out)
    assert out.read_bytes() == b"precious"
    write_onnx(predictor, out, overwrite=True)
    assert len(open_onnx(out).get_outputs()) == 4


@pytest.mark.parametrize(
    ("name", "act"),
    [("onnx", lambda out: write_onnx(made_up_predictor(), out)), ("onnxruntime", open_onnx)],
)
def test_without_the_libraries_the_way_to_get_them_is_told(name, act, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    out = tmp_path / "detector.onnx"
    with pytest.raises(UserError, match=rf"needs {name}: pip install 'rncdl\[onnx\]'"):
        act(out)
    assert not out.exists()


@pytest.mark.parametrize("given_hw", [*SIZES_HW, (480, 640), (1, 1), (3000, 2)])
def test_the_size_is_that_of_the_predictor(given_hw):
    found = network_size(torch.tensor(given_hw), short_side_px=64, long_side_px=96)
    height, width = given_hw
    assert tuple(found.tolist()) == resized_size(height, width, 64, 96)


@pytest.mark.parametrize("given_hw", SIZES_HW)
def test_pixels_are_resized_as_the_predictor_does_it(given_hw):
    """By one at most, for CPUs without AVX2 round otherwise."""
    pixels = torch.from_numpy(made_up_image(*given_hw)).permute(2, 0, 1)
    sample = unlabelled_sample(pixels, image_index=0, path="")
    expected = resize_sample(sample, short_side_px=64, long_side_px=96).image.float()
    given, size = torch.tensor(given_hw), torch.tensor(expected.shape[1:])
    assert (resize(pixels.float(), given, size) - expected).abs().max() <= 1


def test_suppression_keeps_the_best_of_each_class():
    boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 9], [50, 50, 60, 60]])
    scores = torch.tensor([[0.9, 0.8, 0.7], [0.1, 0.6, 0.2]])
    labels, rows = suppress_within_classes(boxes, scores, nms=0.5, min_score=0.15, most_per_class=9)
    found = sorted(zip(labels.tolist(), rows.tolist(), strict=True))
    assert found == [(0, 0), (0, 2), (1, 1), (1, 2)]
