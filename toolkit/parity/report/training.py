"""The page's section on a pair whose two sides also trained independently: both losses and their distance."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from toolkit.pages.elements import Section, render_macro
from toolkit.pages.plot import Series, draw_lines

CAPTION = (
    "Each side trains by itself from the same weights, batches and draws. The band of a step is the farthest that runs "
    "of the reference have come from R64 so far, moved by a unit in the last place, with the factors of the bounds. "
    "Gradients and parameters are compared step by step, too. A difference of 0 is not drawn."
)


def training_section(training_content: Mapping[str, Any] | None) -> Iterable[Section]:
    """Yield the section; none for a gate without training."""
    if training_content is None:
        return
    losses, bands = training_content["losses"], training_content["bands"]
    distances: list[Series] = []
    for dtype, band in bands.items():
        side = f"P{dtype[-2:]}"
        differences = [abs(ours - true) for ours, true in zip(losses[side], losses["R64"], strict=True)]
        distances += [
            Series(side, _points(map(_log, differences))),
            Series(f"band of {side}", _points(map(_log, band))),
        ]
    figures = (
        draw_lines("Loss", [Series(name, _points(values)) for name, values in losses.items()], "step"),
        draw_lines("Distance of the port's loss from R64, log10", distances, "step"),
    )
    charts = render_macro("pages/elements.html", "charts", figures)
    yield Section(f"Training: {training_content['steps']} steps of each side by itself", [charts, CAPTION])


def _points(numbers: Iterable[float]) -> Sequence[tuple[float, float]]:
    """Return numbers as points (x, y), with x counted from 1."""
    return [*enumerate(numbers, 1)]


def _log(value: float | None) -> float:
    """Return the decimal logarithm of a number; NaN for 0 and None, so that no point is drawn."""
    return math.log10(value) if value else math.nan
