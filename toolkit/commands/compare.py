"""`toolkit compare`: what differs between runs, and what they have reached, from the files of their folders alone."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from rich.console import Console
from rich.table import Table
from rich.text import Text

from toolkit.errors import UserError
from toolkit.files import strict_json
from toolkit.files.whole import write_text
from toolkit.finetune.identity import FILE as IDENTITY
from toolkit.finetune.report.curves import metrics_of, series
from toolkit.finetune.report.page import PAGE, REMEDY
from toolkit.finetune.report.style import STYLE
from toolkit.pages.document import document, name, scrolled, table
from toolkit.pages.markup import element
from toolkit.pages.plot import lines
from toolkit.recipe import yaml_source
from toolkit.recipe.shipped import new_file
from toolkit.run_folder.folder import flat, read_starts
from toolkit.run_folder.read import read_json, reading
from toolkit.run_folder.tracking import read_metrics
from toolkit.terminal.dotted import Dotted
from toolkit.terminal.progress import format_number

#: Splits that runs are measured on, whose figures are comparable only if the rows are the same.
MEASURED = ("validation", "test")
#: Characters of a digest that are shown.
DIGEST = 12
BEST = " *"


@dataclass(frozen=True)
class Part:
    """A table of the comparison.

    Attributes:
        rows: a key, and a cell for each run.
        notes: what the reader must know about it.
    """

    title: str
    rows: list[tuple[str, ...]]
    notes: Sequence[str] = ()


class RunFiles:
    """What the files of a run folder say of a run, finished or not. Raises UserError if the folder is no run's, or a
    file of it is damaged."""

    def __init__(self, folder: Path) -> None:
        if not (folder / "recipe.yaml").is_file():
            raise UserError(f"{folder}: holds no recipe.yaml, so it is not a run folder")
        self.folder = folder
        self.recipe = flat(yaml_source.read(folder / "recipe.yaml")[0])
        self.results = strict_json.finite(self._json("metrics.json"))
        self.identity, self.versions = self._json(IDENTITY), flat(self._json("versions.json"))
        self.rows = strict_json.finite(read_metrics(folder / "metrics.jsonl"))

    def _json(self, file: str) -> dict[str, Any]:
        return read_json(self.folder / file, REMEDY) if (self.folder / file).exists() else {}

    @cached_property
    def lower_is_better(self) -> Mapping[str, bool]:
        """Of the metrics of the run's task."""
        with reading(self.folder / "recipe.yaml", REMEDY):
            return importlib.import_module(f"toolkit.tasks.{self.recipe['task']}.task").LOWER_IS_BETTER

    @cached_property
    def metrics(self) -> dict[str, Mapping[str, Any]]:
        """Split -> metrics of the best weights; of an unfinished run those of its best validation so far."""
        if self.results:
            return {split: self.results[split] for split in MEASURED if split in self.results}
        metric = str(self.recipe.get("train.save_best"))
        rows = [row for row in self.rows if row.get("split") == "validation" and row.get(metric) is not None]
        sign = -1 if self.lower_is_better.get(metric) else 1
        best = max(rows, key=lambda row: sign * row[metric], default=None)
        return {} if best is None else {"validation": {key: best.get(key) for key in ("loss", *metrics_of([best]))}}

    def facts(self) -> dict[str, str]:
        """How far the run has come."""
        done = self.results.get("training", {})
        early = "stopped early" if done.get("stopped_early") else "finished early" if done.get("finished_early") else ""
        steps = max((row["step"] for row in self.rows), default=0)
        skipped = [start["skipped"] for start in read_starts(self.folder) if start["skipped"] is not None]
        return {
            "state": (early or "finished") if self.results else "unfinished",
            "steps": f"{done.get('steps', steps):,}",
            "training seconds": f"{done['seconds']:,}" if done else "",
            "parameters": f"{self.results['parameters']:,}" if self.results else "",
            "parity": f"skipped: {skipped[0]}" if skipped else "passed" if read_starts(self.folder) else "unknown",
        }

    def data(self) -> dict[str, str]:
        """Number of examples by split, and the beginnings of digests."""
        digests = self.identity.get("splits", {})
        sizes = {split: f"{size:,}" for split, size in self.results.get("examples", {}).items()}
        splits = {
            split: f"{sizes.get(split, '?')}, {digests.get(split, '')[:DIGEST] or 'digest unknown'}"
            for split in {**digests, **sizes}
        }
        return {**splits, "tokenizer": str(self.identity.get("tokenizer", ""))[:DIGEST]}


def compare(folders: Sequence[Path], console: Console, output: Path | None = None) -> None:
    """Print what differs between runs and their metrics; write the same as a page, with all learning curves. ``output``
    is a new file for the page. Raises UserError for fewer than two runs, a folder that is no run's, a damaged file, or
    a page that exists."""
    if len({folder.resolve() for folder in folders}) < max(2, len(folders)):
        raise UserError("compare: specify two or more run folders, each once")
    if output is not None:
        new_file(output)
    runs = [RunFiles(folder) for folder in folders]
    with reading(" or ".join(map(str, folders)), REMEDY):
        found = parts(runs)
    names = _names(folders)
    for part in found:
        _print(part, names, console)
    if output is not None:
        write_text(output, _page(found, names, runs, output))
        console.print(f"page: {output}", highlight=False, soft_wrap=True)


