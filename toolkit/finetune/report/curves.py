"""Learning curves: the lines of metrics.jsonl, as charts and as a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from toolkit.pages.elements import Section, format_same_decimals, render_macro, table
from toolkit.pages.plot import LINE_STYLES, Series, draw_lines
from toolkit.run_folder.tracking import LEADING_COLUMNS
from toolkit.tasks.metrics import COUNTS

#: Keys of a row that are not metrics.
NON_METRIC_COLUMNS = (*LEADING_COLUMNS, "loss", "learning_rate", "seconds", *COUNTS)

Row = Mapping[str, Any]


def curves(rows: Sequence[Row], best: int | None) -> Iterator[Section]:
    """Yield the section with curves of loss, metrics and learning rate over the steps, and a table of each evaluation.

    Args:
        rows: rows of metrics.jsonl.
        best: step of the best weights.
    """
    by_split = {
        split_name: [row for row in rows if row.get("split") == split_name] for split_name in ("train", "validation")
    }
    train, validation = by_split.values()
    metrics = metrics_of(validation)
    groups = [metrics[start : start + len(LINE_STYLES)] for start in range(0, len(metrics), len(LINE_STYLES))]
    losses = [series("train", train, "loss", is_noisy=True), series("validation", validation, "loss")]
    figures = [
        draw_lines("Loss", losses, "step", best, series("learning rate", train, "learning_rate")),
        *(
            draw_lines("Metrics on validation", [series(name, validation, name) for name in group], "step", best)
            for group in groups
        ),
    ]
    if not any(figures):
        return
    parts = [render_macro("pages/elements.html", "charts", figures)]
    names = ["loss", *metrics]
    columns = [_numbers([row.get(name) for row in validation]) for name in names]
    steps = [f"{row['step']:,}" + (" (best)" if row["step"] == best else "") for row in validation]
    if steps:
        numbers = table(("step", *names), list(zip(steps, *columns, strict=True)), "On validation", "numbers")
        summary = f"The numbers of {len(steps)} evaluations"
        parts.append(render_macro("pages/elements.html", "unfolded", summary, numbers))
    yield Section("Learning curves", parts)


def metrics_of(rows: Sequence[Row]) -> list[str]:
    """Return the metrics in the rows, without the loss.

    Args:
        rows: rows of metrics.
    """
    return list(dict.fromkeys(key for row in rows for key in row if key not in NON_METRIC_COLUMNS))


def series(name: str, rows: Sequence[Row], key: str, x_key: str = "step", *, is_noisy: bool = False) -> Series:
    """Return the curve of a key over another key of the rows.

    Args:
        name: name of the curve.
        rows: rows of metrics.
        key: metric on the vertical axis.
        x_key: key on the horizontal axis.
        is_noisy: whether a moving average is drawn.
    """
    numbers = [(_finite_number(row.get(x_key)), _finite_number(row.get(key))) for row in rows]
    return Series(name, [(x, y) for x, y in numbers if x is not None and y is not None], is_noisy)


def _finite_number(value: Any) -> float | None:
    """Return a metric as a finite number; None for other values."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None


def _numbers(values: Sequence[Any]) -> list[str]:
    """Return the values of a column with the same number of decimals."""
    return [text or "not finite" for text in format_same_decimals([_finite_number(value) for value in values])]
