"""`toolkit compare`: show the differences between runs and their metrics. Only files of the run folders are read."""

from __future__ import annotations

import importlib
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from toolkit.errors import UserError
from toolkit.files import strict_json
from toolkit.files.whole import write_text
from toolkit.finetune.identity import FILE as IDENTITY
from toolkit.finetune.report.curves import metrics_of, series
from toolkit.finetune.report.page import PAGE, REMEDY
from toolkit.pages.elements import Section, hide_folders, render_macro, render_page, table
from toolkit.pages.plot import draw_lines
from toolkit.recipe import yaml_source
from toolkit.recipe.shipped_recipes import new_file
from toolkit.run_folder.folder import flat, read_starts
from toolkit.run_folder.read import read_json, reading
from toolkit.run_folder.tracking import read_metrics
from toolkit.terminal.dotted_text import DottedText
from toolkit.terminal.progress import format_number

#: Splits for measuring runs. Metrics on a split are comparable only if all runs used the same rows.
MEASURED_SPLITS = ("validation", "test")
#: Number of characters of a digest to show.
DIGEST_LENGTH = 12
BEST_MARK = " *"
#: Name of an x axis of the learning curves -> key of a row of metrics.jsonl.
X_AXES = {"step": "step", "epoch": "epoch", "second": "seconds"}


@dataclass(frozen=True)
class ComparisonTable:
    """A table of the comparison.

    Attributes:
        title: heading of the table.
        rows: rows of the table; each has a key and a cell for each run.
        notes: remarks to print below the table.
        columns: headings of the cells; empty for the names of the runs.
    """

    title: str
    rows: list[tuple[str, ...]]
    notes: Sequence[str] = ()
    columns: Sequence[str] = ()


class RunFiles:
    """The content of the files in a run folder. The run may be unfinished.

    Raises:
        UserError: the folder is not a run folder, or one of its files is damaged.
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / "recipe.yaml").is_file():
            raise UserError(f"{folder}: holds no recipe.yaml, so it is not a run folder")
        self.folder = folder
        self.recipe = flat(yaml_source.read(folder / "recipe.yaml")[0])
        self.results = strict_json.replace_nonfinite(self._json("metrics.json"))
        self.identity, self.versions = self._json(IDENTITY), flat(self._json("versions.json"))
        self.rows = strict_json.replace_nonfinite(read_metrics(folder / "metrics.jsonl"))

    def _json(self, file: str) -> dict[str, Any]:
        """Return the content of a JSON file of the run folder, or an empty mapping if the file is missing."""
        return read_json(self.folder / file, REMEDY) if (self.folder / file).exists() else {}

    @cached_property
    def lower_is_better(self) -> Mapping[str, bool]:
        """Metric of the run's task -> whether lower values are better."""
        with reading(self.folder / "recipe.yaml", REMEDY):
            return importlib.import_module(f"toolkit.tasks.{self.recipe['task']}.task").LOWER_IS_BETTER

    @cached_property
    def metrics(self) -> dict[str, Mapping[str, Any]]:
        """Split -> metrics of the best weights; for an unfinished run, the metrics of its best validation so far."""
        if self.results:
            return {
                split_name: self.results[split_name] for split_name in MEASURED_SPLITS if split_name in self.results
            }
        metric = str(self.recipe.get("train.save_best"))
        rows = [row for row in self.rows if row.get("split") == "validation" and row.get(metric) is not None]
        sign = -1 if self.lower_is_better.get(metric) else 1
        best = max(rows, key=lambda row: sign * row[metric], default=None)
        return {} if best is None else {"validation": {key: best.get(key) for key in ("loss", *metrics_of([best]))}}

    @property
    def baselines(self) -> dict[str, Mapping[str, Any]]:
        """Split and simple method, such as ``test, TF-IDF``, -> metrics of the method."""
        return {
            f"{split_name}, {method}": splits[split_name]
            for method, splits in self.results.get("baselines", {}).items()
            for split_name in MEASURED_SPLITS
            if splits.get(split_name)
        }

    def facts(self) -> dict[str, str]:
        """Return the state of the run: whether it finished, its steps, duration and size, and its parity gate."""
        training = self.results.get("training", {})
        early_end = (
            "stopped early"
            if training.get("stopped_early")
            else "finished early"
            if training.get("finished_early")
            else ""
        )
        steps = max((row["step"] for row in self.rows), default=0)
        skip_reasons = [start["skipped"] for start in read_starts(self.folder) if start["skipped"] is not None]
        return {
            "state": (early_end or "finished") if self.results else "unfinished",
            "steps": f"{training.get('steps', steps):,}",
            "training seconds": f"{training['seconds']:,}" if training else "",
            "parameters": f"{self.results['parameters']:,}" if self.results else "",
            "parity": f"skipped: {skip_reasons[0]}"
            if skip_reasons
            else "passed"
            if read_starts(self.folder)
            else "unknown",
        }

    def data(self) -> dict[str, str]:
        """Return the number of examples and a digest prefix for each split, and the digest prefix of the tokenizer."""
        digests = self.identity.get("splits", {})
        sizes = {split_name: f"{size:,}" for split_name, size in self.results.get("examples", {}).items()}
        splits = {
            name: f"{sizes.get(name, '?')}, {digests.get(name, '')[:DIGEST_LENGTH] or 'digest unknown'}"
            for name in {**digests, **sizes}
        }
        return {**splits, "tokenizer": str(self.identity.get("tokenizer", ""))[:DIGEST_LENGTH]}


