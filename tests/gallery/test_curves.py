"""The learning curves as one picture."""

from xml.etree import ElementTree

from rncdl.gallery.charts import Line
from rncdl.gallery.curves import draw_curves

SVG = "{http://www.w3.org/2000/svg}"


def test_nothing_to_draw():
    assert draw_curves({}) is None
    assert draw_curves({"Training": []}) is None


def test_every_line_has_its_chart_below_its_phase():
    lines = [Line(f"Loss <{number}>", [1, 2, 3], [3.0, 2.0, 1.5]) for number in range(4)]
    picture = draw_curves({"Training": lines, "Empty": [], "Discovery: main": lines[:1]})
    assert picture is not None
    root = ElementTree.fromstring(picture)
    texts = [text.text for text in root.findall(f"{SVG}text")]
    titles = [f"Loss <{number}>" for number in range(4)]
    assert texts == ["Training", *titles, "Discovery: main", titles[0]]
    charts = root.findall(f"{SVG}svg")
    corners = [(float(chart.get("x", 0)), float(chart.get("y", 0))) for chart in charts]
    assert len(set(corners)) == 5
    assert all(len(chart.findall(f".//{SVG}polyline")) == 1 for chart in charts)
    bottom = max(y for _, y in corners) + float(charts[0].get("height", 0))
    assert bottom < float(root.get("height", 0))
