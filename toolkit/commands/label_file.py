"""`toolkit predict RUN --input FILE --output FILE`: copy the rows of a file and add the model's predictions.

The file is read twice, a chunk of rows at a time. The first pass reports errors before any prediction is computed. The
second pass labels the rows. Memory does not grow with the size of the file.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from toolkit.commands.predict import load_baseline, load_run, read_recipe
from toolkit.data.source_layout import SourceLayout, describe_encoding_doubt, find_source_layout
from toolkit.errors import UserError
from toolkit.files.json_rows import TEXT_COLUMN
from toolkit.files.kinds import detect_kind
from toolkit.files.nested_columns import MISSING
from toolkit.files.table_writer import TableWriter, check_target, open_table_writer
from toolkit.files.tables import Rows, Table, read_table
from toolkit.tasks import task_of
from toolkit.tasks.interface import LabeledRows, Task
from toolkit.terminal.progress import ProgressBar

if TYPE_CHECKING:
    from rich.console import Console

    from toolkit.recipe.recipe import Recipe

#: Callback that is called with the number of rows that were newly finished.
AdvanceFn = Callable[[int], None]
#: Function of the texts of some rows (by input name), the row numbers and a callback. It returns the new columns.
LabelFn = Callable[[Mapping[str, list[str]], list[int], AdvanceFn], LabeledRows]
#: Maximum number of row numbers in a note.
MAX_LISTED_ROWS = 10


@dataclass
class RowNote:
    """The rows of a note: their number and the first row numbers.

    Attributes:
        count: number of rows.
        first: the first row numbers, at most :data:`MAX_LISTED_ROWS`.
    """

    count: int = 0
    first: list[int] = field(default_factory=list)

    def add(self, row_numbers: Sequence[int]) -> None:
        """Add row numbers to the note."""
        self.count += len(row_numbers)
        self.first += row_numbers[: MAX_LISTED_ROWS - len(self.first)]

    def line(self, problem: str) -> str:
        """Return the note as a line, such as ``3 rows have no text: 5, 9, 12``."""
        more = f" and {self.count - len(self.first)} more" if self.count > len(self.first) else ""
        return (
            f"{self.count} row{' has' if self.count == 1 else 's have'} {problem}: "
            f"{', '.join(map(str, self.first))}{more}"
        )


def label_file(
    folder: Path,
    console: Console,
    source: Path | None,
    target: Path | None,
    layout: Mapping[str, str | None] | None = None,
    *,
    overwrite: bool,
    spreadsheet_safe: bool = False,
    baseline: bool = False,
    **columns: str | None,
) -> Path:
    """Write the rows of a file, with the predictions of a run's best model in new columns at the end.

    Args:
        folder: folder of a finished run.
        console: console for the progress, the speed and notes.
        source: file with the rows, of a kind in :data:`toolkit.files.kinds.KIND_BY_ENDING`.
        target: file to write, of any of these kinds except text.
        overwrite: whether an existing ``target`` may be replaced.
        layout: layout of ``source``: ``encoding``, ``delimiter``, ``quote`` and ``columns``. Missing values come from
            the recipe or from the file.
        spreadsheet_safe: whether csv cells that a spreadsheet would read as formulas get an apostrophe in front.
        baseline: whether the kept baseline predicts instead of the model.
        columns: column names in ``source`` that differ from the recipe: ``text_column``, ``text_pair_column``,
            ``question_column``, ``context_column``.

    Returns:
        ``target``.

    Raises:
        UserError: the run's task does not label rows, or a file or column is wrong. Nothing is written.
    """
    recipe = read_recipe(folder)
    task = task_of(recipe)
    kind, command = task.DESCRIPTION.name, task.DESCRIPTION.command(folder, recipe)
    if not task.ROW_COLUMNS:
        raise UserError(f"{folder}: is a run of {kind}, which generates and does not label: {command}")
    check_files(source, target, "input", overwrite=overwrite, spreadsheet_safe=spreadsheet_safe)
    assert source is not None and target is not None
    input_columns = _input_columns(recipe, task, columns)
    layout_options = layout or {}
    file_layout = find_source_layout(recipe, source, input_columns.values(), **layout_options)
    if file_layout.kind == "text":
        input_columns = _text_input_column(source, input_columns)
    table = read_source(source, list(input_columns.values()), target, file_layout, console)
    run = load_baseline(folder) if baseline else load_run(folder)
    if (note := describe_encoding_doubt(recipe, source, layout_options.get("encoding"))) is not None:
        console.print(f"note: {note}", soft_wrap=True)

    def label_fn(text_columns: Mapping[str, list[str]], _: list[int], advance: AdvanceFn) -> LabeledRows:
        return task.label_rows(run, text_columns, advance)

    options = {"overwrite": overwrite, "escapes_formulas": spreadsheet_safe}
    append_columns(table, target, input_columns, task.prediction_columns(run), label_fn, console, options)
    return target


def check_files(
    source: Path | None, target: Path | None, option: str, *, overwrite: bool, spreadsheet_safe: bool
) -> None:
    """Check the names of the input and output files before the input is read.

    Args:
        source: file to read; None if it is missing on the command line.
        target: file to write; None if it is missing on the command line.
        option: name of the option for ``source``.
        overwrite: whether an existing ``target`` may be replaced.
        spreadsheet_safe: whether ``--spreadsheet-safe`` is set.

    Raises:
        UserError: a file is missing, or the target cannot be written.
    """
    if source is None or target is None:
        raise UserError(f"--{option if source is None else 'output'}: missing; --{option} and --output belong together")
    check_target(target, source, overwrite=overwrite)
    if spreadsheet_safe and detect_kind(target) != "csv":
        raise UserError(f"--spreadsheet-safe: is for an --output of csv, not for {target}; remove it")


def read_source(source: Path, columns: Sequence[str], target: Path, layout: SourceLayout, console: Console) -> Table:
    """Read all rows of a file once to check them, and return the table.

    Args:
        source: file to read.
        columns: names of the columns that must exist.
        target: file to write later; its kind decides whether the types of columns are kept.
        layout: layout of ``source``.
        console: console for the progress.
    """
    with console.status(Text(f"reading {source}")) if console.is_terminal else contextlib.nullcontext():
        keeps_types = detect_kind(target) == "parquet"
        return read_table(
            source, columns, layout.delimiter, infers_schema=keeps_types, layout=layout.layout, kind=layout.kind
        )


def append_columns(
    table: Table,
    target: Path,
    input_columns: Mapping[str, str],
    new_columns: Mapping[str, type],
    label_fn: LabelFn,
    console: Console,
    writer_options: Mapping[str, bool],
) -> None:
    """Write the rows of a table with new columns at the end, and print the speed and notes on unusual rows.

    Args:
        table: table with the rows.
        target: file to write.
        input_columns: input of the model, such as ``text`` -> name of its column in the table.
        new_columns: name of each new column -> type of its values.
        label_fn: function that computes the values of the new columns from the inputs.
        console: console for the progress, the speed and notes.
        writer_options: ``overwrite`` and ``escapes_formulas`` of :func:`.table_writer.open_table_writer`.
    """
    if duplicates := [name for name in new_columns if name in table.names]:
        raise UserError(
            f"{table.path}: has a column {duplicates[0]} already, which is one of the predictions; rename or drop it"
        )
    start_time = time.monotonic()
    with (
        open_table_writer(target, table, new_columns, **writer_options) as writer,
        ProgressBar(console, "rows", table.size) as bar,
    ):
        notes = _label_chunks(table, input_columns, len(new_columns), label_fn, writer, bar)
    seconds = time.monotonic() - start_time
    console.print(
        f"{target}: {table.size} rows in {seconds:.1f} s, {table.size / seconds:.0f} a second", soft_wrap=True
    )
    for problem, row_note in notes.items():
        console.print(f"note: {row_note.line(problem)}", soft_wrap=True)
    if writer.formulas:
        console.print(
            f"note: {_describe_formulas(writer.formulas, spreadsheet_safe=writer_options['escapes_formulas'])}",
            soft_wrap=True,
        )


def _describe_formulas(count: int, *, spreadsheet_safe: bool) -> str:
    """Return the note on cells that a spreadsheet would take for formulas.

    Args:
        count: number of such cells.
        spreadsheet_safe: whether an apostrophe was put in front of them.
    """
    cells = f"{count} cell{' begins' if count == 1 else 's begin'} with =, +, -, @, a tab or a carriage return"
    if spreadsheet_safe:
        return f"{cells} and got an apostrophe in front"
    return f"{cells}, which a spreadsheet takes for a formula; --spreadsheet-safe puts an apostrophe in front"


def _input_columns(recipe: Recipe, task: Task, column_options: Mapping[str, str | None]) -> dict[str, str]:
    """Return input of the task -> name of its column in the file.

    Args:
        recipe: recipe of the run, with the default column names.
        task: task of the run.
        column_options: option such as ``text_column`` -> column name; None for the default.

    Raises:
        UserError: an option names a column for an input that the task does not read.
    """
    default_columns = read_columns(recipe, task)
    for option, column in column_options.items():
        if column is not None and option.removesuffix("_column") not in default_columns:
            known_flags = ", ".join(f"--{name.replace('_', '-')}-column" for name in default_columns)
            flag = f"--{option.replace('_', '-')}"
            raise UserError(f"{flag}: is not read by a run of {task.DESCRIPTION.name}, which takes {known_flags}")
    return {name: column_options.get(f"{name}_column") or column for name, column in default_columns.items()}


def _text_input_column(source: Path, input_columns: Mapping[str, str]) -> dict[str, str]:
    """Return input of the task -> name of its column, for a file with a text in each line.

    Raises:
        UserError: the task reads several inputs.
    """
    if len(input_columns) > 1:
        column_names = " and ".join(input_columns.values())
        raise UserError(f"{source}: a text file has no columns {column_names}; use csv, tsv, jsonl, json or parquet")
    return {next(iter(input_columns)): TEXT_COLUMN}


def read_columns(recipe: Recipe, task: Task) -> dict[str, str]:
    """Return input of the task -> name of its column in the recipe. The second of two texts is ``text_pair``."""
    columns = {name: getattr(recipe.data, name) for name in task.ROW_COLUMNS}
    if "text" in columns:
        columns.update(zip(("text", "text_pair"), recipe.data.text_columns, strict=False))
    return columns


def _label_chunks(
    table: Table,
    input_columns: Mapping[str, str],
    num_new_columns: int,
    label_fn: LabelFn,
    writer: TableWriter,
    bar: ProgressBar,
) -> dict[str, RowNote]:
    """Label and write all rows; return description of a problem -> rows that have it.

    Args:
        table: table with the rows.
        input_columns: input of the model -> name of its column in the table.
        num_new_columns: number of new columns.
        label_fn: function that computes the values of the new columns.
        writer: writer of the output file.
        bar: progress bar.
    """
    notes: dict[str, RowNote] = {}
    num_done = 0

    def advance(count: int) -> None:
        nonlocal num_done
        num_done += count
        bar.update(num_done)

    for rows in table.chunks():
        num_before = num_done
        columns = {name: _column_texts(rows, column) for name, column in input_columns.items()}
        values, problem_rows = _predict_chunk(rows, columns, num_new_columns, label_fn, advance)
        writer.write(rows, values)
        for problem, numbers in problem_rows.items():
            notes.setdefault(problem, RowNote()).add(numbers)
        num_done = num_before + len(rows)
        bar.update(num_done)
    if num_done != table.size:
        raise UserError(f"{table.path}: has changed while it was read; try again")
    return {problem: row_note for problem, row_note in notes.items() if row_note.count}


def _column_texts(rows: Rows, column: str) -> list[str | None]:
    """Return the texts of a column, with None for missing values."""
    return [None if value is MISSING else value for value in rows.values(column)]


def _predict_chunk(
    rows: Rows,
    column_texts: Mapping[str, list[str | None]],
    num_new_columns: int,
    label_fn: LabelFn,
    advance: AdvanceFn,
) -> tuple[list[list[Any]], dict[str, list[int]]]:
    """Return the new columns of a chunk, and its notes: description of a problem -> row numbers.

    Rows without text have None in the new columns.

    Args:
        rows: rows of the chunk.
        column_texts: texts of each input column, by name.
        num_new_columns: number of columns that are added.
        label_fn: function that predicts the new columns, given texts.
        advance: function that is called with the number of rows that were finished.
    """
    complete_indices, notes = [], {f"no {name}": list[int]() for name in column_texts}
    for index in range(len(rows)):
        missing = next((name for name, values in column_texts.items() if not (values[index] or "").strip()), None)
        if missing is None:
            complete_indices.append(index)
        else:
            notes[f"no {missing}"].append(rows.first_number + index)
    new_columns: list[list[Any]] = [[None] * len(rows) for _ in range(num_new_columns)]
    if not complete_indices:
        return new_columns, notes
    texts = {name: [values[index] or "" for index in complete_indices] for name, values in column_texts.items()}
    result = label_fn(texts, [rows.first_number + index for index in complete_indices], advance)
    for target, values in zip(new_columns, result.columns, strict=True):
        for index, value in zip(complete_indices, values, strict=True):
            target[index] = value
    for problem, positions in result.notes.items():
        notes[problem] = [rows.first_number + complete_indices[position] for position in positions]
    return new_columns, notes
