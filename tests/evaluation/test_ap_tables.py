import csv
import dataclasses
import io
from pathlib import Path

import pytest
from rich.console import Console

from rncdl.evaluation.ap_tables import (
    AP_COLUMNS,
    ap_markdown,
    ap_rows,
    ap_table,
    markdown_table,
    write_class_csv,
)
from rncdl.evaluation.average_precision import APResult, evaluate_detections
from rncdl.prediction.detections import Detections

from .made_up import make_truth, random_case

TRUTH, DETECTIONS = random_case(0)


@pytest.fixture(scope="module")
def result() -> APResult:
    return evaluate_detections(TRUTH, DETECTIONS, iou_type="bbox", known_category_ids=[2, 5])


def test_nothing_is_dashes():
    truth = make_truth([], num_images=1, num_classes=1)
    nothing = evaluate_detections(truth, Detections.empty(), iou_type="bbox", known_category_ids=[])
    assert ap_rows(nothing) == [[name, *"-" * 9] for name in ("known", "novel", "all")]


def test_rows_stand_as_in_the_paper(result):
    numbered = dataclasses.replace(
        result,
        novel=dataclasses.replace(
            result.novel,
            **{
                field.name: (place + 1) / 10
                for place, field in enumerate(dataclasses.fields(result.novel)[:9])
            },
        ),
    )
    assert ap_rows(numbered)[1] == ["novel", *(f"{ten}.00" for ten in range(10, 100, 10))]
    assert [field.name for field in dataclasses.fields(result.novel)[:9]] == [
        *("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large"),
        *("ap_rare", "ap_common", "ap_frequent"),
    ]


def test_markdown_and_screen_show_every_cell(result):
    text = ap_markdown(result)
    lines = text.splitlines()
    assert lines[0] == "| Classes | " + " | ".join(AP_COLUMNS) + " |"
    assert all(line.count("|") == 11 for line in lines)
    screen = io.StringIO()
    Console(file=screen, width=120).print(ap_table(result, title="box AP"))
    for row, line in zip(ap_rows(result), lines[2:], strict=True):
        assert line == "| " + " | ".join(row) + " |"
        assert all(cell in screen.getvalue() for cell in row)


def test_markdown_without_rows():
    assert markdown_table(("a", "b"), []) == "| a | b |\n| --- | ---: |\n"


def test_class_csv(result, tmp_path: Path):
    truth = make_truth([], num_images=0, num_classes=8)
    path = tmp_path / "classes.csv"
    write_class_csv(path, result, truth.categories)
    lines = list(csv.DictReader(path.open()))
    assert [line["group"] == "known" for line in lines] == result.is_known.tolist()
    assert [line["class"] for line in lines] == [f"class {c}" for c in range(1, 9)]
    assert [float(line["AP"]) for line in lines] == pytest.approx(result.per_class.ap, abs=1e-6)
    assert sum(int(line["annotations"]) for line in lines) == len(TRUTH.annotation_ids)
    assert "AR@300" in lines[0]


def test_undefined_class_values_are_empty_in_the_csv(tmp_path: Path):
    truth = make_truth([], num_images=1, num_classes=1)
    nothing = evaluate_detections(truth, Detections.empty(), iou_type="bbox", known_category_ids=[])
    write_class_csv(tmp_path / "classes.csv", nothing, truth.categories)
    assert (tmp_path / "classes.csv").read_text().splitlines()[1] == "1,class 1,novel,0,,,,,,,"
