from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rncdl.classes import ClassSplit, KnownLabels
from rncdl.config import DetectorSettings, Settings, change
from rncdl.data.annotations import load_annotations
from rncdl.data.masks import decode_masks
from rncdl.data.unlabelled_objects import ObjectsFolder, UnlabelledObjects
from rncdl.detector import object_search
from rncdl.detector.locating import Search
from rncdl.detector.model import Detector
from rncdl.detector.object_search import (
    ObjectSearch,
    confirmed,
    cut_out,
    cut_out_by_masks,
    free_regions,
    look_for_objects,
    parts_of,
    well_fitting,
)
from rncdl.errors import UserError
from rncdl.segmentation.segmenter import Proposed, Proposer
from rncdl.training.processes import Processes
from tests.data.made_up import annotation_entry, image_entry, write_coco, write_image
from tests.ellipses import Ellipses

SEARCH = ObjectSearch(
    Ellipses(),
    min_score=0.3,
    min_iou=0.6,
    per_image=2,
    regions=Search(before_nms=50, nms=0.7, per_image=20),
)
NO_BOXES = torch.zeros(0, 4)
NUM_IMAGES = 7
CPU = torch.device("cpu")


def test_no_region_is_no_object():
    free = free_regions(NO_BOXES, torch.zeros(0), NO_BOXES, SEARCH)
    boxes = NO_BOXES[free]
    masks = cut_out(torch.zeros(3, 40, 50, dtype=torch.uint8), boxes, Ellipses())
    rows, fitted = confirmed(boxes, masks, min_iou=0.6)
    assert (boxes.shape, masks.shape) == ((0, 4), (0, 40, 50))
    assert (len(rows), fitted.shape) == (0, (0, 4))


def test_regions_that_are_annotated_unlikely_small_or_double_are_not_free():
    boxes = torch.tensor(
        [
            [0.0, 0, 20, 20],  # free
            [1, 1, 20, 20],  # the same again
            [50, 50, 80, 80],  # annotated
            [0, 50, 30, 80],  # unlikely
            [60, 0, 66, 40],  # too narrow
            [80, 0, 99, 30],  # free
            [30, 30, 45, 45],  # free, but the third one
        ]
    )
    scores = torch.tensor([0.9, 0.8, 0.95, 0.2, 0.7, 0.6, 0.5])
    annotated = torch.tensor([[52.0, 50, 80, 80]])
    assert free_regions(boxes, scores, annotated, SEARCH).tolist() == [0, 5]


def test_masks_that_do_not_fit_their_regions_confirm_none():
    boxes = torch.tensor([[10.0, 10, 30, 30]] * 5)
    masks = torch.zeros(5, 40, 40, dtype=torch.bool)
    masks[0, 11:29, 11:29] = True
    masks[0, 11:17, 11:17] = False  # an object with an outline
    masks[1, 10:30, 10:30] = True  # all of the box: no outline
    masks[2, 10:18, 10:18] = True  # far smaller
    masks[3, torch.arange(10, 30), torch.arange(10, 30)] = True  # a line
    rows, fitted = confirmed(boxes, masks, min_iou=0.6)
    assert rows.tolist() == [0]
    assert fitted.tolist() == [[11, 11, 29, 29]]


def test_what_lies_in_an_annotated_box_is_a_part_of_it():
    boxes = torch.tensor([[0.0, 0, 10, 10], [5, 0, 15, 10], [2, 0, 12, 10], [50, 50, 60, 60]])
    annotated = torch.tensor([[-5.0, -5, 10, 40], [80, 80, 90, 90]])
    assert parts_of(boxes, annotated).tolist() == [True, False, True, False]
    assert parts_of(boxes, NO_BOXES).tolist() == [False] * 4
    assert parts_of(NO_BOXES, annotated).shape == (0,)


def test_without_a_segmenter_there_is_no_search():
    with pytest.raises(UserError, match=r"segmentation\.segmenter=grabcut"):
        ObjectSearch.from_settings(change(Settings(), train={"objects_at": 0.5}), CPU)
    with pytest.raises(UserError, match=r"train\.mask_steps=9 looks for objects"):
        ObjectSearch.from_settings(
            change(Settings(), train={"mask_steps": 9}), CPU, wanted_by="mask_steps"
        )


