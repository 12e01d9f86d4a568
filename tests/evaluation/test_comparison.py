from typing import Any

from rncdl.evaluation.comparison import Comparison, Line, Published
from rncdl.evaluation.outcomes import AP_METRICS, Outcome


def numbers(ap: float) -> dict[str, Any]:
    groups = {group: {"ap": ap} for group in ("all", "known", "novel")}
    return {
        "ap": [{"protocol": "fixed", "cut": "before", "iou_type": "bbox", **groups}],
        "clusters": {"scores": {g: {"accuracy": ap, "nmi": ap} for g in ("all", "novel")}},
    }


def table(lines: list[Line], outcomes: dict[str, list[Outcome]]) -> Comparison:
    return Comparison("t", "A table", lines, outcomes, "a paper")


def diverged(seed: int) -> Outcome:
    return Outcome("a", seed, 1.0, "diverged: step 3", ())


def test_a_table_without_outcomes_has_dashes():
    line = Line("A", "a", published=Published(6.92, 25.0, None))
    assert table([line], {}).cells(line) == ["A", *["-"] * 7, "6.92 / 25.00 / -"]


def test_cells_are_mean_and_spread_over_seeds():
    outcomes = {"a": [Outcome("a", seed, 1.0, None, (numbers(seed / 10),)) for seed in (1, 2, 3)]}
    cells = table([], outcomes).cells(Line("A", "a"))
    assert cells == ["A", *["20.00 ± 10.00"] * 3, *["0.200 ± 0.100"] * 4, "-"]


def test_each_line_shows_its_own_head():
    outcomes = {"a": [Outcome("a", 0, 1.0, None, (numbers(0.1), numbers(0.4)))]}
    shown = table([], outcomes)
    assert shown.cells(Line("first", "a"))[1] == "10.00"
    assert shown.cells(Line("second", "a", head=1))[1] == "40.00"
    assert shown.cells(Line("third", "a", head=2))[1] == "-"


def test_a_line_whose_seeds_all_diverged_says_so():
    line = Line("A", "a", published=Published(None, diverged=True))
    shown = table([line], {"a": [diverged(0), diverged(1)]})
    assert shown.cells(line) == ["A", "diverged", *["-"] * 6, "diverged"]
    assert shown.notes() == ["A: 2 of 2 seeds (0, 1): diverged: step 3"]
    assert shown.to_dict()["lines"][0]["diverged"] is True


def test_seeds_that_diverged_are_left_out_of_the_mean_and_noted():
    line = Line("A", "a")
    shown = table([line], {"a": [Outcome("a", 0, 1.0, None, (numbers(0.3),)), diverged(1)]})
    assert shown.cells(line)[1] == "30.00"
    assert shown.notes() == ["A: 1 of 2 seeds (1): diverged: step 3"]
    assert not shown.has_diverged(line)


def test_what_is_left_out_is_noted_and_not_shown():
    line = Line("A", "a", left_out="it needs a file")
    shown = table([line], {"a": [Outcome("a", 0, 1.0, None, (numbers(0.3),))]})
    assert set(shown.cells(line)[1:]) == {"-"}
    assert "- A: left out; it needs a file\n" in shown.to_markdown()


def test_json_holds_the_seeds_and_their_summary():
    line = Line("A", "a", published=Published(1.0, 2.0, 3.0))
    outcome = Outcome("a", 5, 1.0, None, (numbers(0.3),))
    (found,) = table([line], {"a": [outcome]}).to_dict()["lines"]
    assert found["seeds"][0]["heads"] == (numbers(0.3),)
    assert found["seeds"][0]["seed"] == 5
    assert found["summary"][AP_METRICS[0].title] == {"mean": 30.0, "spread": None}
    assert found["published"] == {"all": 1.0, "known": 2.0, "novel": 3.0, "diverged": False}
