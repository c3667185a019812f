"""A run's results beside those of simple methods and of its other weights: was the model worth its training?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from toolkit.terminal.progress import format_number

#: A loss that rises by more than this part is told.
RISE = 0.1


def overfitted(evaluations: Iterable[Mapping[str, Any]], best: Mapping[str, Any]) -> str:
    """Say that the weights kept have a higher validation loss than earlier ones, so that their probabilities are too
    sure; "" if they have not.

    Args:
        evaluations: rows of ``metrics.jsonl``.
        best: that of ``metrics.json``.
    """
    losses = {row["step"]: row["loss"] for row in evaluations if row.get("split") == "validation" and row.get("loss")}
    kept = losses.get(best["step"])
    lowest = min(losses, key=lambda step: losses[step], default=None)
    if kept is None or lowest is None or best["metric"] == "loss" or kept <= losses[lowest] * (1 + RISE):
        return ""
    return (
        f"the validation loss was {format_number(losses[lowest])} at step {lowest}, and is {format_number(kept)} where "
        f"{best['metric']} is best: the model is too sure of itself; train.save_best: loss keeps the others, and "
        "fewer epochs may be better"
    )


def compared(results: Mapping[str, Any], lower_is_better: Mapping[str, bool]) -> str:
    """Say in a line how the model compares with the best of the simple methods; "" if none was measured.

    The metric is the one that chose the weights, or the first that both have; the split is test, or validation.

    Args:
        results: the content of ``metrics.json``.
        lower_is_better: by metric, as :class:`toolkit.tasks.interface.Task` has it.
    """
    split = "test" if "test" in results else "validation"
    measured = {name: splits[split] for name, splits in results.get("baselines", {}).items() if splits.get(split)}
    if not measured:
        return ""
    everywhere = [results[split], *measured.values()]
    shared = [name for name in results[split] if all(numbers.get(name) is not None for numbers in everywhere)]
    wanted = results["best"]["metric"]
    metric = wanted if wanted in shared else next(iter(shared), None)
    if metric is None:
        return ""
    sign = 1 if lower_is_better.get(metric) else -1
    method = min(measured, key=lambda name: sign * measured[name][metric])
    own, other = results[split][metric], measured[method][metric]
    said = f"{split} {metric} {format_number(own)}; {method} {format_number(other)}"
    if sign * own < sign * other:
        return said
    return f"{said}: the simpler method is {'as good' if own == other else 'better'} here"