def test_a_segmenter_that_needs_regions_cannot_look_by_itself(tmp_path: Path):
    settings = change(
        Settings(),
        train={"objects_at": 0.5, "objects_from": "segmenter"},
        segmentation={"segmenter": "grabcut"},
    )
    with pytest.raises(UserError, match=r"objects_from=segmenter needs one that finds"):
        ObjectSearch.from_settings(settings, CPU)


class _Squares(Proposer):
    """Proposes four triangles: free, in the annotated corner, free, and free but unlikely."""

    def propose(
        self, image: np.ndarray, *, limit: int, taken_xyxy: np.ndarray | None = None
    ) -> Proposed:
        assert taken_xyxy is not None
        height, width = image.shape[:2]
        assert (taken_xyxy[:, 2:] <= np.array([width, height]) + 1e-3).all()
        masks = np.zeros((4, height, width), dtype=bool)
        for i, (x, y) in enumerate([(0.6, 0.1), (0.0, 0.0), (0.6, 0.6), (0.1, 0.6)]):
            top, left, side = round(y * height), round(x * width), height // 4
            masks[i, top : top + side, left : left + side] = np.tri(side, dtype=bool)
        return Proposed(masks[:limit], np.array([0.9, 0.8, 0.7, 0.2])[:limit])


def test_a_segmenter_that_looks_by_itself_needs_no_region(
    detector: Detector, labels: KnownLabels, tmp_path: Path
):
    objects = look_for_objects(
        detector,
        labels,
        replace(SEARCH, proposer=_Squares()),
        ObjectsFolder(tmp_path / "objects"),
        settings=settings_of(detector),
        processes=Processes(rank=0, count=1, device=torch.device("cpu")),
    )
    for index, image in enumerate(labels.annotations.images):
        rows = objects.rows_of_image(index)
        assert objects.scores[rows].tolist() == pytest.approx([0.9, 0.7])
        corners = np.array([[0.6 * image.width, y * image.height] for y in (0.1, 0.6)])
        np.testing.assert_allclose(objects.boxes_xyxy[rows, :2], corners, atol=1.5)


class _Remembering(Ellipses):
    """Remembers the guesses it is to begin from."""

    def __init__(self) -> None:
        self.guesses: list[np.ndarray] = []

    def refine(
        self, image: np.ndarray, boxes_xyxy: np.ndarray, probabilities: np.ndarray
    ) -> np.ndarray:
        self.guesses.append(probabilities)
        return self.segment(image, boxes_xyxy)


@torch.no_grad()
def test_a_finished_detector_cuts_out_what_its_masks_guess_around_the_regions(detector: Detector):
    detector.eval()
    segmenter = _Remembering()
    image = torch.randint(0, 256, (3, 64, 64), dtype=torch.uint8)
    maps = detector.feature_maps(detector.batch_images([image]))
    boxes = torch.tensor([[10.0, 10, 30, 30], [40, 40, 64, 64]])
    masks = cut_out_by_masks(detector, maps, image, boxes, segmenter)
    enlarged = torch.tensor([[8.0, 8, 32, 32], [37.6, 37.6, 64, 64]])
    expected = detector.mask_logits(maps, [enlarged]).sigmoid()
    torch.testing.assert_close(torch.from_numpy(segmenter.guesses[0]), expected)
    assert torch.equal(masks, cut_out(image, boxes, Ellipses()))


@pytest.mark.parametrize(("fit", "kept"), [(0.69, False), (0.71, True)])
@torch.no_grad()
def test_only_regions_that_seem_to_fit_count_where_that_was_learned(
    tiny_settings: DetectorSettings, fit: float, kept: bool
):
    boxes = torch.tensor([[10.0, 10, 30, 30], [40, 40, 64, 64]])
    for learned in (True, False):
        settings = tiny_settings.model_copy(update={"localisation": learned})
        detector = Detector(settings, 1, masks=True).eval()
        if detector.localiser is not None:
            torch.nn.init.zeros_(detector.localiser.weight)
            torch.nn.init.constant_(detector.localiser.bias, float(np.log(fit / (1 - fit))))
        image = torch.zeros(3, 64, 64, dtype=torch.uint8)
        maps = detector.feature_maps(detector.batch_images([image]))
        assert well_fitting(detector, maps, boxes).tolist() == [kept or not learned] * 2
        assert well_fitting(detector, maps, NO_BOXES).shape == (0,)


