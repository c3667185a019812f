"""Curves over the steps of a run, as SVG, and tables of shares."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.etree.ElementTree import Element

from toolkit.pages.markup import element

WIDTH, HEIGHT = 620, 270
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 26, 44
#: Most points of a curve; a longer one is averaged over equal stretches.
MOST_POINTS = 400
#: Most hover strips of a figure.
MOST_HOVERS = 120
#: Styles of lines, in the order in which series take them: ``.s0`` ... of :data:`STYLE`.
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
    """A curve.

    Attributes:
        name: in the legend.
        points: x and y, x rising; what is not finite is left out.
    """

    name: str
    points: Sequence[tuple[float, float]]

    @property
    def drawn(self) -> list[tuple[float, float]]:
        """At most :data:`MOST_POINTS` of finite height."""
        points = [(x, y) for x, y in self.points if math.isfinite(y)]
        size = math.ceil(len(points) / MOST_POINTS)
        if size <= 1:
            return points
        stretches = [points[start : start + size] for start in range(0, len(points), size)]
        return [(stretch[-1][0], sum(y for _, y in stretch) / len(stretch)) for stretch in stretches]


@dataclass(frozen=True)
class Scale:
    """Linear map from numbers to picture coordinates."""

    lowest: float
    highest: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (self.end - self.start) * (value - self.lowest) / (self.highest - self.lowest)


def lines(title: str, series: Sequence[Series], x_name: str, best: float | None = None) -> Element | None:
    """A figure of curves over one axis, with a legend; None where no point is finite.

    Args:
        x_name: what is counted from left to right.
        best: an x to be marked.
    """
    drawn = [(one.name, one.drawn) for one in series]
    drawn = [(name, points) for name, points in drawn if points]
    if not drawn:
        return None
    heights = [y for _, points in drawn for _, y in points]
    ticks = round_ticks(min(heights), max(heights))
    farthest = max(*(x for _, points in drawn for x, _ in points), best or 0, 1)
    x_ticks = [tick for tick in round_ticks(0, farthest, 8) if tick == int(tick) and tick <= farthest]
    x, y = Scale(0, farthest, LEFT, WIDTH - RIGHT), Scale(ticks[0], ticks[-1], HEIGHT - BOTTOM, TOP)
    picture = element(
        "svg",
        element("title", title),
        element("desc", _describe(drawn, x_name)),
        *_grid(ticks, x_ticks, x, y, x_name),
        *_best_mark(best, x, x_name),
        *(part for index, (_, points) in enumerate(drawn) for part in _curve(points, index, x, y)),
        *_hovers(drawn, x, x_name),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        class_="chart",
    )
    legend = element("ul", *(_legend(name, index) for index, (name, _) in enumerate(drawn)), class_="legend")
    return element("figure", element("figcaption", title), legend, element("div", picture, class_="wide"))


def round_ticks(lowest: float, highest: float, most: int = 6) -> list[float]:
    """Round numbers, equally far apart, from at or below ``lowest`` to at or above ``highest``; two or more."""
    if highest <= lowest:
        margin = abs(lowest) * 0.1 or 1.0
        lowest, highest = lowest - margin, highest + margin
    rough = (highest - lowest) / (most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.floor(lowest / step + 1e-9), math.ceil(highest / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def _describe(drawn: Sequence[tuple[str, Sequence[tuple[float, float]]]], x_name: str) -> str:
    """Describe the curves in words."""
    return "; ".join(
        f"{name}: {points[0][1]:.4g} at {x_name} {points[0][0]:g}, {points[-1][1]:.4g} at {x_name} {points[-1][0]:g}, "
        f"between {min(y for _, y in points):.4g} and {max(y for _, y in points):.4g}"
        for name, points in drawn
    )


def _grid(ticks: Sequence[float], x_ticks: Sequence[float], x: Scale, y: Scale, x_name: str) -> Iterator[Element]:
    for tick in ticks:
        yield element("path", d=f"M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}", class_="grid")
        yield element("text", f"{tick:.6g}", x=LEFT - 6, y=f"{y(tick) + 4:.1f}", text_anchor="end")
    bottom = HEIGHT - BOTTOM
    for tick in x_ticks:
        yield element("path", d=f"M{x(tick):.1f} {bottom}v4", class_="grid")
        yield element("text", f"{tick:,.0f}", x=f"{x(tick):.1f}", y=bottom + 17, text_anchor="middle")
    yield element("text", x_name, x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 6, text_anchor="middle")


def _best_mark(best: float | None, x: Scale, x_name: str) -> Iterator[Element]:
    if best is None:
        return
    place = x(best)
    anchor = "end" if place > WIDTH / 2 else "start"
    yield element("path", d=f"M{place:.1f} {TOP - 6}V{HEIGHT - BOTTOM}", class_="best")
    text_x = place - 4 if anchor == "end" else place + 4
    words = f"best: {x_name} {best:,.0f}"
    yield element("text", words, x=f"{text_x:.1f}", y=TOP - 10, text_anchor=anchor, class_="best-text")


def _curve(points: Sequence[tuple[float, float]], index: int, x: Scale, y: Scale) -> Iterator[Element]:
    path = "L".join(f"{x(left):.1f} {y(height):.1f}" for left, height in points)
    yield element("path", d=f"M{path}" + ("h0" if len(points) == 1 else ""), class_=f"curve s{index % STYLES}")
    if len(points) <= 40:
        for left, height in points:
            place = {"cx": f"{x(left):.1f}", "cy": f"{y(height):.1f}", "r": 2.4}
            yield element("circle", class_=f"mark s{index % STYLES}", **place)


def _hovers(drawn: Sequence[tuple[str, Sequence[tuple[float, float]]]], x: Scale, x_name: str) -> Iterator[Element]:
    """Yield an invisible strip over each place with a point; it shows the values there."""
    places = sorted({left for _, points in drawn for left, _ in points})
    places = places[:: math.ceil(len(places) / MOST_HOVERS)]
    edges = [(one + other) / 2 for one, other in pairwise(places)]
    for place, left, right in zip(places, [0.0, *edges], [*edges, x.highest], strict=True):
        found = [f"{name} {near[1]:.4g}" for name, points in drawn if (near := _near(points, left, right, place))]
        title = element("title", "\n".join([f"{x_name} {place:,.0f}", *found]))
        width = max(x(right) - x(left), 1.0)
        box = {"x": f"{x(left):.1f}", "y": TOP, "width": f"{width:.1f}", "height": HEIGHT - BOTTOM - TOP}
        yield element("rect", title, class_="hover", **box)


def _near(points: Sequence[tuple[float, float]], left: float, right: float, place: float) -> tuple[float, float] | None:
    inside = [point for point in points if left <= point[0] <= right]
    return min(inside, key=lambda point: abs(point[0] - place), default=None)


def _legend(name: str, index: int) -> Element:
    line = element("path", d="M1 5H35", class_=f"curve s{index % STYLES}")
    return element("li", element("svg", line, viewBox="0 0 36 10", aria_hidden="true"), name)


def share(value: float, text: str, highest: float = 1.0) -> Element:
    """A number with a bar beside it, for the cell of a table; the bar is for the eye alone."""
    width = 100 * min(max(value / highest, 0.0), 1.0) if highest > 0 and math.isfinite(value) else 0.0
    bar = element("span", class_="bar", style=f"width:{width:.1f}%")
    return element("span", element("span", bar, class_="track", aria_hidden="true"), text, class_="share")


def equal_bins(values: Iterable[float], most: int = 8) -> list[tuple[int, int]]:
    """Cut whole numbers into ranges (first, last), both included, of about as many values each."""
    ordered = sorted(int(value) for value in values)
    if not ordered:
        return []
    count = min(most, max(1, len(ordered) // 5))
    lasts = sorted({ordered[-(-len(ordered) * (index + 1) // count) - 1] for index in range(count)})
    firsts = [ordered[0], *(last + 1 for last in lasts[:-1])]
    return list(zip(firsts, lasts, strict=True))


def named_bins(values: Sequence[int], most: int = 8) -> dict[str, list[int]]:
    """Range in words -> indices of the values in it."""
    found: dict[str, list[int]] = {}
    for first, last in equal_bins(values, most):
        name = str(first) if first == last else f"{first:,} to {last:,}"
        found[name] = [place for place, value in enumerate(values) if first <= value <= last]
    return found
