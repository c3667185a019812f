"""Curves of the error over the depth of a model, as SVG: R32, P32 and P64 against R64, relative to each tensor's RMS.

The scale is logarithmic. Errors of exactly 0 have a separate band below all others, and an error larger than its tensor
is drawn at the upper edge. A tensor that is noise in float32, such as a gradient that is 0 by cancellation, is a hollow
mark outside the curve.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from xml.etree.ElementTree import Element

from toolkit.pages.markup import element
from toolkit.parity.judge.bounds import UNINFORMATIVE, ratio

#: Texts of the series in the legend, in drawing order.
SERIES = {
    "bound": "the most that P64 may be off",
    "r32": "R32: the reference in float32",
    "p32": "P32: the port in float32",
    "p64": "P64: the port in float64",
    "r16": "R16: the reference in bfloat16",
    "p16": "P16: the port in bfloat16",
}
#: Series of the port by dtype.
PORT = {"float64": "p64", "float32": "p32", "bfloat16": "p16"}

WIDTH, HEIGHT = 960, 360
LEFT_MARGIN, RIGHT_MARGIN, TOP_MARGIN, BOTTOM_MARGIN = 52, 10, 10, 40
ZERO_BAND = 26
#: Lowest decade of the scale. Smaller errors, except 0, are drawn there. The rounding of float64 is about -16.
LOWEST_DECADE = -20
#: Width of a label of the x axis.
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
        match = LAYER.search(self.name)
        return int(match[1]) if match else None


def points_of(tensors: Iterable[Mapping[str, Any]]) -> list[Point]:
    """Return a point for each tensor name in records of ``parity.json``, in their order."""
    by_name: dict[str, dict[str, Mapping[str, Any]]] = {}
    for tensor in tensors:
        by_name.setdefault(tensor["name"], {})[tensor["dtype"]] = tensor
    return [_build_point(name, tensors_by_dtype) for name, tensors_by_dtype in by_name.items()]


def _build_point(name: str, by_dtype: Mapping[str, Mapping[str, Any]]) -> Point:
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


@dataclass(frozen=True)
class Axes:
    """The axes of a chart, which map tensors and errors to coordinates.

    Attributes:
        count: number of the tensors.
        lowest: decade of the smallest error; errors range from 10^lowest to 1.
    """

    count: int
    lowest: int

    def x(self, index: float) -> float:
        return LEFT_MARGIN + (WIDTH - LEFT_MARGIN - RIGHT_MARGIN) * (index + 0.5) / self.count

    def y(self, error: float) -> float:
        if error == 0:
            return HEIGHT - BOTTOM_MARGIN - 5
        decade = min(max(math.log10(error), self.lowest), 0.0) if error < math.inf else 0.0
        return TOP_MARGIN + (HEIGHT - BOTTOM_MARGIN - ZERO_BAND - TOP_MARGIN) * decade / self.lowest


def draw_chart(points: Sequence[Point], title: str, outer: tuple[str, str]) -> Element:
    """Draw all series of at least one point as an SVG chart.

    Args:
        points: the tensors from left to right.
        title: text that a screen reader reads first.
        outer: labels of the parts before the first layer and after the last layer.
    """
    positive_errors = [error for point in points for error in point.errors.values() if 0 < error < math.inf]
    lowest = max(math.floor(math.log10(min(positive_errors))), LOWEST_DECADE) if positive_errors else -16
    axes = Axes(len(points), min(lowest, -1))
    return element(
        "svg",
        element("title", title),
        element("desc", describe_curves(points)),
        *_layers(points, axes, outer),
        *_decades(axes),
        *(_curve(points, series, axes) for series in SERIES),
        *_marks(points, axes),
        *_hovers(points, axes),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        class_="chart",
    )


def describe_curves(points: Sequence[Point]) -> str:
    """Describe the curves in words."""
    parts = []
    for series, meaning in SERIES.items():
        errors = sorted(point.errors[series] for point in points if series in point.errors and not point.is_noisy)
        if errors:
            middle = errors[len(errors) // 2]
            parts.append(f"{meaning}: {errors[0]:.1e} to {errors[-1]:.1e}, median {middle:.1e}")
    num_failed = sum(bool(point.failed_series) for point in points)
    return f"{len(points)} tensors, {num_failed} of them beyond their bounds. " + ". ".join(parts)


def _decades(axes: Axes) -> Iterator[Element]:
    """Yield the lines and labels of the y axis."""
    step = math.ceil(-axes.lowest / 9)
    for decade in range(0, axes.lowest - 1, -step):
        yield from _level(axes.y(10.0**decade), "≥ 1" if decade == 0 else f"1e{decade}")
    yield from _level(axes.y(0), "0")


def _level(y: float, label: str) -> Iterator[Element]:
    yield element("path", d=f"M{LEFT_MARGIN} {y:.1f}H{WIDTH - RIGHT_MARGIN}", class_="grid")
    yield element("text", label, x=LEFT_MARGIN - 6, y=f"{y + 4:.1f}", text_anchor="end")


def _layers(points: Sequence[Point], axes: Axes, outer: tuple[str, str]) -> Iterator[Element]:
    """Yield a shade for every second layer, and the numbers of the layers that fit below the chart."""
    groups = [(layer, [i for i, _ in group]) for layer, group in groupby(enumerate(points), lambda item: item[1].layer)]
    layer_width = (WIDTH - LEFT_MARGIN - RIGHT_MARGIN) / max(sum(layer is not None for layer, _ in groups), 1)
    label_step = math.ceil(LABEL_WIDTH / layer_width)
    bottom = HEIGHT - BOTTOM_MARGIN
    for group_index, (layer, indices) in enumerate(groups):
        left_x, right_x = axes.x(indices[0] - 0.5), axes.x(indices[-1] + 0.5)
        middle = f"{(left_x + right_x) / 2:.1f}"
        if layer is None:
            label = outer[0] if group_index == 0 else outer[1]
            if right_x - left_x > 3 * LABEL_WIDTH:
                yield element("text", label, x=middle, y=bottom + 16, text_anchor="middle")
            continue
        if layer % 2 == 0:
            box = {
                "x": f"{left_x:.1f}",
                "y": TOP_MARGIN,
                "width": f"{right_x - left_x:.1f}",
                "height": bottom - TOP_MARGIN,
            }
            yield element("rect", class_="layer", **box)
        if layer % label_step == 0:
            yield element("text", str(layer), x=middle, y=bottom + 16, text_anchor="middle", class_="layer-number")
    yield element(
        "text", "layer", x=LEFT_MARGIN + (WIDTH - LEFT_MARGIN - RIGHT_MARGIN) / 2, y=HEIGHT - 6, text_anchor="middle"
    )


def _curve(points: Sequence[Point], series: str, axes: Axes) -> Element | None:
    """Return the line of a series, with gaps at tensors without a measurement; None for an empty line."""
    steps, pen = [], "M"
    for index, point in enumerate(points):
        if series not in point.errors:
            pen = "M"
        elif not point.is_noisy:
            # A stroke of length 0 shows an isolated point.
            steps.append(f"{pen}{axes.x(index):.1f} {axes.y(point.errors[series]):.1f}" + ("h0" if pen == "M" else ""))
            pen = "L"
    return element("path", d="".join(steps), class_=f"curve {series}") if steps else None


def _marks(points: Sequence[Point], axes: Axes) -> Iterator[Element]:
    """Yield hollow circles for tensors that are noise in float32, and full circles for failed tensors."""
    for index, point in enumerate(points):
        for series, error in point.errors.items():
            is_failed = series in point.failed_series
            if is_failed or point.is_noisy:
                position = {"cx": f"{axes.x(index):.1f}", "cy": f"{axes.y(error):.1f}", "r": 3 if is_failed else 2}
                yield element("circle", class_=f"{'failed' if is_failed else 'noisy'} {series}", **position)


def _hovers(points: Sequence[Point], axes: Axes) -> Iterator[Element]:
    """Yield an invisible strip over each tensor, whose tooltip has the name and the errors."""
    width = f"{(WIDTH - LEFT_MARGIN - RIGHT_MARGIN) / len(points):.2f}"
    for index, point in enumerate(points):
        figures = [
            f"{series.upper() if series != 'bound' else 'bound of P64'} {error:.1e}"
            for series, error in point.errors.items()
        ]
        title = element("title", "\n".join([point.name, *figures, *(["noise in float32"] if point.is_noisy else [])]))
        x = f"{axes.x(index - 0.5):.1f}"
        yield element(
            "rect", title, x=x, y=TOP_MARGIN, width=width, height=HEIGHT - BOTTOM_MARGIN - TOP_MARGIN, class_="hover"
        )
