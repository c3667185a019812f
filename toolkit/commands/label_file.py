"""`toolkit predict RUN --input FILE --output FILE`: rows in, the same rows with the model's predictions out.

The file is read twice, a chunk of rows at a time: once to find what is wrong with it before anything is computed, and
once to label it. Memory does not grow with its size.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from toolkit.commands.predict import load_run, read_recipe
from toolkit.data.source_layout import SourceLayout, doubt, source_layout
from toolkit.errors import UserError
from toolkit.files.kinds import kind_of
from toolkit.files.nested_columns import MISSING
from toolkit.files.table_writer import Writer, check_target, table_writer
from toolkit.files.tables import TEXT as TEXT_COLUMN
from toolkit.files.tables import Rows, Table, read_table
from toolkit.tasks import task_of
from toolkit.tasks.interface import Labelled, Task
from toolkit.terminal.progress import ProgressBar

if TYPE_CHECKING:
    from rich.console import Console

    from toolkit.recipe.recipe import Recipe

#: Told of how many more rows are done.
Advance = Callable[[int], None]
#: Computes the new columns' values of some rows, from their texts and their numbers.
Label = Callable[[Mapping[str, list[str]], list[int], Advance], Labelled]
#: Most row numbers that a note lists.
LISTED = 10


@dataclass
class Noted:
    """Count of rows that a note is about, and the first row numbers."""

    count: int = 0
    first: list[int] = field(default_factory=list)

    def add(self, numbers: Sequence[int]) -> None:
        """Count these rows, too."""
        self.count += len(numbers)
        self.first += numbers[: LISTED - len(self.first)]

    def line(self, what: str) -> str:
        """``3 rows have no text: 5, 9, 12``."""
        more = f" and {self.count - len(self.first)} more" if self.count > len(self.first) else ""
        return (
            f"{self.count} row{' has' if self.count == 1 else 's have'} {what}: {', '.join(map(str, self.first))}{more}"
        )


def label_file(
    folder: Path,
    console: Console,
    source: Path | None,
    target: Path | None,
    overwrite: bool,
    layout: Mapping[str, str | None] | None = None,
    spreadsheet_safe: bool = False,
    **columns: str | None,
) -> Path:
    """Write the rows of a file, with the predictions of a run's best model in new columns at the end.

    Args:
        folder: a finished run.
        console: shows the progress, and the speed and notes at the end.
        source: the rows, of one of :data:`toolkit.files.kinds.KINDS`.
        target: the file to write, of any of these kinds but text.
        overwrite: replace an existing file.
        layout: of ``source``, as :func:`.source_layout.source_layout` takes it; by default the recipe's, or what fits.
        spreadsheet_safe: in a csv ``target``, put an apostrophe before what a spreadsheet would take for a formula.
        columns: ``text_column``, ``text_pair_column``, ``question_column``, ``context_column``: those of the file, in
            place of the recipe's.

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
    check_files(source, target, "input", overwrite, spreadsheet_safe)
    assert source is not None and target is not None
    wanted = _columns(recipe, task, columns)
    given = layout or {}
    read = source_layout(recipe, source, wanted.values(), **given)
    if read.kind == "text":
        wanted = _of_text(source, wanted)
    table = read_source(source, list(wanted.values()), target, read, console)
    run = load_run(folder)
    if (note := doubt(recipe, source, given.get("encoding"))) is not None:
        console.print(f"note: {note}", soft_wrap=True)

    def label(texts: Mapping[str, list[str]], _: list[int], advance: Advance) -> Labelled:
        return task.label_rows(run, texts, advance)

    options = {"overwrite": overwrite, "quoted": spreadsheet_safe}
    append_columns(table, target, wanted, task.prediction_columns(run), label, console, options)
    return target


def check_files(source: Path | None, target: Path | None, option: str, overwrite: bool, quoted: bool) -> None:
    """Check the names of the files before anything is read.

    Args:
        option: the name of the source's.
        quoted: whether cells of csv that begin like a formula are to be quoted.

    Raises:
        UserError: one is missing, or the target cannot be written.
    """
    if source is None or target is None:
        raise UserError(f"--{option if source is None else 'output'}: missing; --{option} and --output belong together")
    check_target(target, source, overwrite)
    if quoted and kind_of(target) != "csv":
        raise UserError(f"--spreadsheet-safe: is for an --output of csv, not for {target}; remove it")


def read_source(source: Path, columns: Sequence[str], target: Path, layout: SourceLayout, console: Console) -> Table:
    """Read a file of rows once, to find what is wrong with it."""
    with console.status(Text(f"reading {source}")) if console.is_terminal else contextlib.nullcontext():
        typed = kind_of(target) == "parquet"
        return read_table(source, columns, layout.delimiter, typed, layout.layout, layout.kind)


