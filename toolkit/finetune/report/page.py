"""Write `report.html`: a finished run on one page that loads nothing, built from the files in its folder.

The gate's verdict and the metrics come first, then the training, the errors, and the data and model of the run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from models import families
from toolkit.files import strict_json
from toolkit.files.whole import write_text
from toolkit.finetune.baselines import compare_with_baselines
from toolkit.finetune.card import describe_early_end
from toolkit.finetune.identity import FILE as IDENTITY
from toolkit.finetune.report.curves import curves
from toolkit.finetune.report.data import data_sections
from toolkit.finetune.report.style import STYLE
from toolkit.machine.disk import format_bytes
from toolkit.pages.document import document, table
from toolkit.pages.markup import element
from toolkit.recipe.recipe import Recipe
from toolkit.run_folder.folder import REPORT, read_starts, steps_of
from toolkit.run_folder.predictions import SPLITS, predictions_file
from toolkit.run_folder.read import read_json, reading
from toolkit.run_folder.tracking import read_metrics
from toolkit.tasks import task_of
from toolkit.tasks.metrics import COUNTS
from toolkit.terminal.progress import format_number

#: Name of the page in a run folder, and of the gate's page.
PAGE, PARITY_PAGE = "report.html", f"{REPORT}/parity.html"
#: What to do about a damaged file of a run.
REMEDY = "restore it from a copy, or train again"


def write_report(recipe: Recipe, folder: Path, results: Mapping[str, Any], output: Path | None = None) -> Path:
    """Write the page of a run; return its path.

    Args:
        folder: the run folder, with the predictions of at least one split.
        results: the content of metrics.json.

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
    """The whole document; ``above`` is the prefix of its links to the run's files."""
    description = task_of(recipe).DESCRIPTION
    name = folder.resolve().name
    body = element(
        "body",
        _header(recipe, folder, results, name, above),
        element(
            "main",
            *_numbers(results, task_of(recipe).LOWER_IS_BETTER),
            *curves(read_metrics(folder / "metrics.jsonl"), results["best"]["step"]),
            *_task(recipe, folder, results, above),
        ),
        element(
            "footer",
            *data_sections(results, description.unit(recipe)),
            *_training(recipe, results),
            *_made_of(recipe, folder),
        ),
    )
    return document(f"{name}: {description.name}", STYLE, body)


def _header(recipe: Recipe, folder: Path, results: Mapping[str, Any], name: str, above: str) -> Element:
    """The model, and whether the gate showed the port to equal the reference."""
    starts = read_starts(folder)
    has_passed = bool(starts) and all(start["skipped"] is None for start in starts)
    description = task_of(recipe).DESCRIPTION
    origin = f"starting from {recipe.model.weights}" if recipe.model.weights else "from new weights"
    title = families.family(recipe.model.name).title
    model = f"{title} for {description.name}, {results['parameters']:,} parameters, {origin}"
    link = element("a", "The gate's report", href=f"{above}{PARITY_PAGE}")
    return element(
        "header",
        element("h1", name),
        element("p", model),
        *_verdict(starts),
        element("p", link) if (folder / PARITY_PAGE).exists() else None,
        class_="passed" if has_passed else "skipped",
    )


def _verdict(starts: list[dict[str, Any]]) -> Iterator[Element]:
    """Gate's verdict at each start of the run."""
    if not starts:
        yield element("p", element("span", "Parity unknown", class_="verdict"), ": the run has no record of the gate")
    for start in starts:
        before, skip_reason = steps_of(starts, start), start["skipped"]
        word = "Parity" if skip_reason is None else "Parity gate skipped"
        words = start["passed"].removeprefix("parity: ") if skip_reason is None else skip_reason
        gate_text = f" before {before}: {words}"
        yield element("p", element("span", word, class_="verdict"), gate_text)