def parts(runs: Sequence[RunFiles]) -> list[Part]:
    """The tables of a comparison, in order."""
    apart = {split: reason for split in MEASURED if (reason := _apart(split, runs))}
    versions = _differing([run.versions for run in runs])
    recipes = _differing([run.recipe for run in runs], without="train.output_dir")
    metrics = list(_metrics(runs, apart))
    marks = [f"{BEST.strip()} the best of a row"] if any(cell.endswith(BEST) for row in metrics for cell in row) else []
    return [
        Part("Runs", _rows([run.facts() for run in runs])),
        Part("Recipe", recipes, [] if recipes else ["the same in all runs"]),
        Part("Data", _rows([run.data() for run in runs]), list(apart.values())),
        Part("Versions", versions, [] if versions else ["the same in all runs"]),
        Part("Metrics", metrics, [*marks, *apart.values()]),
    ]


def _rows(columns: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """All keys, with the value of each run."""
    keys = dict.fromkeys(key for column in columns for key in column)
    return [(key, *(_cell(column.get(key, "")) for column in columns)) for key in keys]


def _cell(value: Any) -> str:
    """A value as a recipe has it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _differing(columns: Sequence[Mapping[str, Any]], without: str = "") -> list[tuple[str, ...]]:
    """The rows whose values are not all the same."""
    return [row for row in _rows(columns) if len(set(row[1:])) > 1 and row[0] != without]


def _apart(split: str, runs: Sequence[RunFiles]) -> str:
    """Say why the figures of a split cannot be compared; "" if they can."""
    digests = [run.identity.get("splits", {}).get(split) for run in runs if split in run.metrics]
    if None in digests and len(digests) > 1:
        return f"whether the {split} data are the same is not recorded, so their figures may not be comparable"
    if len(set(digests)) > 1:
        return f"the {split} data are not the same, so figures on {split} cannot be compared"
    tokens = {run.identity.get("tokenizer") for run in runs if split in run.metrics}
    if len(tokens) > 1 and all(str(run.recipe.get("task")).endswith("language_modeling") for run in runs):
        return f"the tokenizers are not the same, so losses and perplexities on {split} cannot be compared"
    return ""


def _metrics(runs: Sequence[RunFiles], apart: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    for split in MEASURED:
        columns = [run.metrics.get(split, {}) for run in runs]
        for metric in dict.fromkeys(metric for column in columns for metric in column):
            values = [column.get(metric) for column in columns]
            known = [value for value in values if value is not None]
            lower = runs[0].lower_is_better.get(metric)
            marked = lower is not None and split not in apart and len(set(known)) > 1
            best = (min if lower else max)(known) if marked else None
            cells = ["" if value is None else format_number(value) + BEST * (value == best) for value in values]
            yield (f"{split} {metric}", *cells)


def _names(folders: Sequence[Path]) -> list[str]:
    """What the runs are called: their folders' names, or their paths if two have the same."""
    short = [folder.resolve().name for folder in folders]
    return short if len(set(short)) == len(short) else [str(folder) for folder in folders]


def _print(part: Part, names: Sequence[str], console: Console) -> None:
    if part.rows:
        grid = Table(title=part.title, title_justify="left", title_style="bold")
        grid.add_column("")
        for run in names:
            grid.add_column(Dotted(run), overflow="fold", no_wrap=part.title == "Metrics")
        for key, *cells in part.rows:
            grid.add_row(Dotted(key), *(Text(cell, "bold" if cell.endswith(BEST) else "") for cell in cells))
        console.print(grid)
    for note in part.notes:
        console.print(f"{part.title}: {note}", highlight=False, soft_wrap=True)


def _page(found: Sequence[Part], names: Sequence[str], runs: Sequence[RunFiles], output: Path) -> str:
    """The comparison as a page."""
    body = element(
        "body",
        element("header", element("h1", f"{len(runs)} runs compared"), *_links(names, runs, output)),
        element(
            "main",
            *_section(found[-1], names),
            *_curves(names, runs),
            *(tag for part in found[:-1] for tag in _section(part, names)),
        ),
    )
    return document("Runs compared", STYLE, body)


def _links(names: Sequence[str], runs: Sequence[RunFiles], output: Path) -> Iterator[Element]:
    for run, shown in zip(runs, names, strict=True):
        page = os.path.relpath(run.folder / PAGE, output.absolute().parent)
        link = element("a", shown, href=page) if (run.folder / PAGE).exists() else name(shown)
        yield element("p", link)


def _section(part: Part, names: Sequence[str]) -> Iterator[Element]:
    place = part.title.lower()
    yield element("h2", part.title, id=place)
    for note in part.notes:
        yield element("p", note, class_="soft")
    if part.rows:
        rows = [
            [key, *(element("b", cell) if cell.endswith(BEST) else cell for cell in cells)] for key, *cells in part.rows
        ]
        yield scrolled(table(("", *names), rows, class_="compared"), place)


def _curves(names: Sequence[str], runs: Sequence[RunFiles]) -> Iterator[Element]:
    """The learning curves of all runs, a plot for each metric."""
    by_split = {
        split: [[row for row in run.rows if row.get("split") == split] for run in runs]
        for split in ("train", "validation")
    }
    validation = [row for rows in by_split["validation"] for row in rows]
    plots = [("train", "loss"), ("validation", "loss"), *(("validation", key) for key in metrics_of(validation))]
    figures = [
        lines(f"{split} {key}", [series(run, rows, key) for run, rows in zip(names, by_split[split], strict=True)],
              "step")
        for split, key in plots
    ]  # fmt: skip
    if any(figure is not None for figure in figures):
        yield element("h2", "Learning curves")
        yield element("div", *figures, class_="charts")
