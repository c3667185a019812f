"""Charts as SVG, drawn by matplotlib. Their colors are variables of the style sheet, so they follow light and dark.

Import matplotlib only within :func:`matplotlib_defaults`: commands that draw nothing do not wait for it.
"""

from __future__ import annotations

import io
import logging
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from markupsafe import Markup

from toolkit.pages.elements import render_macro

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT, HEIGHT_BELOW = 620, 270, 90
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 56, 12, 26, 50
#: Maximum number of points of a curve. A longer curve is averaged over intervals of equal size.
MAX_POINTS = 400
#: Maximum number of hover areas of a figure.
MAX_HOVER_AREAS = 120
#: Minimum number of points of a smoothed curve, and share of its points in the moving mean.
MIN_SMOOTHED, SMOOTHED_SHARE = 40, 0.05
#: Digits of the distance between two ticks.
STEPS = (1, 2, 5, 10)
#: Color of the style sheet -> placeholder in matplotlib's output, which is replaced with ``var(--COLOR)``.
COLORS = {
    color: f"#0000{number:02x}"
    for number, color in enumerate(("blue", "orange", "good", "bad", "gray", "ink", "soft", "line", "band", "paper"), 1)
}
#: Color and dashes of the series of a figure, in order.
LINE_STYLES: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("blue", ()), ("orange", (7, 3)), ("good", (2, 3)), ("bad", (7, 3)), ("gray", (2, 3)), ("ink", ()),
)  # fmt: skip
#: Settings of matplotlib.
SETTINGS: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "toolkit", "text.parse_math": False, "path.simplify": False,
    "font.size": 11,
    "figure.facecolor": "none", "axes.facecolor": "none", "axes.edgecolor": COLORS["line"], "axes.linewidth": 0.7,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "axes.axisbelow": True,
    "axes.grid": True, "axes.grid.axis": "y", "grid.color": COLORS["line"], "grid.linewidth": 0.7,
    "axes.labelcolor": COLORS["soft"], "xtick.color": COLORS["line"], "xtick.labelcolor": COLORS["soft"],
    "ytick.left": False, "ytick.minor.left": False, "ytick.color": COLORS["soft"], "text.color": COLORS["ink"],
    "lines.linewidth": 1.6, "axes.xmargin": 0, "xtick.major.pad": 7, "axes.labelpad": 6,
}  # fmt: skip

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Series:
    """A curve of a figure.

    Attributes:
        name: name in the legend.
        points: x and y of each point, by ascending x; points with an infinite y or NaN are left out.
        is_noisy: whether a long curve is drawn faintly, with its moving mean over it.
    """

    name: str
    points: Points
    is_noisy: bool = False

    @property
    def points_to_draw(self) -> list[tuple[float, float]]:
        """Points to draw: finite points, averaged to at most :data:`MAX_POINTS`."""
        points = [(x, y) for x, y in self.points if math.isfinite(y)]
        size = math.ceil(len(points) / MAX_POINTS)
        if size <= 1:
            return points
        stretches = [points[start : start + size] for start in range(0, len(points), size)]
        return [(stretch[-1][0], sum(y for _, y in stretch) / len(stretch)) for stretch in stretches]


class HoverArea(NamedTuple):
    """An invisible area over a chart, which shows its text on hover: a range of x in data units, and the text."""

    start: float
    end: float
    text: str


@contextmanager
def matplotlib_defaults() -> Iterator[None]:
    """Draw with matplotlib's defaults and :data:`SETTINGS` instead of the user's settings, and without warnings.

    If no folder for its cache can be written, matplotlib uses a temporary folder.
    """
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        yield


def make_axes(width: float, heights: Sequence[float], margins: tuple[float, float, float, float]) -> list[Axes]:
    """Return axes below one another, which share their x axis, in a new figure.

    Args:
        width: width of the figure.
        heights: height of each of the axes, with its margins at the top and at the bottom.
        margins: margins at the left, right, top and bottom.
    """
    from matplotlib.figure import Figure

    margin_left, margin_right, margin_top, margin_bottom = margins
    height = sum(heights)
    figure = Figure((width / 72, height / 72), dpi=72)
    all_axes: list[Axes] = []
    for index, own_height in enumerate(heights):
        start = height - sum(heights[: index + 1]) + margin_bottom
        inner_width, inner_height = width - margin_left - margin_right, own_height - margin_top - margin_bottom
        box = (margin_left / width, start / height, inner_width / width, inner_height / height)
        all_axes.append(figure.add_axes(box, sharex=all_axes[0] if all_axes else None))
    return all_axes