def _numbers(results: Mapping[str, Any], lower_is_better: Mapping[str, bool]) -> Iterator[Element]:
    """Yield the metrics of each split, next to the metrics of simple methods."""
    splits = [split_name for split_name in SPLITS if split_name in results]
    baseline_metrics = results.get("baselines", {})
    shown_baselines = [
        (method, split_name)
        for method in baseline_metrics
        for split_name in splits[:1]
        if split_name in baseline_metrics[method]
    ]
    rows = [
        (
            metric,
            *(_figure(metric, results[split_name]) for split_name in splits),
            *(_figure(metric, baseline_metrics[method][split_name]) for method, split_name in shown_baselines),
        )
        for metric in dict.fromkeys(metric for split_name in splits for metric in results[split_name])
    ]
    best = results["best"]
    yield element("h2", "Results")
    caption = f"Of the weights of step {best['step']:,}, the best validation {best['metric']}"
    titles = ("metric", *splits, *(f"{split_name}: {method}" for method, split_name in shown_baselines))
    yield element("div", table(titles, rows, caption, "numbers headline"), class_="wide")
    if line := compare_with_baselines(results, lower_is_better):
        yield element("p", f"Beside a simple method: {line}.")


def _task(recipe: Recipe, folder: Path, results: Mapping[str, Any], above: str) -> Iterator[Element]:
    """The task's part, on the test split, or on validation where there is no test."""
    split_name = next((split_name for split_name in SPLITS if predictions_file(folder, split_name).exists()), None)
    if split_name is None:
        return
    path = predictions_file(folder, split_name)
    yield element("h2", f"On {split_name}")
    yield element(
        "p",
        f"What follows is of the {split_name} split; "
        "each of its examples, with what the model said of it, is a row of ",
        element("a", path.name, href=f"{above}{path.name}"),
        ".",
        class_="soft",
    )
    yield from task_of(recipe).report(folder, path, results)


def _training(recipe: Recipe, results: Mapping[str, Any]) -> Iterator[Element]:
    """How long it was trained, and on what."""
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
    yield element("h2", "Training")
    tables = [table(("training", "value"), rows), table(("hardware", "value"), hardware) if hardware else None]
    yield element("div", *tables, class_="facts")


def _speed(results: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Examples and tokens a second of training, evaluations included."""
    passes, seconds = results["training"]["epochs"], results["training"]["seconds"]
    if not seconds:
        return
    yield "examples a second", f"{passes * results['examples']['train'] / seconds:,.1f}"
    if tokens := results.get("data", {}).get("train", {}).get("tokens"):
        yield "tokens a second", f"{passes * tokens / seconds:,.0f}"


def _made_of(recipe: Recipe, folder: Path) -> Iterator[Element]:
    """The recipe, the identity of the data, and the versions."""
    yield element("h2", "Recipe")
    yield element("pre", recipe.to_yaml())
    yield element("h2", "Made of")
    tables = []
    if (folder / IDENTITY).exists():
        shown_baselines = read_json(folder / IDENTITY, REMEDY)
        if continues := shown_baselines.pop("continues", None):
            tables.append(table(("continued from", "value"), _rows(continues)))
        tables.append(table(("SHA-256 of", "hash"), _rows(shown_baselines), class_="hashes"))
    if (folder / "versions.json").exists():
        versions = read_json(folder / "versions.json", REMEDY)
        tables.append(table(("version of", "value"), _rows(versions)))
    yield element("div", *tables, class_="facts")


def _rows(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Element]]:
    """Nested values as rows of a table: path of keys, and value."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _rows(value, f"{name} ")
        else:
            yield name, element("span", str(value), class_="name")


def _figure(metric: str, numbers: Mapping[str, float | None]) -> str:
    """A metric of a split; nothing where the split lacks it, such as questions without an answer."""
    if metric not in numbers:
        return ""
    value = numbers[metric]
    if value is None:
        return "not finite"
    return f"{value:,.0f}" if metric in COUNTS else format_number(value)
