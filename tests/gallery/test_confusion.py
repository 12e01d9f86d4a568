import xml.etree.ElementTree as ElementTree

from rncdl.gallery.confusion import (
    MAX_CLASSES,
    MAX_OUTPUTS,
    Confusion,
    draw_confusion,
    order_confusion,
)
from rncdl.gallery.findings import AssignedRow, ClassRow

CLASSES = [
    ClassRow("owl", False, 4, 0.1, 0.1),
    ClassRow("cat", True, 5, 0.1, 0.1),
    ClassRow("yak", False, 9, 0.1, 0.1),
]
ASSIGNED = [
    AssignedRow(0, True, "cat", 4, 6, 0.7, [("cat", 4), ("owl", 2)]),
    AssignedRow(1, False, "owl", 2, 2, 1.0, [("owl", 2)]),
    AssignedRow(2, False, None, 0, 0, 0.0, []),
    AssignedRow(3, False, "yak", 8, 9, 0.9, [("yak", 8), ("cat", 1)]),
]
NAMES = ["cat", "novel_0000", "novel_0001", "novel_0002"]


def ordered() -> Confusion:
    confusion = order_confusion(ASSIGNED, CLASSES, NAMES)
    assert confusion is not None
    return confusion


def test_where_nothing_was_written_down_there_is_nothing_to_show():
    assert order_confusion([], CLASSES, NAMES) is None
    assert order_confusion(ASSIGNED, [], NAMES) is None
    assert order_confusion([AssignedRow(0, True, "cat", 4, 6, 0.7)], CLASSES, NAMES) is None


def test_known_come_first_then_the_frequent_and_outputs_follow_their_classes():
    confusion = ordered()
    assert [row.name for row in confusion.classes] == ["cat", "yak", "owl"]
    assert list(confusion.output_names) == ["cat", "novel_0002", "novel_0000"]
    assert confusion.counts.tolist() == [[4, 1, 0], [0, 8, 0], [2, 0, 2]]


def test_the_picture_says_every_count_and_frames_the_assigned_ones():
    svg = ElementTree.fromstring(draw_confusion(ordered()))
    cells = {cell.findtext("title"): cell for cell in svg.iter("rect")}
    assert set(cells) == {
        "cat: 4 of 5 boxes in cat",
        "cat: 1 of 5 boxes in novel_0002",
        "yak: 8 of 9 boxes in novel_0002",
        "owl: 2 of 4 boxes in cat",
        "owl: 2 of 4 boxes in novel_0000",
    }
    framed = {title for title, cell in cells.items() if "own" in cell.attrib["class"].split()}
    assert framed == {
        "cat: 4 of 5 boxes in cat",
        "yak: 8 of 9 boxes in novel_0002",
        "owl: 2 of 4 boxes in novel_0000",
    }
    large, small = cells["cat: 4 of 5 boxes in cat"], cells["cat: 1 of 5 boxes in novel_0002"]
    assert float(large.attrib["fill-opacity"]) > float(small.attrib["fill-opacity"])
    assert "yak: 8 of 9 in novel_0002" in svg.attrib["aria-label"]


def test_of_too_many_the_largest_are_shown():
    classes = [ClassRow(f"yak {i}", False, 1000 - i, 0.1, 0.1) for i in range(200)]
    assigned = [
        AssignedRow(i, False, None, 0, 1 + i, 0.0, [(f"yak {i % 200}", 1)]) for i in range(400)
    ]
    confusion = order_confusion(assigned, classes, [f"novel_{i:04d}" for i in range(400)])
    assert confusion is not None
    assert confusion.counts.shape == (MAX_CLASSES, MAX_OUTPUTS)
    assert {row.name for row in confusion.classes} == {f"yak {i}" for i in range(MAX_CLASSES)}
    assert {row.output for row in confusion.outputs} == {*range(40, 60), *range(200, 260)}
