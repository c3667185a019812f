"""Write `report.html`: a finished run on one page that loads nothing, built from the files in its folder.

The gate's verdict and the metrics come first, then the training, the errors, and the data and model of the run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from models import families
from toolkit.files import strict_json
from toolkit.files.whole import write_text
from toolkit.finetune.baselines import compare_with_baselines, finite_interval
from toolkit.finetune.card import describe_early_end
from toolkit.finetune.identity import FILE as IDENTITY
from toolkit.finetune.report.curves import curves
from toolkit.finetune.report.data import data_sections
from toolkit.machine.sizes import format_bytes
from toolkit.pages.elements import (
    Section,
    flatten_values,
    format_same_decimals,
    hide_folders,
    render_macro,
    render_page,
    table,
)
from toolkit.recipe import yaml_source
from toolkit.recipe.keys import TASK_KEYS
from toolkit.recipe.recipe import Recipe
from toolkit.run_folder.folder import REPORT, read_starts, steps_of
from toolkit.run_folder.predictions import SPLITS, predictions_file
from toolkit.run_folder.read import read_json, reading
from toolkit.run_folder.tracking import read_metrics
from toolkit.tasks import task_of
from toolkit.tasks.metrics import COUNTS

#: Name of the page in a run folder, and of the gate's page.
PAGE, PARITY_PAGE = "report.html", f"{REPORT}/parity.html"
#: Stands for the default of a key that has no default of the task.
UNSET = object()
#: What to do about a damaged file of a run.
REMEDY = "restore it from a copy, or train again"


def write_report(recipe: Recipe, folder: Path, results: Mapping[str, Any], output: Path | None = None) -> Path:
    """Write the page of a run, and return its path.

    Args:
        recipe: recipe of the run.
        folder: run folder, with the predictions of at least one split.
        results: content of ``metrics.json``.
        output: file to write; None for the page in the run folder.

    Raises:
        UserError: a file of the run is damaged.
    """
    path = folder / PAGE if output is None else output
    above = "" if output is None else f"{os.path.relpath(folder, output.absolute().parent)}/"
    with reading(folder, REMEDY):
        text = page(recipe, folder, strict_json.replace_nonfinite(results), above)
    write_text(path, text)
    return path


def page(recipe: Recipe, folder: Path, results: Mapping[str, Any], above: str = "") -> str:
    """Return the HTML of the page.

    Args:
        recipe: recipe of the run.
        folder: run folder.
        results: content of ``metrics.json``.
        above: prefix of the links to the run's files.
    """
    task = task_of(recipe)
    run_name, starts = folder.resolve().name, read_starts(folder)
    origin = f"starting from {hide_folders(recipe.model.weights)}" if recipe.model.weights else "from new weights"
    family_title = families.family(recipe.model.name).title
    sections = [
        _numbers(results, task.LOWER_IS_BETTER),
        *curves(read_metrics(folder / "metrics.jsonl"), results["best"]["step"]),
        *_task_sections(recipe, folder, results, above),
        *data_sections(results, task.DESCRIPTION.unit(recipe)),
        _training(recipe, results),
        _recipe(recipe),
        _versions(folder),
    ]
    return render_page(
        "finetune/report/report.html",
        title=f"{run_name}: {task.DESCRIPTION.name}",
        name=run_name,
        model=f"{family_title} for {task.DESCRIPTION.name}, {results['parameters']:,} parameters, {origin}",
        has_passed=bool(starts) and all(start["skipped"] is None for start in starts),
        verdicts=list(_verdicts(starts)),
        gate_page=f"{above}{PARITY_PAGE}" if (folder / PARITY_PAGE).exists() else "",
        highlights=[section for section in sections if section.highlight],
        sections=sections,
        **_key_figures(recipe, folder, results),
    )


def _verdicts(run_starts: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the gate's verdict at each start of the run, and its reason."""
    if not run_starts:
        yield "Parity unknown", ": the run has no record of the gate"
    for start in run_starts:
        before, skip_reason = steps_of(run_starts, start), start["skipped"]
        word = "Parity" if skip_reason is None else "Parity gate skipped"
        words = start["passed"].removeprefix("parity: ") if skip_reason is None else skip_reason
        yield word, f" before {before}: {words}"


