"""Compare a run's results with simple methods and with its other weights, to show whether the training paid off."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.terminal.progress import format_number

#: Smallest relative rise of the validation loss that is reported.
MIN_RISE = 0.1


def describe_overfitting(evaluations: Iterable[Mapping[str, Any]], best: Mapping[str, Any]) -> str:
    """Return a warning if the best weights have a higher validation loss than earlier weights, or "" otherwise.

    The probabilities of such weights are too confident.

    Args:
        evaluations: rows of ``metrics.jsonl``.
        best: ``best`` of ``metrics.json``.
    """
    losses = {row["step"]: row["loss"] for row in evaluations if row.get("split") == "validation" and row.get("loss")}
    best_loss = losses.get(best["step"])
    lowest_step = min(losses, key=lambda step: losses[step], default=None)
    if (
        best_loss is None
        or lowest_step is None
        or best["metric"] == "loss"
        or best_loss <= losses[lowest_step] * (1 + MIN_RISE)
    ):
        return ""
    return (
        f"the validation loss was {format_number(losses[lowest_step])} at step {lowest_step}, "
        f"and is {format_number(best_loss)} where "
        f"{best['metric']} is best: the model is too sure of itself; train.save_best: loss keeps the others, and "
        "fewer epochs may be better"
    )


@dataclass(frozen=True)
class BaselineComparison:
    """A metric of the model and of the best simple method.

    Attributes:
        split_name: name of the split that was measured.
        metric: name of the metric.
        method: name of the method.
        model_value, method_value: values of the metric.
        model_interval, method_interval: 95% confidence intervals, [low, high]; empty if unknown.
        is_model_better: whether the model is better than the method.
    """

    split_name: str
    metric: str
    method: str
    model_value: float
    method_value: float
    model_interval: Sequence[float]
    method_interval: Sequence[float]
    is_model_better: bool

    def __str__(self) -> str:
        model_text = format_with_interval(self.model_value, self.model_interval)
        method_text = format_with_interval(self.method_value, self.method_interval)
        line = f"{self.split_name} {self.metric} {model_text}; {self.method} {method_text}"
        return f"{line}: {self.verdict}" if self.verdict else line

    @property
    def verdict(self) -> str:
        """Note for the user if the model is not better than the method; empty otherwise."""
        how = "as good" if self.model_value == self.method_value else "better"
        return "" if self.is_model_better else f"the simpler method is {how} here"


def format_with_interval(value: float, interval: Sequence[float]) -> str:
    """Return a number with its 95% confidence interval, such as ``0.82 (95%: 0.79 to 0.85)``."""
    if not interval:
        return format_number(value)
    return f"{format_number(value)} (95%: {format_number(interval[0])} to {format_number(interval[1])})"


def compare_with_baselines(
    results: Mapping[str, Any], lower_is_better: Mapping[str, bool]
) -> BaselineComparison | None:
    """Compare the model with the best simple method; None if no method was measured.

    The metric is the metric that chose the weights, or the first that both have. The split is test, or validation.

    Args:
        results: content of ``metrics.json``.
        lower_is_better: whether lower values are better, by metric (:class:`toolkit.tasks.interface.Task`).
    """
    split_name = "test" if "test" in results else "validation"
    baseline_metrics = {
        name: splits[split_name] for name, splits in results.get("baselines", {}).items() if splits.get(split_name)
    }
    if not baseline_metrics:
        return None
    all_metrics = [results[split_name], *baseline_metrics.values()]
    shared_metrics = [
        name for name in results[split_name] if all(numbers.get(name) is not None for numbers in all_metrics)
    ]
    chosen_metric = results["best"]["metric"]
    metric = chosen_metric if chosen_metric in shared_metrics else next(iter(shared_metrics), None)
    if metric is None:
        return None
    sign = 1 if lower_is_better.get(metric) else -1
    method = min(baseline_metrics, key=lambda name: sign * baseline_metrics[name][metric])
    model_value, method_value = results[split_name][metric], baseline_metrics[method][metric]
    method_intervals = results.get("baseline_intervals", {}).get(method, {})
    return BaselineComparison(
        split_name,
        metric,
        method,
        model_value,
        method_value,
        finite_interval(results.get("intervals", {}).get(split_name, {}).get(metric)),
        finite_interval(method_intervals.get(split_name, {}).get(metric)),
        sign * model_value < sign * method_value,
    )


def finite_interval(interval: Sequence[float | None] | None) -> list[float]:
    """Return an interval of ``metrics.json``; empty if it is missing or has no finite ends."""
    ends = [end for end in interval or () if end is not None and math.isfinite(end)]
    return ends if len(ends) == 2 else []