def to_svg(axes: Axes, title: str, description: str, areas: Sequence[HoverArea] = ()) -> Markup:
    """Return the figure of ``axes`` as an SVG element.

    The group of an artist with the gid ``class:NAMES`` gets these classes.

    Args:
        axes: axes of the figure, with the hover areas.
        title: title for screen readers.
        description: description for screen readers.
        areas: hover areas.
    """
    figure: Any = axes.figure
    output = io.StringIO()
    figure.savefig(output, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = output.getvalue()
    text = text[text.index('<g id="figure_1">') : text.rindex("</svg>")]
    text = re.sub(r"<!--.*?-->|font(?:-\w+)?: [^;\"]*;? ?| transform=\"rotate\(-0 [^\"]*\"", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="class:([^"]*)">', r'<g class="\1">', text)
    text = re.sub(r"\s*\n\s*", " ", re.sub(r'<g id="[^"]*">', "<g>", text)).replace("> <", "><")
    for color, placeholder in COLORS.items():
        text = text.replace(placeholder, f"var(--{color})")
    (origin, _), (one, _) = axes.transData.transform([(0, 1), (1, 1)])
    unit, (width, height) = one - origin, figure.get_size_inches() * 72
    rectangles = [
        {
            "x": origin + unit * area.start,
            "y": height - axes.bbox.y1,
            "width": max(unit * (area.end - area.start), 0.1),
            "height": axes.bbox.height,
            "text": area.text,
        }
        for area in areas
    ]
    return render_macro("pages/elements.html", "chart", title, description, width, height, Markup(text), rectangles)


def to_figure(title: str, legend: Sequence[Mapping[str, str]], svg: Markup) -> Markup:
    """Return a figure with its caption and legend; see :func:`make_legend_entry`.

    Args:
        title: caption of the figure.
        legend: entries of the legend.
        svg: drawing.
    """
    return render_macro("pages/elements.html", "figure", title, legend, svg)


def make_legend_entry(name: str, color: str, dashes: Sequence[float] = (), value: str = "") -> dict[str, str]:
    """Return an entry of a legend: a line, its name, and its last value.

    Args:
        name: name of the curve.
        color: key of :data:`COLORS`.
        dashes: lengths of dashes and gaps; empty for a solid line.
        value: last value as text.
    """
    style = f"stroke: var(--{color}); stroke-dasharray: {' '.join(map(str, dashes)) or 'none'}"
    return {"name": name, "style": style, "value": value}


def draw_lines(
    title: str, series: Sequence[Series], x_name: str, best: float | None = None, below: Series | None = None
) -> Markup | None:
    """Return a figure with curves over a common axis and a legend with their last values; None without finite points.

    Args:
        title: caption of the figure.
        series: curves.
        x_name: name of the x axis.
        best: x of a vertical line that marks the best value; None for no line.
        below: curve in smaller axes below the others; None for no such axes.
    """
    curves = [(curve, curve.points_to_draw) for curve in series]
    curves = [(curve, points) for curve, points in curves if points]
    if not curves:
        return None
    points_below = below.points_to_draw if below else []
    margins = (MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM)
    with matplotlib_defaults():
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        all_axes = make_axes(WIDTH, [HEIGHT, HEIGHT_BELOW + MARGIN_BOTTOM] if points_below else [HEIGHT], margins)
        axes = all_axes[0]
        farthest = max(*(x for _, points in curves for x, _ in points), best or 0, 1)
        axes.set_xlim(0, farthest)
        for index, (curve, points) in enumerate(curves):
            color, dashes = LINE_STYLES[index % len(LINE_STYLES)]
            _draw_curve(axes, points, color, dashes, is_noisy=curve.is_noisy)
        if points_below and below is not None:
            _draw_curve(all_axes[1], points_below, "gray", (), is_noisy=False)
            all_axes[1].set_title(below.name, fontsize=11, loc="left", color=COLORS["soft"])
        for each in all_axes:
            each.xaxis.set_major_locator(MaxNLocator(8, integer=farthest > 8, steps=STEPS))
            each.yaxis.set_major_locator(MaxNLocator(5 if each is axes else 2, steps=STEPS))
            each.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
            each.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
        all_axes[-1].set_xlabel(x_name)
        if best is not None:
            axes.axvline(best, color=COLORS["ink"], linewidth=1, dashes=(3, 3))
            is_right = best > farthest / 2
            place, offset = (best, 1.0), (-4 if is_right else 4, 6)
            axes.annotate(f"best: {x_name} {best:,.0f}", place, offset, ("data", "axes fraction"), "offset points",
                          ha="right" if is_right else "left", weight="bold")  # fmt: skip
        named_points = [(curve.name, points) for curve, points in curves]
        areas = _hover_areas([*named_points, (below.name, points_below)] if below else named_points, farthest, x_name)
        svg = to_svg(axes, title, describe_curves(named_points, x_name), areas)
    legend = [
        make_legend_entry(name, *LINE_STYLES[index % len(LINE_STYLES)], f"{points[-1][1]:.4g}")
        for index, (name, points) in enumerate(named_points)
    ]
    return to_figure(title, legend, svg)


