"""The learning curves of a run as one picture."""

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from rncdl.gallery.charts import CHART_HEIGHT, CHART_WIDTH, Line, draw_lines

_COLUMNS = 3
_GAP, _TITLE = 20, 22
_STYLE = """
text { font-family: system-ui, sans-serif; } .tick { fill: #5b656c; font-size: 10px; }
.phase { font-size: 16px; font-weight: 600; } .title { font-size: 12px; font-weight: 600; }
.grid { stroke: #e2dfd9; } polyline { fill: none; stroke: #c7362c; stroke-width: 1.75; }
"""


def draw_curves(phases: Mapping[str, Sequence[Line]]) -> str | None:
    """An SVG file with a chart for each line, phase by phase; None where there is none."""
    parts, top = [], _GAP
    for phase, lines in phases.items():
        if not lines:
            continue
        parts.append(_text("phase", phase, _GAP, top + 14))
        top += _TITLE + 6
        for index, line in enumerate(lines):
            left = _GAP + (index % _COLUMNS) * (CHART_WIDTH + _GAP)
            down = top + (index // _COLUMNS) * (CHART_HEIGHT + _TITLE + _GAP)
            parts.append(_text("title", line.name, left, down + 12))
            parts.append(
                Markup('<svg x="{}" y="{}" width="{}" height="{}">{}</svg>').format(
                    left, down + _TITLE, CHART_WIDTH, CHART_HEIGHT, draw_lines([line], "steps")
                )
            )
        top += -(-len(lines) // _COLUMNS) * (CHART_HEIGHT + _TITLE + _GAP)
    if not parts:
        return None
    width = _GAP + _COLUMNS * (CHART_WIDTH + _GAP)
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}">'
        '<style>{2}</style><rect width="100%" height="100%" fill="#fff"/>{3}</svg>\n'
    ).format(width, top, Markup(_STYLE), Markup("").join(parts))


def _text(style: str, text: str, x: float, y: float) -> Markup:
    return Markup('<text class="{}" x="{}" y="{}">{}</text>').format(style, x, y, text)