def compare_runs(folders: Sequence[Path], console: Console, output: Path | None = None) -> None:
    """Print the differences between runs and their metrics, and optionally write them to a page with learning curves.

    Args:
        folders: run folders, at least two.
        console: console to print to.
        output: new HTML file for the page; None writes no page.

    Raises:
        UserError: fewer than two runs, a folder that is not a run folder, a damaged file, or a page that exists.
    """
    if len({folder.resolve() for folder in folders}) < max(2, len(folders)):
        raise UserError("compare: specify two or more run folders, each once")
    if output is not None:
        new_file(output)
    runs = [RunFiles(folder) for folder in folders]
    with reading(" or ".join(map(str, folders)), REMEDY):
        tables = comparison_tables(runs)
    run_names = _run_names(folders)
    for comparison in tables:
        _print_table(comparison, run_names, console)
    if output is not None:
        write_text(output, _build_page(tables, run_names, runs, output))
        console.print(f"page: {output}", highlight=False, soft_wrap=True)


def comparison_tables(runs: Sequence[RunFiles]) -> list[ComparisonTable]:
    """Return the tables of the comparison, in order. The table of metrics is the last.

    Args:
        runs: runs to compare.
    """
    incomparable = {
        split_name: reason for split_name in MEASURED_SPLITS if (reason := _incomparable_reason(split_name, runs))
    }
    versions = _differing_rows([run.versions for run in runs])
    recipes = _differing_rows([run.recipe for run in runs], without="train.output_dir")
    metrics = list(_metric_rows(runs, incomparable))
    baselines = list(_baseline_rows(runs))
    marks = (
        [f"{BEST_MARK.strip()} the best of a row"]
        if any(cell.endswith(BEST_MARK) for row in metrics for cell in row)
        else []
    )
    return [
        ComparisonTable("Runs", _table_rows([run.facts() for run in runs])),
        ComparisonTable("Recipe", recipes, [] if recipes else ["the same in all runs"]),
        ComparisonTable("Data", _table_rows([run.data() for run in runs]), list(incomparable.values())),
        ComparisonTable("Versions", versions, [] if versions else ["the same in all runs"]),
        *([ComparisonTable("Baselines", baselines)] if baselines else []),
        *_spread_over_seeds(runs, recipes, incomparable),
        ComparisonTable("Metrics", metrics, [*marks, *incomparable.values()]),
    ]


