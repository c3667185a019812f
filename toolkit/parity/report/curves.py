"""Charts of the error over the depth of a model: R32, P32 and P64 against R64, relative to each tensor's RMS.

The scale is logarithmic. Errors of exactly 0 have a separate band below all others, and an error larger than its tensor
is drawn at the upper edge. A tensor that is noise in float32, such as a gradient that is 0 by cancellation, is a hollow
mark outside the curve.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from toolkit.pages.plot import COLORS, HoverArea, make_axes, make_legend_entry, matplotlib_defaults, to_figure, to_svg
from toolkit.parity.judge.bounds import UNINFORMATIVE, ratio

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Series in drawing order -> text in the legend, color, and dashes of the line.
SERIES: dict[str, tuple[str, str, tuple[float, ...]]] = {
    "bound": ("the most that P64 may be off", "blue", (1, 3)),
    "r32": ("R32: the reference in float32", "gray", (5, 3)),
    "p32": ("P32: the port in float32", "orange", ()),
    "p64": ("P64: the port in float64", "blue", ()),
    "r16": ("R16: the reference in bfloat16", "gray", (2, 3)),
    "p16": ("P16: the port in bfloat16", "good", ()),
}
#: Series of the port by dtype.
PORT = {"float64": "p64", "float32": "p32", "bfloat16": "p16"}

WIDTH, HEIGHT, MARGINS = 960, 360, (80, 10, 14, 60)
#: Height of a row of the chart of margins, and its margins: the left one has the names of the rows.
ROW_HEIGHT, MARGINS_OF_ROWS = 24, (170, 70, 8, 48)
#: Width of the chart of margins, and the smallest margin on it: smaller ones are drawn there.
WIDTH_OF_ROWS, SMALLEST_MARGIN = 620, 1e-4
#: Lowest decade of the scale; smaller errors, but 0, are drawn there. float64 itself ends at -16.
LOWEST_DECADE = -20
#: Distance of the band of exact zeros from the lowest decade, in decades.
ZERO_BAND = 1.5
#: Width of the number of a layer on the x axis.
LABEL_WIDTH = 26
#: Matches the number of the layer in the name of a tensor.
LAYER = re.compile(r"\.(?:h|layers|layer|blocks)\.(\d+)\b")


@dataclass(frozen=True)
class Point:
    """A tensor on the x axis.

    Attributes:
        name: name of the tensor.
        errors: RMS of the error over the RMS of the tensor, by series.
        is_noisy: whether the tensor is noise in float32.
        failed_series: the series whose errors exceed their bounds.
    """

    name: str
    errors: Mapping[str, float]
    is_noisy: bool
    failed_series: tuple[str, ...]

    @property
    def layer(self) -> int | None:
        """Index of the layer in the tensor's name; None for a tensor outside of layers."""
        match = LAYER.search(self.name)
        return int(match[1]) if match else None


def points_of(tensor_records: Iterable[Mapping[str, Any]]) -> list[Point]:
    """Return a point for each tensor name in records of ``parity.json``, in their order."""
    by_name: dict[str, dict[str, Mapping[str, Any]]] = {}
    for tensor in tensor_records:
        by_name.setdefault(tensor["name"], {})[tensor["dtype"]] = tensor
    return [_build_point(name, tensors_by_dtype) for name, tensors_by_dtype in by_name.items()]


def _build_point(name: str, by_dtype: Mapping[str, Mapping[str, Any]]) -> Point:
    """Return the point of a tensor: its relative errors and bounds, and the dtypes that failed.

    Args:
        name: name of the tensor.
        by_dtype: records of the tensor in ``parity.json``, by dtype.
    """
    tensor = next(iter(by_dtype.values()))
    is_measured = tensor["noise"] is not None
    errors = {"r32": ratio(tensor["noise"], tensor["rms"])} if is_measured else {}
    if "float32" in by_dtype:
        errors["p32"] = ratio(by_dtype["float32"]["error"], tensor["rms"])
    if "float64" in by_dtype:
        errors["p64"] = ratio(by_dtype["float64"]["error"], tensor["rms"])
        errors["bound"] = ratio(by_dtype["float64"]["bound"], tensor["rms"])
    if "bfloat16" in by_dtype:
        bfloat16_tensor = by_dtype["bfloat16"]
        errors["r16"] = ratio(bfloat16_tensor["noise_bfloat16"], tensor["rms"])
        errors["p16"] = ratio(bfloat16_tensor["error"], tensor["rms"])
    failed_series = tuple(PORT[dtype] for dtype, record in by_dtype.items() if not record["passed"])
    is_noisy = is_measured and tensor["noise"] > UNINFORMATIVE * tensor["rms"]
    return Point(name, errors, is_noisy, failed_series)


