"""Bar charts as SVG files that stand alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from rncdl.gallery.charts import nice_ticks

_NAME_WIDTH, _PANEL_WIDTH, _GAP, _MARGIN = 250, 270, 34, 14
_BAR_HEIGHT, _ROW_GAP, _TOP, _BOTTOM = 9, 11, 64, 26
_COLOURS = ("#75706a", "#3f7688", "#c7362c")
"""Of the first, second and third bar of a row: the report's colours of all, known and novel."""

_STYLE = Markup(
    "text{font:12px system-ui,sans-serif;fill:#1d2327}"
    ".title{font-size:15px;font-weight:600}.soft{fill:#5b656c}"
    ".grid{stroke:#e2dfd9}.spread{stroke:#1d2327;stroke-width:1.2}"
)


@dataclass(frozen=True)
class Bar:
    """A value and, as a thin line, how far it spreads to both sides."""

    value: float
    spread: float = 0.0


@dataclass(frozen=True)
class Panel:
    """One block of bars: for each row, a bar of each series, or a word instead of them."""

    title: str
    rows: Sequence[Sequence[Bar | None]]
    words: Sequence[str]
    """per row; shown where no bar of it can be"""


def bar_chart(
    title: str, names: Sequence[str], *, series: Sequence[str], panels: Sequence[Panel]
) -> str:
    """An SVG file: a row of bars per name, the panels side by side, each with its own scale.

    At most three series; every panel has a row for each name.
    """
    row_height = len(series) * _BAR_HEIGHT + _ROW_GAP
    bottom = _TOP + len(names) * row_height
    width = _NAME_WIDTH + len(panels) * (_PANEL_WIDTH + _GAP) + _MARGIN
    parts = [_text(title, _MARGIN, 22, kind="title"), _legend(series)]
    for row, name in enumerate(names):
        middle = _TOP + (row + 0.5) * row_height
        parts.append(_text(name, _NAME_WIDTH - 8, middle + 2, anchor="end"))
    for index, panel in enumerate(panels):
        left = _NAME_WIDTH + index * (_PANEL_WIDTH + _GAP)
        parts.append(_draw_panel(panel, left, bottom, row_height=row_height))
    return str(
        Markup(
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" '
            'height="{h}" role="img"><title>{title}</title><style>{style}</style>'
            '<rect width="{w}" height="{h}" fill="#fbfaf8"/>{parts}</svg>\n'
        ).format(
            w=width,
            h=bottom + _BOTTOM,
            title=title,
            style=_STYLE,
            parts=Markup("").join(parts),
        )
    )


def _draw_panel(panel: Panel, left: float, bottom: float, *, row_height: float) -> Markup:
    drawn = [bar for bars in panel.rows for bar in bars if bar is not None]
    top_value = max((bar.value + bar.spread for bar in drawn), default=0.0)
    ticks = nice_ticks(0.0, top_value or 1.0)
    scale = _PANEL_WIDTH / ticks[-1]
    parts = [_text(panel.title, left, _TOP - 8, kind="soft")]
    for tick in ticks:
        x = left + scale * tick
        parts.append(_line("grid", x, _TOP, x, bottom))
        parts.append(_text(f"{tick:g}", x, bottom + 15, anchor="middle", kind="soft"))
    for row, (bars, word) in enumerate(zip(panel.rows, panel.words, strict=True)):
        y = _TOP + row * row_height + _ROW_GAP / 2
        if word and not any(bars):
            middle = y + (row_height - _ROW_GAP) / 2 + 4
            parts.append(_text(word, left + 4, middle, kind="soft"))
        for place, bar in enumerate(bars):
            if bar is not None:
                parts.append(_draw_bar(bar, left, y + place * _BAR_HEIGHT, scale, place))
    return Markup("").join(parts)


def _draw_bar(bar: Bar, left: float, y: float, scale: float, place: int) -> Markup:
    drawn = Markup('<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{}" fill="{}"/>').format(
        left, y, scale * max(bar.value, 0.0), _BAR_HEIGHT - 1, _COLOURS[place]
    )
    if not bar.spread:
        return drawn
    middle = y + (_BAR_HEIGHT - 1) / 2
    low, high = max(bar.value - bar.spread, 0.0), bar.value + bar.spread
    return drawn + _line("spread", left + scale * low, middle, left + scale * high, middle)


def _legend(series: Sequence[str]) -> Markup:
    parts = []
    for place, name in enumerate(series):
        x = _MARGIN + 80 * place
        parts.append(
            Markup('<rect x="{}" y="34" width="10" height="10" fill="{}"/>').format(
                x, _COLOURS[place]
            )
        )
        parts.append(_text(name, x + 15, 43, kind="soft"))
    return Markup("").join(parts)


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    return Markup('<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>').format(
        kind, x1, y1, x2, y2
    )


def _text(text: str, x: float, y: float, *, anchor: str = "start", kind: str = "") -> Markup:
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(
        kind, x, y, anchor, text
    )
