from pathlib import Path

import numpy as np
import torch

from rncdl.data.masks import encode_rle
from rncdl.data.records import AnnotationSet, Category, ImageRecord
from rncdl.gallery.drawings import class_colour
from rncdl.gallery.examples import annotation_marks, region_marks
from rncdl.regions import Regions


def truth(*, with_masks: bool) -> AnnotationSet:
    polygon = b"[[1,1,5,1,5,5,1,5]]"
    return AnnotationSet(
        images=(ImageRecord(10, Path("a"), 8, 9), ImageRecord(11, Path("b"), 8, 9)),
        categories=(Category(1, "cat"), Category(2, "yak")),
        annotation_ids=np.arange(3),
        image_index=np.array([0, 0, 1]),
        category_ids=np.array([2, 1, 2]),
        boxes_xyxy=np.array([[1.0, 1, 5, 5]] * 3),
        areas=np.full(3, 16.0),
        is_crowd=np.zeros(3, dtype=bool),
        segmentations=[polygon if with_masks else None] * 3,
    )


def test_annotations_are_drawn_in_the_colours_of_their_kind():
    marks = annotation_marks(truth(with_masks=True), 0, ["cat"])
    assert marks.names == ["yak", "cat"]
    assert marks.colours == [class_colour("yak", novel=True), class_colour("cat", novel=False)]
    assert marks.masks is not None
    assert marks.masks.shape == (2, 8, 9)
    assert marks.masks[0, 3, 3]
    assert not marks.masks[0, 7, 7]


def test_annotations_without_masks_are_boxes():
    assert annotation_marks(truth(with_masks=False), 1, ["cat"]).masks is None


def test_no_detections_make_no_marks():
    nothing = Regions(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.int64), rles=[])
    assert len(region_marks(nothing, ["cat"], ["cat"], min_score=0.1)) == 0


def test_detections_are_named_by_their_output_the_best_first():
    mask = np.zeros((8, 9), dtype=bool)
    mask[2:4, 2:4] = True
    found = Regions(
        boxes_xyxy=torch.tensor([[5.0, 5, 8, 8], [0, 0, 3, 3], [0, 5, 3, 8]]),
        scores=torch.tensor([0.875, 0.25, 0.0625]),
        labels=torch.tensor([0, 1, 1]),
        rles=[encode_rle(mask)] * 3,
    )
    marks = region_marks(found, ["cat", "novel_0000"], ["cat"], min_score=0.1)
    assert marks.names == ["cat", "novel_0000"]
    assert marks.colours[1] == class_colour("novel_0000", novel=True)
    assert marks.scores is not None
    assert marks.scores.tolist() == [0.875, 0.25]
    assert marks.masks is not None
    assert np.array_equal(marks.masks, [mask, mask])
