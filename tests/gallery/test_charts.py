import math
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rncdl.gallery.charts import Line, line_chart, nice_ticks


def places(chart: str) -> list[tuple[float, float]]:
    line = ElementTree.fromstring(chart).find(".//polyline")
    assert line is not None
    pairs = [point.split(",") for point in line.attrib["points"].split()]
    return [(float(x), float(y)) for x, y in pairs]


def test_a_chart_without_points_is_empty():
    assert line_chart([], title="t", x_name="x") == ""
    assert line_chart([Line("a", [1, 2], [math.nan, math.inf])], title="t", x_name="x") == ""
    assert line_chart([Line("a", [1], [0.0])], title="t", x_name="x", log=True) == ""


def test_larger_values_are_drawn_higher_and_later_ones_farther_right():
    (x0, y0), (x1, y1), (x2, y2) = places(
        line_chart([Line("a", [0, 10, 20], [1, 3, 2])], title="t", x_name="x")
    )
    assert x1 - x0 == pytest.approx(x2 - x1)
    assert y0 > y2 > y1


def test_decades_are_equally_far_apart_on_a_logarithmic_axis():
    chart = line_chart([Line("a", [1, 2, 3], [1, 0.1, 0.01])], title="t", x_name="x", log=True)
    (_, y0), (_, y1), (_, y2) = places(chart)
    assert y1 - y0 == pytest.approx(y2 - y1, abs=0.2)


def test_names_are_escaped_and_said_in_words():
    chart = line_chart([Line("<b>", [0, 1], [5, 1])], title="a & b", x_name="steps")
    svg = ElementTree.fromstring(chart).find("svg")
    assert svg is not None
    assert svg.attrib["aria-label"] == "a & b: <b> from 5 to 1"


def test_a_value_that_never_changes_is_drawn_over_zero():
    assert nice_ticks(40, 40) == [0, 10, 20, 30, 40]
    assert nice_ticks(0, 0)[0] == 0


@pytest.mark.parametrize("value", [0.00085, 0.000072, 0.0125, 12345.6, 2.5e7, -0.25])
def test_numbers_fit_beside_the_axis(value: float):
    chart = line_chart([Line("a", [0, 1], [value, 1.5 * value])], title="t", x_name="x")
    ticks = [text.text or "" for text in ElementTree.fromstring(chart).iter("text")]
    assert max(len(text.lstrip("-")) for text in ticks) <= 6
    assert len(set(ticks)) == len(ticks)


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6))
@example(0.0, 5e-324)
def test_ticks_enclose_the_values_and_are_few(low: float, extent: float):
    ticks = nice_ticks(low, low + extent)
    step = ticks[1] - ticks[0]
    assert 2 <= len(ticks) <= 8
    assert ticks[0] <= low + 1e-6 * step
    assert ticks[-1] >= low + extent - 1e-6 * step
