"""Line charts as inline SVG, coloured by the page's style sheet."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

CHART_WIDTH, CHART_HEIGHT = 300, 170
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 8, 24

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A curve; points that are not finite are left out."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    style: str = "first"
    """class in the style sheet: first, second"""

    def points(self, *, log: bool) -> list[Point]:
        """Those that can be drawn."""
        pairs = [(float(x), float(y)) for x, y in zip(self.xs, self.ys, strict=True)]
        return [(x, y) for x, y in pairs if math.isfinite(x + y) and (y > 0 or not log)]


@dataclass(frozen=True)
class _Frame:
    """From values to places in the picture."""

    x_range: tuple[float, float]
    ticks: Sequence[float]
    log: bool

    def place(self, x: float, y: float) -> Point:
        x_low, x_high = self.x_range
        y_low, y_high, value = (self._height(v) for v in (self.ticks[0], self.ticks[-1], y))
        across = (x - x_low) / (x_high - x_low or 1)
        up = (value - y_low) / (y_high - y_low)
        return (
            _LEFT + across * (CHART_WIDTH - _LEFT - _RIGHT),
            CHART_HEIGHT - _BOTTOM - up * (CHART_HEIGHT - _TOP - _BOTTOM),
        )

    def _height(self, y: float) -> float:
        return math.log10(y) if self.log else y


def line_chart(lines: Sequence[Line], *, title: str, x_name: str, log: bool = False) -> Markup:
    """A figure with its title, axes and, for several lines, a legend; empty without points.

    log: y is logarithmic, and points at or below zero are left out.
    """
    drawing = draw_lines(lines, x_name, title=title, log=log)
    if not drawing:
        return drawing
    return Markup('<figure class="chart"><figcaption>{}</figcaption>{}{}</figure>').format(
        title, drawing, _legend(lines)
    )


def draw_lines(lines: Sequence[Line], x_name: str, *, title: str = "", log: bool = False) -> Markup:
    """The chart alone, which fills what it is put into; empty without points."""
    drawn = [line.points(log=log) for line in lines]
    xs = [x for points in drawn for x, _ in points]
    ys = [y for points in drawn for _, y in points]
    if not xs:
        return Markup("")
    ticks = _decades(min(ys), max(ys)) if log else nice_ticks(min(ys), max(ys))
    frame = _Frame((min(xs), max(xs)), ticks, log)
    curves = [
        Markup('<polyline class="{}" points="{}"/>').format(
            line.style, " ".join("{:.1f},{:.1f}".format(*frame.place(x, y)) for x, y in points)
        )
        for line, points in zip(lines, drawn, strict=True)
    ]
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}{}</svg>').format(
        CHART_WIDTH,
        CHART_HEIGHT,
        _describe(title, lines, drawn),
        _axes(frame, x_name),
        Markup("").join(curves),
    )


def nice_ticks(low: float, high: float) -> list[float]:
    """Three to seven round numbers, at equal distances, that enclose low and high."""
    if high - low <= max(1e-12, 1e-9 * abs(high)):
        low, high = min(0.0, low), max(0.0, high)
    # Subnormal distances have no logarithm once they are divided.
    if high - low < 1e-300:
        high = low + 1.0
    if 0 < low < 0.6 * high:
        low = 0.0
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= 0.999 * rough)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def _decades(low: float, high: float) -> list[float]:
    first = math.floor(math.log10(low))
    last = max(math.ceil(math.log10(high)), first + 1)
    return [10.0**power for power in range(first, last + 1)]


def _axes(frame: _Frame, x_name: str) -> Markup:
    parts = []
    for tick in frame.ticks:
        _, y = frame.place(frame.x_range[0], tick)
        parts.append(
            Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
                _LEFT, CHART_WIDTH - _RIGHT, y, y
            )
        )
        parts.append(_text(_short(tick), _LEFT - 6, y + 3.5, anchor="end"))
    bottom = CHART_HEIGHT - 7
    first, last = frame.x_range
    parts.append(_text(_short(first), _LEFT, bottom, anchor="start"))
    parts.append(_text(x_name, (_LEFT + CHART_WIDTH - _RIGHT) / 2, bottom, anchor="middle"))
    parts.append(_text(_short(last), CHART_WIDTH - _RIGHT, bottom, anchor="end"))
    return Markup("").join(parts)


def _text(text: str, x: float, y: float, *, anchor: str) -> Markup:
    return Markup('<text class="tick" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(
        x, y, anchor, text
    )


def _legend(lines: Sequence[Line]) -> Markup:
    if len(lines) < 2:
        return Markup("")
    keys = [
        Markup('<span class="key {}">{}</span>').format(line.style, line.name) for line in lines
    ]
    return Markup('<div class="legend">{}</div>').format(Markup(" ").join(keys))


def _describe(title: str, lines: Sequence[Line], drawn: Sequence[Sequence[Point]]) -> str:
    """The chart in words, for those who do not see it."""
    ends = [
        f"{line.name} from {_short(points[0][1])} to {_short(points[-1][1])}"
        for line, points in zip(lines, drawn, strict=True)
        if points
    ]
    return f"{title}: {'; '.join(ends)}"


def _short(value: float) -> str:
    """At most six characters, or seven with a sign, which is what fits beside an axis."""
    plain = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    if len(plain.lstrip("-")) <= 6:
        return plain
    return f"{value:.1e}".replace("e-0", "e-").replace("e+", "e").replace("e0", "e")
