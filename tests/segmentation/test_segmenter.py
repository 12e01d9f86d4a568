import pytest
import torch

from rncdl.config import SegmentationSettings
from rncdl.errors import UserError
from rncdl.segmentation.grabcut import GrabCut
from rncdl.segmentation.segmenter import open_segmenter

CPU = torch.device("cpu")


def test_none_is_the_default():
    assert open_segmenter(SegmentationSettings(), CPU) is None


def test_grabcut_needs_nothing_but_its_name():
    assert isinstance(open_segmenter(SegmentationSettings(segmenter="grabcut"), CPU), GrabCut)


def test_sam_without_weights_says_what_to_give():
    with pytest.raises(UserError, match=r"segmentation\.sam_weights=FILE"):
        open_segmenter(SegmentationSettings(segmenter="sam"), CPU)