@pytest.fixture
def labels(tmp_path: Path) -> KnownLabels:
    """Images of several sizes, each with a cat in its upper left corner."""
    sizes = [(48 + 4 * i, 64) for i in range(NUM_IMAGES)]
    for i, (height, width) in enumerate(sizes):
        write_image(tmp_path / f"{i}.png", height=height, width=width)
    path = write_coco(
        tmp_path / "labels.json",
        images=[image_entry(i, height=h, width=w) for i, (h, w) in enumerate(sizes)],
        annotations=[
            annotation_entry(i, image_id=i, bbox=[0, 0, 24, 24]) for i in range(NUM_IMAGES)
        ],
    )
    return ClassSplit(("cat",)).keep_known(load_annotations(path).annotations)


@pytest.fixture
def detector(tiny_settings: DetectorSettings) -> Detector:
    return Detector(tiny_settings, 1, masks=True)


def settings_of(detector: Detector) -> Settings:
    settings = Settings(detector=detector.settings)
    return change(
        settings,
        data={"eval_short_side_px": 64, "long_side_px": 128, "workers": 0},
        predict={"batch_size": 2, "proposals_before_nms": 50},
    )


def look(
    detector: Detector, labels: KnownLabels, folder: ObjectsFolder, *, rank: int = 0, count: int = 1
) -> UnlabelledObjects:
    alone = Processes(rank=0, count=1, device=torch.device("cpu"))
    processes = alone if count == 1 else _PartOfTwo(rank=rank, count=count, device=alone.device)
    return look_for_objects(
        detector,
        labels,
        replace(SEARCH, min_score=0.0),
        folder,
        settings=settings_of(detector),
        processes=processes,
    )


class _PartOfTwo(Processes):
    """One of two processes whose fellow has nothing to say."""

    def from_main(self, make):
        return make()

    def wait_for_all(self):
        pass


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_search, "IMAGES_PER_PART", 4)


def test_objects_lie_beside_the_annotations_in_the_images_own_pixels(
    detector: Detector, labels: KnownLabels, tmp_path: Path
):
    detector.train()
    objects = look(detector, labels, ObjectsFolder(tmp_path / "objects"))
    assert detector.training
    assert len(objects) > 1
    for index, image in enumerate(labels.annotations.images):
        rows = objects.rows_of_image(index)
        assert rows.stop - rows.start <= SEARCH.per_image
        raw = [objects.segmentations[row] for row in range(rows.start, rows.stop)]
        masks = decode_masks([one for one in raw if one is not None], image.height, image.width)
        for box, mask in zip(objects.boxes_xyxy[rows], masks, strict=True):
            y, x = mask.nonzero()
            extent = [x.min(), y.min(), x.max() + 1, y.max() + 1]
            assert box.tolist() == pytest.approx(extent, abs=1.5)  # images are shown larger


def test_an_interrupted_look_goes_on_and_two_processes_find_the_same(
    detector: Detector, labels: KnownLabels, tmp_path: Path
):
    whole, halves = ObjectsFolder(tmp_path / "whole"), ObjectsFolder(tmp_path / "halves")
    look(detector, labels, whole)
    assert whole.missing(2) == []
    for rank in (1, 0):
        look(detector, labels, halves, rank=rank, count=2)
        assert halves.missing(2) == ([0] if rank else [])
    assert halves.fingerprint() == whole.fingerprint()


def test_another_detector_begins_anew(detector: Detector, labels: KnownLabels, tmp_path: Path):
    folder = ObjectsFolder(tmp_path / "objects")
    look(detector, labels, folder)
    before = folder.part_file(0).stat().st_mtime_ns
    look(detector, labels, folder)
    assert folder.part_file(0).stat().st_mtime_ns == before
    with torch.no_grad():
        detector.rpn_head.bbox_pred.bias += 0.1
    look(detector, labels, folder)
    assert folder.part_file(0).stat().st_mtime_ns != before
