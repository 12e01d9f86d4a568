from pathlib import Path

import pytest

from rncdl.gallery.findings import (
    ClassRow,
    ceiling_row,
    curves,
    decided_rows,
    headline_rows,
    read_assigned,
    read_classes,
    recall_table,
    round_row,
)


def entry(system: str, protocol: str | None, cut: str, kind: str, ap: float) -> dict:
    groups = {"known": {"ap": ap}, "novel": {"ap": ap / 2}, "all": {"ap": ap / 4}}
    return {"system": system, "protocol": protocol, "cut": cut, "iou_type": kind, **groups}


RECALL = {"average": {"50": 0.4, "100": 0.5}, "at_iou_50": {"50": 0.8, "100": 0.9}}
REPORT = {
    "ap": [
        entry("head0", "fixed", "before", "bbox", 0.4),
        entry("head0", "fixed", "before", "segm", 0.2),
        entry("head0", "fixed", "after", "bbox", 0.3),
        entry("head0", "paper", "before", "bbox", 0.1),
        entry("knownonly", None, "before", "bbox", 0.8),
    ],
    "clusters": {"head0": {"num_clusters": 40, "scores": {"novel": {"accuracy": 0.7}}}},
    "proposal_recall": {"known": RECALL, "novel": RECALL, "all": RECALL},
}


def test_each_system_has_one_row_by_the_fixed_protocol():
    ours, known_only = headline_rows(REPORT)
    assert ours.name == "RNCDL"
    assert (ours.known_ap, ours.novel_ap, ours.all_ap) == (0.4, 0.2, 0.1)
    assert (ours.novel_mask_ap, ours.novel_accuracy) == (0.1, 0.7)
    assert known_only.known_ap == 0.8
    found_novel = (known_only.novel_ap, known_only.novel_mask_ap, known_only.novel_accuracy)
    assert (*found_novel, known_only.all_ap) == (None, None, None, None)


def test_what_was_found_before_is_novel_to_systems_that_have_no_clusters_of_their_own():
    found = entry("trained", "fixed", "before", "bbox", 0.4)
    scores = {"trained": {"num_clusters": 3, "scores": {"novel": {"accuracy": 0.6}}}}
    (row,) = headline_rows({**REPORT, "ap": [found], "clusters": scores})
    assert row.name == "detector as trained, with what was found before"
    assert (row.known_ap, row.novel_ap, row.all_ap, row.novel_accuracy) == (0.4, 0.2, 0.1, 0.6)


def test_peoples_names_have_a_row_by_their_protocol_alone():
    assert decided_rows(REPORT) == []
    named = entry("head0", "named", "before", "bbox", 0.2)
    (row,) = decided_rows({**REPORT, "ap": [*REPORT["ap"], named]})
    assert row.name == "RNCDL, clusters as people have named them"
    assert (row.known_ap, row.novel_ap) == (0.2, 0.1)


def test_rounds_are_split_by_the_first_rounds_classes():
    """The owl was promoted: this evaluation takes it for known, the first round did not."""
    classes = [
        ClassRow("cat", True, 9, 0.8, None),
        ClassRow("owl", True, 9, 0.3, None),
        ClassRow("yak", False, 9, 0.1, None),
        ClassRow("gnu", False, 0, None, None),
    ]
    row = round_row("second", classes, ["cat"])
    assert row.known_ap == 0.8
    assert row.novel_ap == pytest.approx(0.2)
    assert row.all_ap == pytest.approx(0.4)
    assert round_row("none", [], ["cat"]).novel_ap is None


def test_the_ceiling_has_a_row_of_its_own():
    entries = [
        entry("trained", None, "before", "bbox", 0.8),
        entry("trained", None, "before", "segm", 0.4),
    ]
    row = ceiling_row({"ap": entries})
    assert (row.known_ap, row.novel_ap, row.all_ap, row.novel_mask_ap) == (0.8, 0.4, 0.2, 0.2)
    entries[0]["novel"]["ap"] = entries[1]["novel"]["ap"] = None
    row = ceiling_row({"ap": entries})
    assert (row.known_ap, row.novel_ap, row.all_ap, row.novel_mask_ap) == (None, None, 0.2, None)


