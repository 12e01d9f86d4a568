import pickle

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rncdl.data.segmentations import Segmentations

PARTS = st.lists(st.none() | st.binary(min_size=1).map(lambda b: b"[[" + b + b"]]"))


def test_nothing_packs_to_nothing():
    packed = Segmentations.pack([])
    assert len(packed) == 0
    assert None not in packed
    assert list(packed.compact()) == []


@given(PARTS)
def test_parts_come_back(parts):
    packed = Segmentations.pack(parts)
    assert list(packed) == parts
    assert (None in packed) == (None in parts)
    assert list(pickle.loads(pickle.dumps(packed))) == parts


@given(PARTS, st.data())
def test_taken_rows_come_in_order_and_compact_forgets_the_others(parts, data):
    rows = data.draw(st.permutations(range(len(parts))).map(lambda p: p[: len(p) // 2]))
    taken = Segmentations.pack(parts).take(np.array(rows, dtype=np.int64))
    expected = [parts[row] for row in rows]
    assert list(taken) == expected
    assert list(taken.compact()) == expected
    assert len(taken.compact().block) == sum(len(part) for part in expected if part)


def test_null_and_empty_lists_are_no_mask():
    raws = [msgspec.Raw(text) for text in (b"", b"null", b"[]", b"[ ]", b" null ", b"[[]]")]
    assert list(Segmentations.pack(raws)) == [None] * 5 + [b"[[]]"]