def draw_error_chart(points: Sequence[Point], title: str, outer: tuple[str, str]) -> Markup:
    """Return a figure with all series over the tensors; at least one point.

    Args:
        points: the tensors from left to right.
        title: text that a screen reader reads first.
        outer: labels of the parts before the first layer and after the last layer.
    """
    shown = [error for point in points for error in point.errors.values() if 0 < error < math.inf]
    lowest = max(math.floor(math.log10(min(shown))), LOWEST_DECADE) if shown else -16
    lowest = min(lowest, -1)
    with matplotlib_defaults():
        (axes,) = make_axes(WIDTH, [HEIGHT], MARGINS)
        axes.set_xlim(-0.5, len(points) - 0.5)
        axes.set_ylim(lowest - ZERO_BAND - 0.3, 0.3)
        decades = range(0, lowest - 1, -math.ceil(-lowest / 9))
        axes.set_yticks([*decades, lowest - ZERO_BAND], [*(f"1e{n}" if n else "≥ 1" for n in decades), "0"])
        _shade_layers(axes, points, outer)
        for series, (_, color, dashes) in SERIES.items():
            _draw_series(axes, points, series, COLORS[color], dashes, lowest)
        areas = [HoverArea(i - 0.5, i + 0.5, _describe_point(point)) for i, point in enumerate(points)]
        svg = to_svg(axes, title, describe(points), areas)
    series_with_errors = {series for point in points for series in point.errors}
    return to_figure(
        "", [make_legend_entry(*entry) for series, entry in SERIES.items() if series in series_with_errors], svg
    )


def _draw_series(
    axes: Axes, points: Sequence[Point], series: str, color: str, dashes: Sequence[float], lowest: int
) -> None:
    """Draw a line through the errors of all tensors in a series; it has a gap if a tensor was not measured.

    Hollow circles mark tensors that are noise in float32, full circles mark failed tensors.

    Args:
        axes: axes of the chart, with the tensors from left to right.
        points: errors of each tensor.
        series: key of the errors to draw, such as ``p32``.
        color: color of the line.
        dashes: lengths of dashes and gaps; empty for a solid line.
        lowest: decimal logarithm of the smallest error that the axis shows.
    """

    def height(relative_error: float) -> float:
        if relative_error == 0:
            return lowest - ZERO_BAND
        return min(max(math.log10(relative_error), lowest), 0.0) if relative_error < math.inf else 0.0

    heights = [
        height(point.errors[series]) if series in point.errors and not point.is_noisy else math.nan for point in points
    ]
    if not np.isnan(heights).all():
        axes.plot(heights, color=color, dashes=dashes or (None, None), gid=f"class:curve-{series}")
    for kind, fill, radius in (("noisy", COLORS["paper"], 4), ("failed", COLORS["bad"], 6)):
        mark_points = [
            (index, height(point.errors[series]))
            for index, point in enumerate(points)
            if series in point.errors
            and kind == ("failed" if series in point.failed_series else point.is_noisy and "noisy")
        ]
        if mark_points:
            edge = COLORS["bad"] if kind == "failed" else color
            style: dict[str, Any] = {"marker": "o", "markersize": radius, "markerfacecolor": fill}
            x, y = zip(*mark_points, strict=True)
            axes.plot(x, y, linestyle="", markeredgecolor=edge, **style, gid=f"class:{kind} {series}")