def _spread_over_seeds(
    runs: Sequence[RunFiles], differing_recipe_keys: Sequence[tuple[str, ...]], incomparable: Mapping[str, str]
) -> Iterator[ComparisonTable]:
    """Yield a table with the mean and the spread of each metric, if the runs differ only in their seed.

    Args:
        runs: runs to compare.
        differing_recipe_keys: keys of the recipes that differ between the runs.
        incomparable: reason why the runs cannot be ranked on a split, by split.
    """
    if [key for key, *_ in differing_recipe_keys] != ["seed"]:
        return
    rows = []
    for split_name in MEASURED_SPLITS:
        metrics_of_runs = [run.metrics.get(split_name, {}) for run in runs]
        for metric in metrics_of_runs[0]:
            values = [metrics[metric] for metrics in metrics_of_runs if metrics.get(metric) is not None]
            if len(values) == len(runs):
                figures = (statistics.mean(values), statistics.stdev(values), min(values), max(values))
                rows.append((f"{split_name} {metric}", *map(format_number, figures)))
    columns = ("mean", "standard deviation", "lowest", "highest")
    notes = [f"the seed also draws the {split_name} rows, so they differ" for split_name in incomparable]
    yield ComparisonTable(f"Spread over {len(runs)} seeds", rows, notes, columns)