def append_columns(
    table: Table,
    target: Path,
    wanted: Mapping[str, str],
    added: Mapping[str, type],
    label: Label,
    console: Console,
    options: Mapping[str, bool],
) -> None:
    """Write a table's rows with new columns at the end, and say how fast that was and what was odd about some rows.

    Args:
        wanted: what is computed from -> its column in the table.
        added: name of each new column -> type of its values.
        label: computes their values, from what is ``wanted``.
        options: of :func:`.table_writer.table_writer`.
    """
    if taken := [name for name in added if name in table.names]:
        raise UserError(
            f"{table.path}: has a column {taken[0]} already, which is one of the predictions; rename or drop it"
        )
    begun = time.monotonic()
    with table_writer(target, table, added, **options) as writer, ProgressBar(console, "rows", table.size) as bar:
        notes = _label(table, wanted, len(added), label, writer, bar)
    seconds = time.monotonic() - begun
    console.print(
        f"{target}: {table.size} rows in {seconds:.1f} s, {table.size / seconds:.0f} a second", soft_wrap=True
    )
    for what, noted in notes.items():
        console.print(f"note: {noted.line(what)}", soft_wrap=True)
    if writer.formulas:
        console.print(f"note: {_of_formulas(writer.formulas, options['quoted'])}", soft_wrap=True)


def _of_formulas(count: int, quoted: bool) -> str:
    cells = f"{count} cell{' begins' if count == 1 else 's begin'} with =, +, -, @, a tab or a carriage return"
    if quoted:
        return f"{cells} and got an apostrophe in front"
    return f"{cells}, which a spreadsheet takes for a formula; --spreadsheet-safe puts an apostrophe in front"


def _columns(recipe: Recipe, task: Task, given: Mapping[str, str | None]) -> dict[str, str]:
    """Return what the task reads -> its column in the file.

    Raises:
        UserError: a column is given that the task does not read.
    """
    read = read_columns(recipe, task)
    for option, column in given.items():
        if column is not None and option.removesuffix("_column") not in read:
            known = ", ".join(f"--{name.replace('_', '-')}-column" for name in read)
            flag = f"--{option.replace('_', '-')}"
            raise UserError(f"{flag}: is not read by a run of {task.DESCRIPTION.name}, which takes {known}")
    return {name: given.get(f"{name}_column") or column for name, column in read.items()}


def _of_text(source: Path, wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the same for a file of a text per line.

    Raises:
        UserError: the task reads several columns.
    """
    if len(wanted) > 1:
        needed = " and ".join(wanted.values())
        raise UserError(f"{source}: a text file has no columns {needed}; use csv, tsv, jsonl, json or parquet")
    return {next(iter(wanted)): TEXT_COLUMN}


def read_columns(recipe: Recipe, task: Task) -> dict[str, str]:
    """Return what the task reads -> its column in the recipe; the second of two texts is the ``text_pair``."""
    columns = {name: getattr(recipe.data, name) for name in task.ROW_COLUMNS}
    if "text" in columns:
        columns.update(zip(("text", "text_pair"), recipe.data.text_columns, strict=False))
    return columns


def _label(
    table: Table, wanted: Mapping[str, str], added: int, label: Label, writer: Writer, bar: ProgressBar
) -> dict[str, Noted]:
    """Label and write all rows; return what to note about some of them. ``added`` is the number of new columns."""
    notes: dict[str, Noted] = {}
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        bar.update(done)

    for rows in table.chunks():
        before = done
        columns = {name: _texts(rows, column) for name, column in wanted.items()}
        values, found = _predicted(rows, columns, added, label, advance)
        writer.write(rows, values)
        for what, numbers in found.items():
            notes.setdefault(what, Noted()).add(numbers)
        done = before + len(rows)
        bar.update(done)
    if done != table.size:
        raise UserError(f"{table.path}: has changed while it was read; try again")
    return {what: noted for what, noted in notes.items() if noted.count}


def _texts(rows: Rows, column: str) -> list[str | None]:
    return [None if value is MISSING else value for value in rows.values(column)]


def _predicted(
    rows: Rows,
    columns: Mapping[str, list[str | None]],
    added: int,
    label: Label,
    advance: Advance,
) -> tuple[list[list[Any]], dict[str, list[int]]]:
    """Return a chunk's prediction columns, None in rows without text, and its notes: what -> row numbers."""
    complete, notes = [], {f"no {name}": list[int]() for name in columns}
    for index in range(len(rows)):
        missing = next((name for name, values in columns.items() if not (values[index] or "").strip()), None)
        if missing is None:
            complete.append(index)
        else:
            notes[f"no {missing}"].append(rows.first + index)
    empty: list[list[Any]] = [[None] * len(rows) for _ in range(added)]
    if not complete:
        return empty, notes
    texts = {name: [values[index] or "" for index in complete] for name, values in columns.items()}
    labelled = label(texts, [rows.first + index for index in complete], advance)
    for target, values in zip(empty, labelled.columns, strict=True):
        for index, value in zip(complete, values, strict=True):
            target[index] = value
    for what, places in labelled.notes.items():
        notes[what] = [rows.first + complete[place] for place in places]
    return empty, notes
