"""Compare a run's results with simple methods and with its other weights, to show whether the training paid off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


def compare_with_baselines(results: Mapping[str, Any], lower_is_better: Mapping[str, bool]) -> str:
    """Return a line that compares the model with the best simple method; "" if no method was measured.

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
        return ""
    all_metrics = [results[split_name], *baseline_metrics.values()]
    shared_metrics = [
        name for name in results[split_name] if all(numbers.get(name) is not None for numbers in all_metrics)
    ]
    chosen_metric = results["best"]["metric"]
    metric = chosen_metric if chosen_metric in shared_metrics else next(iter(shared_metrics), None)
    if metric is None:
        return ""
    sign = 1 if lower_is_better.get(metric) else -1
    method = min(baseline_metrics, key=lambda name: sign * baseline_metrics[name][metric])
    model_value, baseline_value = results[split_name][metric], baseline_metrics[method][metric]
    comparison = f"{split_name} {metric} {format_number(model_value)}; {method} {format_number(baseline_value)}"
    if sign * model_value < sign * baseline_value:
        return comparison
    return f"{comparison}: the simpler method is {'as good' if model_value == baseline_value else 'better'} here"
