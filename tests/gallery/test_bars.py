import xml.etree.ElementTree as ElementTree

import pytest

from rncdl.gallery.bars import Bar, Panel, bar_chart

SVG = "{http://www.w3.org/2000/svg}"


def parse(panels: list[Panel], names: list[str]) -> ElementTree.Element:
    return ElementTree.fromstring(bar_chart("T & t", names, series=["all", "known"], panels=panels))


def bars(chart: ElementTree.Element) -> list[ElementTree.Element]:
    rects = chart.findall(f"{SVG}rect")
    return [rect for rect in rects if rect.attrib["height"] == "8"]


def texts(chart: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in chart.findall(f"{SVG}text")]


def test_a_chart_of_nothing_is_still_a_chart():
    chart = parse([Panel("here", [], [])], [])
    assert bars(chart) == []
    assert "T & t" in texts(chart)


def test_bars_are_as_long_as_their_values():
    chart = parse([Panel("here", [[Bar(10.0), Bar(5.0)], [Bar(0.0), None]], ["", ""])], ["a", "b"])
    long, short, none = (float(bar.attrib["width"]) for bar in bars(chart))
    assert long == pytest.approx(2 * short, abs=0.2)
    assert none == 0


def test_each_panel_has_its_own_scale():
    panels = [Panel("here", [[Bar(1.0)]], [""]), Panel("there", [[Bar(100.0)]], [""])]
    first, second = bars(parse(panels, ["a"]))
    assert first.attrib["width"] == second.attrib["width"]
    assert float(first.attrib["x"]) < float(second.attrib["x"])


def test_a_spread_is_a_line_around_the_end_of_its_bar():
    chart = parse([Panel("here", [[Bar(10.0, 2.0)]], [""])], ["a"])
    (bar,) = bars(chart)
    (line,) = (e for e in chart.findall(f"{SVG}line") if e.attrib["class"] == "spread")
    end = float(bar.attrib["x"]) + float(bar.attrib["width"])
    low, high = float(line.attrib["x1"]), float(line.attrib["x2"])
    assert low < end < high
    assert end - low == pytest.approx(high - end, abs=0.2)


def test_a_word_stands_where_there_are_no_bars():
    rows: list[list[Bar | None]] = [[None, None], [Bar(1.0), None]]
    said = texts(parse([Panel("here", rows, ["diverged", "unseen"])], ["a <b>", "c"]))
    assert "diverged" in said
    assert "unseen" not in said
    assert "a <b>" in said