def test_recall_has_a_row_for_each_group():
    table = recall_table(REPORT)
    assert table.header == ["AR@50", "AR@100", "R50@50", "R50@100"]
    assert table.rows[1] == ("novel", [0.4, 0.5, 0.8, 0.9])


def test_files_that_are_not_there_have_no_rows(tmp_path: Path):
    assert read_classes(tmp_path / "classes.csv") == []
    assert read_assigned(tmp_path / "assignment.csv", tmp_path / "confusion.csv") == []


def test_classes_come_from_the_best_to_those_without_a_number(tmp_path: Path):
    path = tmp_path / "classes.csv"
    path.write_text(
        "category_id,class,group,annotations,AP,AP50\n"
        "1,cat,known,3,0.2,0.4\n2,yak,novel,0,,\n3,dog,known,9,0.9,1.0\n4,owl,novel,1,0.0,0.0\n"
    )
    rows = read_classes(path)
    assert [row.name for row in rows] == ["dog", "cat", "owl", "yak"]
    assert rows[3].ap is None
    assert rows[2].ap == 0.0
    assert [row.is_known for row in rows] == [True, True, False, False]


def test_an_output_without_a_class_has_no_name(tmp_path: Path):
    path = tmp_path / "assignment.csv"
    path.write_text(
        "output,kind,category_id,class,count,size,purity\n"
        "0,known,7,cat,3,4,0.75\n1,cluster,,,0,2,0.0\n"
    )
    rows = read_assigned(path, tmp_path / "confusion.csv")
    assert [(row.is_known, row.name, row.size) for row in rows] == [
        (True, "cat", 4),
        (False, None, 2),
    ]
    assert [row.stands_out for row in rows] == [True, False]


def test_an_output_found_before_is_told_by_its_name(tmp_path: Path):
    path = tmp_path / "assignment.csv"
    path.write_text(
        "output,kind,name,category_id,class,count,size,purity\n"
        "0,known,cat,7,cat,3,4,0.75\n1,cluster,found_0012,9,yak,1,2,0.5\n"
        "2,cluster,novel_0000,8,owl,2,2,1.0\n"
    )
    rows = read_assigned(path, tmp_path / "confusion.csv")
    assert [row.found_name for row in rows] == ["", "found_0012", ""]
    assert [row.is_known for row in rows] == [True, False, False]


def test_a_class_stands_out_where_no_other_has_more_boxes(tmp_path: Path):
    path, confusion = tmp_path / "assignment.csv", tmp_path / "confusion.csv"
    path.write_text(
        "output,kind,category_id,class,count,size,purity\n"
        "0,known,7,cat,3,4,0.75\n1,cluster,9,yak,2,7,0.29\n2,cluster,8,owl,2,4,0.5\n"
    )
    confusion.write_text(
        "output,category_id,class,count\n"
        "0,7,cat,3\n0,9,yak,1\n1,9,yak,2\n1,7,cat,5\n2,7,cat,2\n2,8,owl,2\n"
    )
    rows = read_assigned(path, confusion)
    assert [row.stands_out for row in rows] == [True, False, True]
    assert rows[1].taken == [("cat", 5), ("yak", 2)]


def test_only_figures_with_a_course_are_drawn():
    assert curves([]) == []
    records = [
        {"kind": "train", "step": 1, "loss": 3.0, "rate": 0.1, "mask": 1.0},
        {"kind": "train", "step": 2, "loss": 2.0, "rate": 0.1},
    ]
    (chart,) = curves(records)
    assert "Loss: Loss from 3 to 2" in chart
