"""Curves over the steps of a run, as SVG, and tables of shares."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.etree.ElementTree import Element

from toolkit.pages.markup import element

WIDTH, HEIGHT = 620, 270
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 56, 12, 26, 44
#: Maximum number of points of a curve. A longer curve is averaged over intervals of equal size.
MAX_POINTS = 400
#: Maximum number of hover areas of a figure.
MAX_HOVER_AREAS = 120
#: Number of line styles, the classes ``.s0``, ``.s1``, ... of :data:`STYLE`, which the series use in order.
STYLES = 6

STYLE = """
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1rem 2rem; }
.charts svg.chart { min-width: 30rem; }
.charts figure { min-width: 0; }
figcaption { font-weight: 600; font-size: .95rem; }
.s0 { stroke: var(--blue); } .s1 { stroke: var(--orange); } .s2 { stroke: var(--good); }
.s3 { stroke: var(--bad); } .s4 { stroke: var(--grey); } .s5 { stroke: var(--ink); }
.s1, .s3 { stroke-dasharray: 7 3; } .s2, .s4 { stroke-dasharray: 2 4; }
circle.mark { fill: var(--paper); stroke-width: 1.4; stroke-dasharray: none; }
.best { stroke: var(--ink); stroke-width: 1; stroke-dasharray: 3 3; }
svg text.best-text { fill: var(--ink); stroke: none; font-weight: 600; }
.bar { display: inline-block; height: .72em; background: var(--blue); vertical-align: baseline; }
.share { white-space: nowrap; }
.track { display: inline-block; width: 9rem; max-width: 30vw; margin-right: .5rem;
  background: var(--band); line-height: 1; }
