import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rncdl.data.annotation_rows import clip_boxes
from rncdl.data.problems import ProblemKind

NUMBERS = st.floats(-200, 200) | st.just(np.nan)


def judge(box_xywh, height=48, width=64):
    boxes, problems = clip_boxes(
        np.array([box_xywh], dtype=float), heights=np.array([height]), widths=np.array([width])
    )
    return boxes[0].tolist(), [kind for kind, found in problems.items() if found[0]]


def test_no_boxes():
    boxes, problems = clip_boxes(np.zeros((0, 4)), heights=np.zeros(0), widths=np.zeros(0))
    assert boxes.shape == (0, 4)
    assert not any(found.any() for found in problems.values())


@pytest.mark.parametrize(
    ("box_xywh", "clipped", "problems"),
    [
        ([10, 5, 20, 30], [10, 5, 30, 35], []),
        ([0, 0, 64, 48], [0, 0, 64, 48], []),
        ([0, 0, 64.01, 48], [0, 0, 64, 48], []),
        ([-10, -5, 20, 30], [0, 0, 10, 25], [ProblemKind.CLIPPED_BOX]),
        ([60, 40, 20, 30], [60, 40, 64, 48], [ProblemKind.CLIPPED_BOX]),
        ([70, 10, 20, 30], None, [ProblemKind.BOX_OUTSIDE]),
        ([-20, 10, 20, 30], None, [ProblemKind.BOX_OUTSIDE]),
        ([10, 48, 20, 30], None, [ProblemKind.BOX_OUTSIDE]),
        ([10, 10, 0, 5], None, [ProblemKind.BOX_WITHOUT_AREA]),
        ([10, 10, 5, -5], None, [ProblemKind.BOX_WITHOUT_AREA]),
        ([10, np.nan, 5, 5], None, [ProblemKind.BOX_NOT_FINITE]),
        ([10, 1, np.inf, 5], None, [ProblemKind.BOX_NOT_FINITE]),
    ],
)
def test_each_kind_of_box(box_xywh, clipped, problems):
    box, found = judge(box_xywh)
    assert found == problems
    if clipped is not None:
        assert box == clipped


@given(arrays(float, st.integers(0, 8).map(lambda n: (n, 4)), elements=NUMBERS))
def test_every_box_is_usable_or_dropped_for_one_reason(boxes_xywh):
    count = len(boxes_xywh)
    boxes, problems = clip_boxes(
        boxes_xywh, heights=np.full(count, 48.0), widths=np.full(count, 64.0)
    )
    reasons = np.sum(list(problems.values()), axis=0)
    dropped = (reasons > 0) & ~problems[ProblemKind.CLIPPED_BOX]
    kept = boxes[~dropped]
    assert (reasons <= 1).all()
    assert (kept[:, 2:] > kept[:, :2]).all()
    assert (kept >= 0).all()
    assert (kept <= [64, 48, 64, 48]).all()


def test_many_boxes_are_judged_as_one_by_one():
    """More rows than are handled at once, of whole numbers."""
    kinds = np.array([[10, 5, 20, 30], [60, 40, 20, 30], [70, 10, 20, 30], [10, 10, 0, 5]])
    many = np.tile(kinds, (10_001, 1))
    boxes, problems = clip_boxes(
        many, heights=np.full(len(many), 47.5), widths=np.full(len(many), 64.0)
    )
    assert boxes.shape == many.shape
    assert (boxes[1::4] == [60, 40, 64, 47.5]).all()
    assert (problems[ProblemKind.CLIPPED_BOX] == np.tile([0, 1, 0, 0], 10_001)).all()
    assert (problems[ProblemKind.BOX_OUTSIDE] == np.tile([0, 0, 1, 0], 10_001)).all()
    assert (problems[ProblemKind.BOX_WITHOUT_AREA] == np.tile([0, 0, 0, 1], 10_001)).all()