def _key_figures(recipe: Recipe, folder: Path, results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the main figure, with its confidence interval if it has one, and the best baseline.

    Args:
        recipe: recipe of the run.
        folder: run folder.
        results: content of ``metrics.json``.
    """
    best = compare_with_baselines(results, task_of(recipe).LOWER_IS_BETTER)
    split_name = next((split_name for split_name in SPLITS if split_name in results), None)
    metric = best.metric if best else results["best"]["metric"]
    value = results[split_name].get(metric) if split_name else None
    if value is None or split_name is None:
        return {"main_figure": None, "baseline": None}
    interval = f"of the weights of step {results['best']['step']:,}"
    if ends := finite_interval(results.get("intervals", {}).get(split_name, {}).get(metric)):
        low, high = format_same_decimals(ends)
        interval = f"95% interval {low} to {high}"
    figures = format_same_decimals([value, best.method_value if best else None])
    main_figure = {"split_name": split_name, "metric": metric, "value": figures[0], "interval": interval}
    baseline = best and {
        "method": f"the best simple method: {best.method}",
        "value": figures[1],
        "verdict": best.verdict or "the model is better",
        "wins": not best.is_model_better,
    }
    return {"main_figure": main_figure, "baseline": baseline}


def _numbers(results: Mapping[str, Any], lower_is_better: Mapping[str, bool]) -> Section:
    """Return the metrics of each split, next to the metrics of simple methods.

    Args:
        results: content of ``metrics.json``.
        lower_is_better: whether a lower value of a metric is better, by metric.
    """
    splits = [split_name for split_name in SPLITS if split_name in results]
    baseline_metrics = results.get("baselines", {})
    shown_baselines = [
        (method, split_name)
        for method in baseline_metrics
        for split_name in splits[:1]
        if split_name in baseline_metrics[method]
    ]
    columns = [results[split_name] for split_name in splits]
    columns += [baseline_metrics[method][split_name] for method, split_name in shown_baselines]
    rows = [
        (metric, *_figures(metric, columns))
        for metric in dict.fromkeys(metric for split_name in splits for metric in results[split_name])
    ]
    best = results["best"]
    caption = f"Of the weights of step {best['step']:,}, the best validation {best['metric']}"
    titles = ("metric", *splits, *(f"{split_name}: {method}" for method, split_name in shown_baselines))
    line = compare_with_baselines(results, lower_is_better)
    comparison = f"Compared with a simple method: {line}." if line else None
    return Section("Results", [table(titles, rows, caption, "numbers headline"), comparison])


def _task_sections(recipe: Recipe, folder: Path, results: Mapping[str, Any], above: str) -> Iterator[Section]:
    """Yield the task's sections, on the test split, or on validation if there is no test split.

    Args:
        recipe: recipe of the run.
        folder: run folder.
        results: content of ``metrics.json``.
        above: text that precedes the sections.
    """
    split_name = next((split_name for split_name in SPLITS if predictions_file(folder, split_name).exists()), None)
    if split_name is None:
        return
    path = predictions_file(folder, split_name)
    source = render_macro("finetune/report/source.html", "source", split_name, f"{above}{path.name}", path.name)
    yield Section(f"On {split_name}", [source])
    yield from task_of(recipe).report(folder, path, results)


def _training(recipe: Recipe, results: Mapping[str, Any]) -> Section:
    """Return the duration of training, and the machine.

    Args:
        recipe: recipe of the run.
        results: content of ``metrics.json``.
    """
    training_facts, train = results["training"], recipe.train
    seconds = training_facts["seconds"]
    batch = train.batch_size * train.gradient_accumulation_steps
    rows = [
        ("steps", f"{training_facts['steps']:,}{describe_early_end(training_facts)}"),
        ("epochs", f"{training_facts['epochs']:g}"),
        ("examples in a step", str(batch)),
        ("seconds", f"{seconds:,.1f}"),
        ("seconds a step", f"{seconds / training_facts['steps']:.3f}" if training_facts["steps"] else ""),
        ("seed", str(recipe.seed)),
    ]
    rows += _speed(results)
    hardware = [
        (key, format_bytes(int(value)) if key == "memory" else str(value))
        for key, value in results.get("hardware", {}).items()
    ]
    tables = [table(("training", "value"), rows), *([table(("hardware", "value"), hardware)] if hardware else [])]
    return Section("Training", [render_macro("pages/elements.html", "facts", tables)])


def _speed(results: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Examples and tokens a second of training, evaluations included.

    Args:
        results: content of ``metrics.json``.
    """
    passes, seconds = results["training"]["epochs"], results["training"]["seconds"]
    if not seconds:
        return
    yield "examples a second", f"{passes * results['examples']['train'] / seconds:,.1f}"
    if tokens := results.get("data", {}).get("train", {}).get("tokens"):
        yield "tokens a second", f"{passes * tokens / seconds:,.0f}"


def _recipe(recipe: Recipe) -> Section:
    """Return the keys of the recipe that differ from their defaults, and then all keys."""
    text = recipe.to_yaml()
    values, non_default_values = yaml_source.parse_mapping(text, "recipe"), recipe.model_dump(exclude_defaults=True)
    task_defaults = {tuple(key.split(".")): default for key, default in TASK_KEYS[recipe.task].items()}
    different_values = {
        section: {
            key: values[section][key]
            for key, value in keys.items()
            if key != "output_dir" and value != task_defaults.get((section, key), UNSET)
        }
        if isinstance(keys, dict)
        else keys
        for section, keys in non_default_values.items()
    }
    different_keys, all_keys = (
        render_macro("pages/elements.html", "preformatted", hide_folders(each))
        for each in (yaml_source.dump(different_values), text)
    )
    details = render_macro("pages/elements.html", "unfolded", "The whole recipe, with all defaults", all_keys)
    return Section("Recipe", ["What differs from the defaults:", different_keys, details])


def _versions(folder: Path) -> Section:
    """Return the identity of the data, and the versions."""
    tables = []
    if (folder / IDENTITY).exists():
        identity = read_json(folder / IDENTITY, REMEDY)
        if continues := identity.pop("continues", None):
            tables.append(table(("continued from", "value"), flatten_values(continues)))
        tables.append(table(("SHA-256 of", "hash"), flatten_values(identity), class_="hashes"))
    if (folder / "versions.json").exists():
        tables.append(table(("version of", "value"), flatten_values(read_json(folder / "versions.json", REMEDY))))
    return Section("Made of", [render_macro("pages/elements.html", "facts", tables)])


def _figures(metric: str, column_metrics: Sequence[Mapping[str, float | None]]) -> list[str]:
    """Return a metric of each column; nothing where a column lacks it, such as questions without an answer."""
    values = [column.get(metric) for column in column_metrics]
    texts = [f"{value or 0:,.0f}" for value in values] if metric in COUNTS else format_same_decimals(values)
    return [
        "" if metric not in column else "not finite" if value is None else text
        for column, value, text in zip(column_metrics, values, texts, strict=True)
    ]