/* A narrow screen shows a whole picture, smaller: its letters are larger in it. */
@media screen and (max-width: 40rem) { .charts svg.chart { min-width: 0; font-size: 14px; } }
@media print { .charts { display: block; } .charts svg.chart { min-width: 0; } }
"""


@dataclass(frozen=True)
class Series:
    """A curve of a figure.

    Attributes:
        name: name in the legend.
        points: x and y of each point, by ascending x; points with an infinite y or NaN are left out.
    """

    name: str
    points: Sequence[tuple[float, float]]

    @property
    def points_to_draw(self) -> list[tuple[float, float]]:
        """Points to draw: finite points, averaged to at most :data:`MAX_POINTS`."""
        points = [(x, y) for x, y in self.points if math.isfinite(y)]
        size = math.ceil(len(points) / MAX_POINTS)
        if size <= 1:
            return points
        stretches = [points[start : start + size] for start in range(0, len(points), size)]
        return [(stretch[-1][0], sum(y for _, y in stretch) / len(stretch)) for stretch in stretches]


@dataclass(frozen=True)
class Scale:
    """A linear map from the range of values to coordinates of the figure.

    Attributes:
        lowest: smallest value.
        highest: largest value.
        start: coordinate of the smallest value.
        end: coordinate of the largest value.
    """

    lowest: float
    highest: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (self.end - self.start) * (value - self.lowest) / (self.highest - self.lowest)


def lines(title: str, series: Sequence[Series], x_name: str, best: float | None = None) -> Element | None:
    """Return a figure with curves over a common axis and a legend; None without finite points.

    Args:
        title: caption of the figure.
        series: curves.
        x_name: name of the x axis.
        best: x of a vertical line that marks the best value; None for no line.
    """
    curves = [(curve.name, curve.points_to_draw) for curve in series]
    curves = [(name, points) for name, points in curves if points]
    if not curves:
        return None
    heights = [y for _, points in curves for _, y in points]
    ticks = round_ticks(min(heights), max(heights))
    farthest = max(*(x for _, points in curves for x, _ in points), best or 0, 1)
    x_ticks = [tick for tick in round_ticks(0, farthest, 8) if tick == int(tick) and tick <= farthest]
    x, y = (
        Scale(0, farthest, MARGIN_LEFT, WIDTH - MARGIN_RIGHT),
        Scale(ticks[0], ticks[-1], HEIGHT - MARGIN_BOTTOM, MARGIN_TOP),
    )
    picture = element(
        "svg",
        element("title", title),
        element("desc", _describe_curves(curves, x_name)),
        *_grid(ticks, x_ticks, x, y, x_name),
        *_best_mark(best, x, x_name),
        *(part for index, (_, points) in enumerate(curves) for part in _curve(points, index, x, y)),
        *_hover_areas(curves, x, x_name),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        class_="chart",
    )
    legend = element("ul", *(_legend(name, index) for index, (name, _) in enumerate(curves)), class_="legend")
    return element("figure", element("figcaption", title), legend, element("div", picture, class_="wide"))


def round_ticks(lowest: float, highest: float, max_ticks: int = 6) -> list[float]:
    """Return at least two round, equidistant numbers that cover the range from ``lowest`` to ``highest``."""
    if highest <= lowest:
        margin = abs(lowest) * 0.1 or 1.0
        lowest, highest = lowest - margin, highest + margin
    rough = (highest - lowest) / (max_ticks - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.floor(lowest / step + 1e-9), math.ceil(highest / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def _describe_curves(curves: Sequence[tuple[str, Sequence[tuple[float, float]]]], x_name: str) -> str:
    """Return a description of the curves for readers who cannot see the figure."""
    return "; ".join(
        f"{name}: {points[0][1]:.4g} at {x_name} {points[0][0]:g}, {points[-1][1]:.4g} at {x_name} {points[-1][0]:g}, "
        f"between {min(y for _, y in points):.4g} and {max(y for _, y in points):.4g}"
        for name, points in curves
    )


def _grid(ticks: Sequence[float], x_ticks: Sequence[float], x: Scale, y: Scale, x_name: str) -> Iterator[Element]:
    for tick in ticks:
        yield element("path", d=f"M{MARGIN_LEFT} {y(tick):.1f}H{WIDTH - MARGIN_RIGHT}", class_="grid")
        yield element("text", f"{tick:.6g}", x=MARGIN_LEFT - 6, y=f"{y(tick) + 4:.1f}", text_anchor="end")
    bottom = HEIGHT - MARGIN_BOTTOM
    for tick in x_ticks:
        yield element("path", d=f"M{x(tick):.1f} {bottom}v4", class_="grid")
        yield element("text", f"{tick:,.0f}", x=f"{x(tick):.1f}", y=bottom + 17, text_anchor="middle")
    yield element("text", x_name, x=(MARGIN_LEFT + WIDTH - MARGIN_RIGHT) / 2, y=HEIGHT - 6, text_anchor="middle")


def _best_mark(best: float | None, x: Scale, x_name: str) -> Iterator[Element]:
    if best is None:
        return
    place = x(best)
    anchor = "end" if place > WIDTH / 2 else "start"
    yield element("path", d=f"M{place:.1f} {MARGIN_TOP - 6}V{HEIGHT - MARGIN_BOTTOM}", class_="best")
    text_x = place - 4 if anchor == "end" else place + 4
    words = f"best: {x_name} {best:,.0f}"
    yield element("text", words, x=f"{text_x:.1f}", y=MARGIN_TOP - 10, text_anchor=anchor, class_="best-text")


def _curve(points: Sequence[tuple[float, float]], index: int, x: Scale, y: Scale) -> Iterator[Element]:
    path = "L".join(f"{x(x_value):.1f} {y(y_value):.1f}" for x_value, y_value in points)
    yield element("path", d=f"M{path}" + ("h0" if len(points) == 1 else ""), class_=f"curve s{index % STYLES}")
    if len(points) <= 40:
        for x_value, y_value in points:
            place = {"cx": f"{x(x_value):.1f}", "cy": f"{y(y_value):.1f}", "r": 2.4}
            yield element("circle", class_=f"mark s{index % STYLES}", **place)


def _hover_areas(
    curves: Sequence[tuple[str, Sequence[tuple[float, float]]]], x: Scale, x_name: str
) -> Iterator[Element]:
    """Yield an invisible area over each x of a point, which shows the values at this x on hover."""
    x_values = sorted({start for _, points in curves for start, _ in points})
    x_values = x_values[:: math.ceil(len(x_values) / MAX_HOVER_AREAS)]
    edges = [(previous + following) / 2 for previous, following in pairwise(x_values)]
    for x_value, start, end in zip(x_values, [0.0, *edges], [*edges, x.highest], strict=True):
        values = [
            f"{name} {near[1]:.4g}" for name, points in curves if (near := _nearest_point(points, start, end, x_value))
        ]
        title = element("title", "\n".join([f"{x_name} {x_value:,.0f}", *values]))
        width = max(x(end) - x(start), 1.0)
        box = {
            "x": f"{x(start):.1f}",
            "y": MARGIN_TOP,
            "width": f"{width:.1f}",
            "height": HEIGHT - MARGIN_BOTTOM - MARGIN_TOP,
        }
        yield element("rect", title, class_="hover", **box)


def _nearest_point(
    points: Sequence[tuple[float, float]], start: float, end: float, x_value: float
) -> tuple[float, float] | None:
    inside = [point for point in points if start <= point[0] <= end]
    return min(inside, key=lambda point: abs(point[0] - x_value), default=None)


def _legend(name: str, index: int) -> Element:
    line = element("path", d="M1 5H35", class_=f"curve s{index % STYLES}")
    return element("li", element("svg", line, viewBox="0 0 36 10", aria_hidden="true"), name)


def share(value: float, text: str, highest: float = 1.0) -> Element:
    """Return a number with a bar for the cell of a table; screen readers skip the bar."""
    width = 100 * min(max(value / highest, 0.0), 1.0) if highest > 0 and math.isfinite(value) else 0.0
    bar = element("span", class_="bar", style=f"width:{width:.1f}%")
    return element("span", element("span", bar, class_="track", aria_hidden="true"), text, class_="share")


def equal_bins(values: Iterable[float], max_bins: int = 8) -> list[tuple[int, int]]:
    """Return ranges (first, last), both inclusive, that each contain about the same number of the integers."""
    sorted_values = sorted(int(value) for value in values)
    if not sorted_values:
        return []
    count = min(max_bins, max(1, len(sorted_values) // 5))
    lasts = sorted({sorted_values[-(-len(sorted_values) * (index + 1) // count) - 1] for index in range(count)})
    firsts = [sorted_values[0], *(last + 1 for last in lasts[:-1])]
    return list(zip(firsts, lasts, strict=True))


def named_bins(values: Sequence[int], max_bins: int = 8) -> dict[str, list[int]]:
    """Return range of integers as text -> indices of the values in this range."""
    bins: dict[str, list[int]] = {}
    for first, last in equal_bins(values, max_bins):
        name = str(first) if first == last else f"{first:,} to {last:,}"
        bins[name] = [index for index, value in enumerate(values) if first <= value <= last]
    return bins