def _table_rows(column_values: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return a row for each key in any column: the key, and its value in each column."""
    keys = dict.fromkeys(key for column in column_values for key in column)
    return [(key, *(_format_cell(column.get(key, "")) for column in column_values)) for key in keys]


def _format_cell(value: Any) -> str:
    """Return a value in the notation of a recipe."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _differing_rows(column_values: Sequence[Mapping[str, Any]], without: str = "") -> list[tuple[str, ...]]:
    """Return the rows whose values differ, except the row of the key ``without``."""
    return [row for row in _table_rows(column_values) if len(set(row[1:])) > 1 and row[0] != without]


def _incomparable_reason(split_name: str, runs: Sequence[RunFiles]) -> str:
    """Return why metrics on a split cannot be compared; the empty string if they can."""
    digests = [run.identity.get("splits", {}).get(split_name) for run in runs if split_name in run.metrics]
    if None in digests and len(digests) > 1:
        return f"whether the {split_name} data are the same is not recorded, so their figures may not be comparable"
    if len(set(digests)) > 1:
        return f"the {split_name} data are not the same, so figures on {split_name} cannot be compared"
    tokenizers = {run.identity.get("tokenizer") for run in runs if split_name in run.metrics}
    if len(tokenizers) > 1 and all(str(run.recipe.get("task")).endswith("language_modeling") for run in runs):
        return f"the tokenizers are not the same, so losses and perplexities on {split_name} cannot be compared"
    return ""


def _metric_rows(runs: Sequence[RunFiles], incomparable: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Yield a row of the table for each metric of each split: its name, and its value in each run.

    The best value of a metric ends in :data:`BEST_MARK`.

    Args:
        runs: runs to compare.
        incomparable: reason why the runs cannot be ranked on a split, by split.
    """
    for split_name in MEASURED_SPLITS:
        columns = [run.metrics.get(split_name, {}) for run in runs]
        for metric in dict.fromkeys(metric for column in columns for metric in column):
            values = [column.get(metric) for column in columns]
            known_values = [value for value in values if value is not None]
            lower_is_better = runs[0].lower_is_better.get(metric)
            has_best = lower_is_better is not None and split_name not in incomparable and len(set(known_values)) > 1
            best = (min if lower_is_better else max)(known_values) if has_best else None
            cells = ["" if value is None else format_number(value) + BEST_MARK * (value == best) for value in values]
            yield (f"{split_name} {metric}", *cells)


def _baseline_rows(runs: Sequence[RunFiles]) -> Iterator[tuple[str, ...]]:
    """Yield the metrics of simple methods, for comparison with the runs' metrics.

    Args:
        runs: runs to compare.
    """
    for key in dict.fromkeys(key for run in runs for key in run.baselines):
        columns = [run.baselines.get(key, {}) for run in runs]
        for metric in dict.fromkeys(metric for column in columns for metric in column):
            values = [column.get(metric) for column in columns]
            yield (f"{key}: {metric}", *("" if value is None else format_number(value) for value in values))


def _run_names(folders: Sequence[Path]) -> list[str]:
    """Return a name for each run: the name of its folder, with the folders that differ if two have the same name."""
    paths = [folder.resolve() for folder in folders]
    if len({path.name for path in paths}) == len(paths):
        return [path.name for path in paths]
    return [f"…/{path.relative_to(os.path.commonpath(paths))}" for path in paths]


def _print_table(comparison: ComparisonTable, names: Sequence[str], console: Console) -> None:
    """Print a table of the comparison, and its notes.

    Args:
        comparison: table to print.
        names: names of the runs, the titles of the columns unless the table has its own.
        console: console to print on.
    """
    if comparison.rows:
        grid = Table(title=comparison.title, title_justify="left", title_style="bold")
        grid.add_column("")
        for column in comparison.columns or names:
            grid.add_column(DottedText(column), overflow="fold", no_wrap=comparison.title == "Metrics")
        for key, *cells in comparison.rows:
            grid.add_row(DottedText(key), *(Text(cell, "bold" if cell.endswith(BEST_MARK) else "") for cell in cells))
        console.print(grid)
    for note in comparison.notes:
        console.print(f"{comparison.title}: {note}", highlight=False, soft_wrap=True)


def _build_page(tables: Sequence[ComparisonTable], names: Sequence[str], runs: Sequence[RunFiles], output: Path) -> str:
    """Return the HTML of the page with the comparison.

    Args:
        tables: tables of the comparison.
        names: names of the runs.
        runs: runs to compare.
        output: path of the page.
    """
    pages = [
        os.path.relpath(run.folder / PAGE, output.absolute().parent) if (run.folder / PAGE).exists() else ""
        for run in runs
    ]
    sections = [
        _table_section(tables[-1], names),
        *_learning_curves(names, runs),
        *(_table_section(comparison, names) for comparison in tables[:-1]),
    ]
    title = f"{len(runs)} runs compared"
    links = list(zip(map(hide_folders, names), pages, strict=True))
    return render_page("commands/compare.html", title=title, links=links, sections=sections)


def _table_section(comparison: ComparisonTable, names: Sequence[str]) -> Section:
    """Return a section of the page with a table of the comparison and its notes.

    Args:
        comparison: table to show.
        names: names of the runs, the titles of the columns unless the table has its own.
    """
    rows = [
        [key, *(render_macro("pages/elements.html", "bold_if", hide_folders(cell), BEST_MARK) for cell in cells)]
        for key, *cells in comparison.rows
    ]
    titles = ("", *map(hide_folders, comparison.columns or names))
    return Section(comparison.title, [*comparison.notes, table(titles, rows, class_="compared") if rows else None])


def _learning_curves(names: Sequence[str], runs: Sequence[RunFiles]) -> Iterator[Section]:
    """Yield the learning curves of all runs, with a plot for each metric over each of :data:`X_AXES`.

    Args:
        names: names of the runs.
        runs: runs to compare.
    """
    by_split = {
        split_name: [[row for row in run.rows if row.get("split") == split_name] for run in runs]
        for split_name in ("train", "validation")
    }
    validation = [row for rows in by_split["validation"] for row in rows]
    plots = [("train", "loss"), ("validation", "loss"), *(("validation", key) for key in metrics_of(validation))]
    charts = [
        (x_name, [figure for split_name, key in plots if (figure := draw_lines(
            f"{split_name} {key}",
            [series(hide_folders(run), rows, key, x_key, is_noisy=split_name == "train")
             for run, rows in zip(names, by_split[split_name], strict=True)],
            x_name,
        ))])
        for x_name, x_key in X_AXES.items()
    ]  # fmt: skip
    if any(figures for _, figures in charts):
        yield Section("Learning curves", [render_macro("pages/elements.html", "charts_by_axis", charts)])
