"""Curves of the error over the depth of a model, as SVG: R32, P32 and P64 against R64, relative to each tensor's RMS.

The scale is logarithmic. An error of exactly 0 lies in its own band below all others, one larger than the tensor at the
upper edge. A tensor that is noise in float32 (a gradient that is 0 by cancellation) is a hollow mark off the curve.
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

#: Series in drawing order -> text in the legend.
SERIES = {
    "bound": "the most that P64 may be off",
    "r32": "R32: the reference in float32",
    "p32": "P32: the port in float32",
    "p64": "P64: the port in float64",
    "r16": "R16: the reference in bfloat16",
    "p16": "P16: the port in bfloat16",
}
#: By dtype, the series of the port.
PORT = {"float64": "p64", "float32": "p32", "bfloat16": "p16"}

WIDTH, HEIGHT = 960, 360
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 10, 40
ZERO_BAND = 26
#: Lowest decade of the scale; smaller errors, but 0, are drawn there. float64 itself ends at -16.
LOWEST_DECADE = -20
#: Room for a label of the x axis.
LABEL_WIDTH = 26
#: The layer in the name of a tensor.
LAYER = re.compile(r"\.(?:h|layers|layer|blocks)\.(\d+)\b")


@dataclass(frozen=True)
class Point:
    """A tensor on the x axis.

    Attributes:
        errors: measured series -> RMS of the error over the RMS of the tensor.
        noisy: whether it is noise in float32.
        failed: the series by which it failed.
    """

    name: str
    errors: Mapping[str, float]
    noisy: bool
    failed: tuple[str, ...]

    @property
    def layer(self) -> int | None:
        found = LAYER.search(self.name)
        return int(found[1]) if found else None


def points_of(tensors: Iterable[Mapping[str, Any]]) -> list[Point]:
    """Return a point for each name among tensors of ``parity.json``, in their order."""
    by_name: dict[str, dict[str, Mapping[str, Any]]] = {}
    for tensor in tensors:
        by_name.setdefault(tensor["name"], {})[tensor["dtype"]] = tensor
    return [_point(name, found) for name, found in by_name.items()]


def _point(name: str, by_dtype: Mapping[str, Mapping[str, Any]]) -> Point:
    either = next(iter(by_dtype.values()))
    is_measured = either["noise"] is not None
    errors = {"r32": ratio(either["noise"], either["rms"])} if is_measured else {}
    if "float32" in by_dtype:
        errors["p32"] = ratio(by_dtype["float32"]["error"], either["rms"])
    if "float64" in by_dtype:
        errors["p64"] = ratio(by_dtype["float64"]["error"], either["rms"])
        errors["bound"] = ratio(by_dtype["float64"]["bound"], either["rms"])
    if "bfloat16" in by_dtype:
        lowered = by_dtype["bfloat16"]
        errors["r16"] = ratio(lowered["noise_bfloat16"], either["rms"])
        errors["p16"] = ratio(lowered["error"], either["rms"])
    failed = tuple(PORT[dtype] for dtype, tensor in by_dtype.items() if not tensor["passed"])
    noisy = is_measured and either["noise"] > UNINFORMATIVE * either["rms"]
    return Point(name, errors, noisy, failed)


@dataclass(frozen=True)
class Axes:
    """Coordinates of tensors and errors in the picture; errors range from 10^lowest to 1."""

    count: int
    lowest: int

    def x(self, index: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (index + 0.5) / self.count

    def y(self, error: float) -> float:
        if error == 0:
            return HEIGHT - BOTTOM - 5
        decade = min(max(math.log10(error), self.lowest), 0.0) if error < math.inf else 0.0
        return TOP + (HEIGHT - BOTTOM - ZERO_BAND - TOP) * decade / self.lowest


def chart(points: Sequence[Point], title: str, outer: tuple[str, str]) -> Element:
    """Draw all series in one picture; at least one point.

    Args:
        title: the text that a screen reader reads first.
        outer: labels for before the first and after the last layer.
    """
    shown = [error for point in points for error in point.errors.values() if 0 < error < math.inf]
    lowest = max(math.floor(math.log10(min(shown))), LOWEST_DECADE) if shown else -16
    axes = Axes(len(points), min(lowest, -1))
    return element(
        "svg",
        element("title", title),
        element("desc", describe(points)),
        *_layers(points, axes, outer),
        *_decades(axes),
        *(_curve(points, series, axes) for series in SERIES),
        *_marks(points, axes),
        *_hovers(points, axes),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        class_="chart",
    )


def describe(points: Sequence[Point]) -> str:
    """Describe the curves in words."""
    parts = []
    for series, meaning in SERIES.items():
        errors = sorted(point.errors[series] for point in points if series in point.errors and not point.noisy)
        if errors:
            middle = errors[len(errors) // 2]
            parts.append(f"{meaning}: {errors[0]:.1e} to {errors[-1]:.1e}, median {middle:.1e}")
    failed = sum(bool(point.failed) for point in points)
    return f"{len(points)} tensors, {failed} of them beyond their bounds. " + ". ".join(parts)


def _decades(axes: Axes) -> Iterator[Element]:
    """Lines and labels of the y axis."""
    step = math.ceil(-axes.lowest / 9)
    for decade in range(0, axes.lowest - 1, -step):
        yield from _level(axes.y(10.0**decade), "≥ 1" if decade == 0 else f"1e{decade}")
    yield from _level(axes.y(0), "0")


def _level(y: float, label: str) -> Iterator[Element]:
    yield element("path", d=f"M{LEFT} {y:.1f}H{WIDTH - RIGHT}", class_="grid")
    yield element("text", label, x=LEFT - 6, y=f"{y + 4:.1f}", text_anchor="end")


def _layers(points: Sequence[Point], axes: Axes, outer: tuple[str, str]) -> Iterator[Element]:
    """Shade every other layer, and number the layers below where there is room."""
    groups = [(layer, [i for i, _ in found]) for layer, found in groupby(enumerate(points), lambda e: e[1].layer)]
    widest = (WIDTH - LEFT - RIGHT) / max(sum(layer is not None for layer, _ in groups), 1)
    every = math.ceil(LABEL_WIDTH / widest)
    bottom = HEIGHT - BOTTOM
    for place, (layer, indices) in enumerate(groups):
        left, right = axes.x(indices[0] - 0.5), axes.x(indices[-1] + 0.5)
        middle = f"{(left + right) / 2:.1f}"
        if layer is None:
            label = outer[0] if place == 0 else outer[1]
            if right - left > 3 * LABEL_WIDTH:
                yield element("text", label, x=middle, y=bottom + 16, text_anchor="middle")
            continue
        if layer % 2 == 0:
            box = {"x": f"{left:.1f}", "y": TOP, "width": f"{right - left:.1f}", "height": bottom - TOP}
            yield element("rect", class_="layer", **box)
        if layer % every == 0:
            yield element("text", str(layer), x=middle, y=bottom + 16, text_anchor="middle", class_="layer-number")
    yield element("text", "layer", x=LEFT + (WIDTH - LEFT - RIGHT) / 2, y=HEIGHT - 6, text_anchor="middle")


def _curve(points: Sequence[Point], series: str, axes: Axes) -> Element | None:
    """A line through all tensors of a series; broken where one was not measured."""
    steps, pen = [], "M"
    for index, point in enumerate(points):
        if series not in point.errors:
            pen = "M"
        elif not point.noisy:
            # A stroke of length 0 shows an isolated point.
            steps.append(f"{pen}{axes.x(index):.1f} {axes.y(point.errors[series]):.1f}" + ("h0" if pen == "M" else ""))
            pen = "L"
    return element("path", d="".join(steps), class_=f"curve {series}") if steps else None


def _marks(points: Sequence[Point], axes: Axes) -> Iterator[Element]:
    """Mark tensors that are noise in float32 with hollow circles, failed ones with full circles."""
    for index, point in enumerate(points):
        for series, error in point.errors.items():
            failed = series in point.failed
            if failed or point.noisy:
                place = {"cx": f"{axes.x(index):.1f}", "cy": f"{axes.y(error):.1f}", "r": 3 if failed else 2}
                yield element("circle", class_=f"{'failed' if failed else 'noisy'} {series}", **place)


def _hovers(points: Sequence[Point], axes: Axes) -> Iterator[Element]:
    """Over each tensor an invisible strip that names it and its errors."""
    width = f"{(WIDTH - LEFT - RIGHT) / len(points):.2f}"
    for index, point in enumerate(points):
        figures = [
            f"{series.upper() if series != 'bound' else 'bound of P64'} {error:.1e}"
            for series, error in point.errors.items()
        ]
        title = element("title", "\n".join([point.name, *figures, *(["noise in float32"] if point.noisy else [])]))
        x = f"{axes.x(index - 0.5):.1f}"
        yield element("rect", title, x=x, y=TOP, width=width, height=HEIGHT - BOTTOM - TOP, class_="hover")