def _shade_layers(axes: Axes, points: Sequence[Point], outer: tuple[str, str]) -> None:
    """Shade every other layer, and number the layers below if there is enough space.

    Args:
        axes: axes of the chart.
        points: errors of each tensor, from left to right.
        outer: words below the tensors before and after the layers.
    """
    groups = [(layer, [i for i, _ in found]) for layer, found in groupby(enumerate(points), lambda e: e[1].layer)]
    width = WIDTH - MARGINS[0] - MARGINS[1]
    every = math.ceil(LABEL_WIDTH * max(sum(layer is not None for layer, _ in groups), 1) / width)
    labels = []
    for place, (layer, indices) in enumerate(groups):
        middle = (indices[0] + indices[-1]) / 2
        if layer is None:
            if len(indices) / len(points) * width > 3 * LABEL_WIDTH:
                labels.append((middle, outer[0] if place == 0 else outer[1]))
            continue
        if layer % 2 == 0:
            axes.axvspan(indices[0] - 0.5, indices[-1] + 0.5, color=COLORS["band"], linewidth=0)
        if layer % every == 0:
            labels.append((middle, str(layer)))
    axes.set_xticks([middle for middle, _ in labels], [label for _, label in labels])
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("layer")


def describe(points: Sequence[Point]) -> str:
    """Describe the curves in words.

    Args:
        points: errors of each tensor, from left to right.
    """
    parts = []
    for series, (meaning, *_) in SERIES.items():
        errors = sorted(point.errors[series] for point in points if series in point.errors and not point.is_noisy)
        if errors:
            middle = errors[len(errors) // 2]
            parts.append(f"{meaning}: {errors[0]:.1e} to {errors[-1]:.1e}, median {middle:.1e}")
    num_failed = sum(bool(point.failed_series) for point in points)
    return f"{len(points)} tensors, {num_failed} of them beyond their bounds. " + ". ".join(parts)


def _describe_point(point: Point) -> str:
    """Return the name of a tensor and its errors."""
    figures = [
        f"{series.upper() if series != 'bound' else 'bound of P64'} {error:.1e}"
        for series, error in point.errors.items()
    ]
    return "\n".join([point.name, *figures, *(["noise in float32"] if point.is_noisy else [])])


def draw_margin_chart(margins: Mapping[str, Sequence[float]]) -> Markup:
    """Return a figure with the distances of groups of tensors, each over its bound.

    Args:
        margins: name of a group -> errors in units of their bounds, one of each tensor; at least one.
    """
    height = ROW_HEIGHT * len(margins) + MARGINS_OF_ROWS[2] + MARGINS_OF_ROWS[3]
    log_margins = {name: np.log10(np.clip(values, SMALLEST_MARGIN, 1e9)) for name, values in margins.items()}
    texts = [f"{name}: {len(values)} tensors, largest {max(values):.2g}" for name, values in margins.items()]
    with matplotlib_defaults():
        (axes,) = make_axes(WIDTH_OF_ROWS, [height], MARGINS_OF_ROWS)
        lowest, highest = (
            round(math.log10(SMALLEST_MARGIN)),
            max(*(values.max() for values in log_margins.values()), 0.3),
        )
        axes.set(xlim=(lowest, highest), ylim=(len(margins) - 0.5, -0.5))
        decades = range(lowest, math.floor(highest) + 1, math.ceil((highest - lowest) / 7))
        axes.set_xticks(decades, [f"{'≤ ' * (decade == lowest)}{10.0**decade:g}" for decade in decades])
        axes.set_yticks(range(len(margins)), list(margins))
        axes.grid(False)
        axes.axvline(0, color=COLORS["bad"], dashes=(3, 2), linewidth=1.2)
        for row, (values, exact) in enumerate(zip(log_margins.values(), margins.values(), strict=True)):
            color = COLORS["bad" if max(exact) > 1 else "blue"]
            axes.plot([values.min(), values.max()], [row, row], color=color, linewidth=1)
            axes.plot(np.quantile(values, [0.25, 0.75]), [row, row], color=color, linewidth=6, alpha=0.5)
            axes.plot(values.max(), row, "o", color=color, markersize=6, clip_on=False, gid="class:largest")
            axes.annotate(
                f"{max(exact):.2g}", (1, row), (8, 0), ("axes fraction", "data"), "offset points", va="center"
            )
        axes.set_xlabel("distance from R64 / its bound; the dashed line is the bound")
        svg = to_svg(axes, "Distance of the port, over its bound", "; ".join(texts))
    return to_figure("", [], svg)
