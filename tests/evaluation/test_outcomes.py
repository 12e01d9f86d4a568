from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rncdl.errors import UserError
from rncdl.evaluation.outcomes import METRICS, Metric, Outcome, Summary, summarise


def ap_entry(protocol: str | None, cut: str, iou_type: str, novel: float | None) -> dict[str, Any]:
    groups = {"all": {"ap": 0.5}, "known": {"ap": 0.75}, "novel": {"ap": novel}}
    return {"protocol": protocol, "cut": cut, "iou_type": iou_type, **groups}


def test_nothing_has_no_mean():
    assert summarise([]) is None
    assert summarise([None, float("nan")]) is None


def test_one_seed_has_no_spread():
    assert summarise([3.0]) == Summary(3.0, None)


def test_mean_and_spread_are_those_of_numpy():
    values = [6.92, 7.35, 5.1]
    found = summarise([*values, None])
    assert found is not None
    assert found.mean == pytest.approx(np.mean(values))
    assert found.spread == pytest.approx(np.std(values, ddof=1))


def test_the_headline_is_boxes_by_the_fixed_protocol_before_the_cut():
    numbers = {
        "ap": [
            ap_entry("paper", "before", "bbox", 0.9),
            ap_entry("fixed", "after", "bbox", 0.9),
            ap_entry("fixed", "before", "segm", 0.9),
            ap_entry("fixed", "before", "bbox", 0.25),
        ],
        "clusters": {"scores": {"novel": {"accuracy": 0.5, "nmi": 0.25}, "all": None}},
    }
    found = {metric.title: metric.read(numbers) for metric in METRICS}
    assert found == {
        "all AP": 50.0,
        "known AP": 75.0,
        "novel AP": 25.0,
        "novel acc.": 0.5,
        "all acc.": None,
        "novel NMI": 0.25,
        "all NMI": None,
    }


def test_a_system_without_clusters_has_ap_alone():
    numbers = {"ap": [ap_entry(None, "before", "bbox", None)], "clusters": None}
    assert Metric("", "ap", "known").read(numbers) == 75.0
    assert Metric("", "ap", "novel").read(numbers) is None
    assert Metric("", "nmi", "all").read(numbers) is None


def test_an_outcome_is_read_as_it_was_saved(tmp_path: Path):
    outcome = Outcome("uno", 2, 1.5, None, ({"ap": [], "clusters": None},))
    outcome.save(tmp_path / "row.json")
    assert Outcome.load(tmp_path / "row.json") == outcome


def test_a_damaged_row_says_which_and_what_to_do(tmp_path: Path):
    path = tmp_path / "row.json"
    for content in ("{", "[]", '{"key": "uno"}'):
        path.write_text(content)
        with pytest.raises(UserError, match=r"row\.json.*delete it"):
            Outcome.load(path)