def _draw_curve(axes: Axes, points: Points, color: str, dashes: Sequence[float], *, is_noisy: bool) -> None:
    """Draw a line through points; a long noisy line is pale, with its moving average on top.

    Args:
        axes: axes of the chart.
        points: pairs (x, y).
        color: key of :data:`COLORS`.
        dashes: lengths of dashes and gaps; empty for a solid line.
        is_noisy: whether a moving average is drawn.
    """
    x, y = np.array(points, dtype=np.float64).T
    style: dict[str, Any] = {"color": COLORS[color], "dashes": dashes or (None, None), "gid": f"class:curve-{color}"}
    is_smoothed = is_noisy and len(points) >= MIN_SMOOTHED
    (line,) = axes.plot(x, y, **style, clip_on=False, alpha=0.35 if is_smoothed else None)
    if len(points) <= MIN_SMOOTHED:
        line.set(marker="o", markersize=4.5, markerfacecolor=COLORS["paper"], markeredgewidth=1.2)
    if is_smoothed:
        window = np.ones(max(round(SMOOTHED_SHARE * len(y)), 3))
        mean = np.convolve(y, window, "same") / np.convolve(np.ones(len(y)), window, "same")
        axes.plot(x, mean, **{**style, "gid": f"class:curve-{color} smoothed"}, linewidth=2)


def describe_curves(curves: Sequence[tuple[str, Points]], x_name: str) -> str:
    """Return a description of the curves for readers who cannot see the figure.

    Args:
        curves: name and points of each curve.
        x_name: name of the x-axis.
    """
    return "; ".join(
        f"{name}: {points[0][1]:.4g} at {x_name} {points[0][0]:g}, {points[-1][1]:.4g} at {x_name} {points[-1][0]:g}, "
        f"between {min(y for _, y in points):.4g} and {max(y for _, y in points):.4g}"
        for name, points in curves
    )


def _hover_areas(curves: Sequence[tuple[str, Points]], farthest: float, x_name: str) -> list[HoverArea]:
    """Return an area over each x of a point, with the values at this x.

    Args:
        curves: name and points of each curve.
        farthest: maximum distance in x of a point whose value is shown.
        x_name: name of the x-axis.
    """
    x_values = sorted({start for _, points in curves for start, _ in points})
    x_values = x_values[:: math.ceil(len(x_values) / MAX_HOVER_AREAS)]
    edges = [(previous + following) / 2 for previous, following in pairwise(x_values)]
    areas = []
    for x_value, start, end in zip(x_values, [0.0, *edges], [*edges, farthest], strict=True):
        values = [
            f"{name} {near[1]:.4g}" for name, points in curves if (near := _nearest_point(points, start, end, x_value))
        ]
        areas.append(HoverArea(start, end, "\n".join([f"{x_name} {x_value:,.6g}", *values])))
    return areas


def _nearest_point(points: Points, start: float, end: float, x_value: float) -> tuple[float, float] | None:
    """Return the point between ``start`` and ``end`` whose x is nearest to ``x_value``, or None."""
    inside = [point for point in points if start <= point[0] <= end]
    return min(inside, key=lambda point: abs(point[0] - x_value), default=None)
