"""Learning curves: the lines of metrics.jsonl, as charts and as a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

from toolkit.pages.document import table
from toolkit.pages.markup import element
from toolkit.pages.plot import STYLES, Series, lines
from toolkit.run_folder.tracking import LEADING_COLUMNS
from toolkit.tasks.metrics import COUNTS
from toolkit.terminal.progress import format_number

#: Keys of a row that are not metrics.
NON_METRIC_COLUMNS = (*LEADING_COLUMNS, "loss", "learning_rate", "seconds", *COUNTS)

Row = Mapping[str, Any]


def curves(rows: Sequence[Row], best: int | None) -> Iterator[Element]:
    """Yield curves of loss, metrics and learning rate over the steps, and a table of each evaluation.

    Args:
        rows: rows of metrics.jsonl.
        best: step of the best weights.
    """
    by_split = {
        split_name: [row for row in rows if row.get("split") == split_name] for split_name in ("train", "validation")
    }
    train, validation = by_split.values()
    metrics = metrics_of(validation)
    shown_metrics = metrics[:STYLES]
    metrics_note = f" (the first {STYLES} of {len(metrics)})" if len(metrics) > STYLES else ""
    figures = [
        lines("Loss", [series(name, found, "loss") for name, found in by_split.items()], "step", best),
        lines(
            f"Metrics on validation{metrics_note}",
            [series(name, validation, name) for name in shown_metrics],
            "step",
            best,
        ),
        lines("Learning rate", [series("learning rate", train, "learning_rate")], "step"),
    ]
    if not any(figure is not None for figure in figures):
        return
    yield element("h2", "Learning curves")
    yield element("div", *figures, class_="charts")
    names = ["loss", *metrics]
    numbers = [
        (f"{row['step']:,}" + (" (best)" if row["step"] == best else ""), *(_figure(row.get(name)) for name in names))
        for row in validation
    ]
    if numbers:
        found = table(("step", *names), numbers, "On validation", "numbers")
        summary = element("summary", f"The numbers of {len(numbers)} evaluations")
        yield element("details", summary, element("div", found, class_="wide"))


def metrics_of(rows: Sequence[Row]) -> list[str]:
    """Return the metrics in the rows, without the loss."""
    return list(dict.fromkeys(key for row in rows for key in row if key not in NON_METRIC_COLUMNS))


def series(name: str, rows: Sequence[Row], key: str) -> Series:
    """Return the curve of a key over the steps."""
    return Series(
        name, [(float(row["step"]), value) for row in rows if (value := _finite_number(row.get(key))) is not None]
    )


def _finite_number(value: Any) -> float | None:
    """Return a metric as a finite number; None for other values."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None


def _figure(value: Any) -> str:
    number = _finite_number(value)
    return "not finite" if number is None else format_number(number)
