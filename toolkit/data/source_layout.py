"""Layout of a file for `toolkit predict --input`, from the command line and from the run's recipe."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from models.files.plain import UnreadableFileError
from toolkit.errors import UserError
from toolkit.files.csv_rows import QUOTES, Layout, default_delimiter, detect_delimiter, read_first_rows
from toolkit.files.kinds import BINARY_KINDS, detect_kind
from toolkit.files.sheet_rows import read_sheet_rows
from toolkit.files.tables import convert_content_errors
from toolkit.files.text_encoding import has_utf8_letters, is_text_encoding
from toolkit.recipe.keys import DELIMITER, HEADERLESS_KINDS

if TYPE_CHECKING:
    from toolkit.recipe.recipe import Recipe


class SourceLayout(NamedTuple):
    """Kind and layout of a file.

    Attributes:
        kind: value of :data:`toolkit.files.kinds.KIND_BY_ENDING`.
        delimiter: delimiter of a csv file; None to detect it.
        layout: encoding, quote and columns of the file.
    """

    kind: str
    delimiter: str | None = None
    layout: Layout = Layout()


def find_source_layout(
    recipe: Recipe, source: Path, text_columns: Collection[str] = (), **command_options: str | None
) -> SourceLayout:
    """Return the kind and layout of an input file.

    Args:
        recipe: recipe of the run.
        source: input file.
        text_columns: columns with the texts. A text file is a table if its first row has these and other columns.
        command_options: ``encoding``, ``delimiter``, ``quote`` and ``columns`` of the command line, or None. A
            delimiter may be written as ``\\t``, and columns are separated by commas.

    Raises:
        UserError: an option is invalid, or does not apply to the kind of the file.
    """
    data, kind = recipe.data, detect_kind(source)
    options = {name: value for name, value in command_options.items() if value is not None}
    encoding = options.get("encoding") or data.encoding or "utf-8"
    if (
        kind == "text"
        and is_text_encoding(encoding)
        and _is_text_table(recipe, source, text_columns, options, encoding)
    ):
        kind = "csv"
    checked_options = check_layout_options(options, kind, source)
    columns = checked_options.get("columns") or (data.columns if kind in HEADERLESS_KINDS else None)
    layout = Layout(
        encoding="utf-8" if kind in BINARY_KINDS else encoding,
        quote=checked_options.get("quote") or data.quote or '"',
        columns=tuple(columns) if columns else None,
    )
    delimiter = checked_options.get("delimiter")
    if delimiter is None and kind == "csv" and default_delimiter(source) == ",":
        delimiter = data.delimiter
    if (
        "columns" not in checked_options
        and columns
        and text_columns
        and set(text_columns) <= set(_read_first_row(source, kind, delimiter, layout))
    ):
        layout = replace(layout, columns=None)
    return SourceLayout(kind, delimiter, layout)


def _is_text_table(
    recipe: Recipe, source: Path, text_columns: Collection[str], layout_keys: Mapping[str, str], encoding: str
) -> bool:
    """Return whether a text file is a table with the text columns, according to its header, options or recipe.

    Args:
        recipe: recipe of the run.
        source: file to read.
        text_columns: columns that the recipe names as texts.
        layout_keys: layout options of the recipe.
        encoding: encoding of the file.
    """
    if layout_keys.keys() & {"delimiter", "quote", "columns"}:
        return True
    layout = Layout(encoding=encoding, quote=recipe.data.quote or '"')
    first_row = _read_first_row(source, "csv", recipe.data.delimiter, layout)
    has_named_width = recipe.data.columns is not None and len(first_row) == len(recipe.data.columns)
    return len(first_row) > 1 and (has_named_width or (bool(text_columns) and set(text_columns) <= set(first_row)))


def _read_first_row(source: Path, kind: str, delimiter: str | None, layout: Layout) -> list[str]:
    """Return the first row of a table, which may be a header; empty if the file cannot be read.

    Args:
        source: file to read.
        kind: kind of the file, such as ``csv``.
        delimiter: text between two columns; None for the default.
        layout: layout of the file.
    """
    headerless_layout = replace(layout, columns=None, delimiter=delimiter or "")
    try:
        with convert_content_errors(source):
            if kind == "xlsx":
                return next(read_sheet_rows(source), [])
            if kind != "csv":
                return []
            headerless_layout = replace(
                headerless_layout, delimiter=delimiter or detect_delimiter(source, headerless_layout)
            )
            return next(iter(read_first_rows(source, headerless_layout, 1)), [])
    except (UnreadableFileError, OSError):
        return []


def check_layout_options(command_options: Mapping[str, str], kind: str, source: Path) -> dict[str, Any]:
    """Check layout options of the command line, and return them in the form of recipe keys.

    Args:
        command_options: option name -> text, as in :func:`find_source_layout`.
        kind: kind of the input file.
        source: input file.

    Raises:
        UserError: an option is invalid, or does not apply to the kind of the file.
    """
    checked_options: dict[str, Any] = dict(command_options)
    if (encoding := command_options.get("encoding")) is not None:
        if kind in BINARY_KINDS:
            raise UserError(f"--encoding: {source} is {kind}, which has none; remove it")
        if not is_text_encoding(encoding):
            raise UserError(f"--encoding: no encoding of text is called {encoding!r}; set one such as cp1252 or utf-16")
    for option in ("delimiter", "quote", "columns"):
        if option in command_options and kind != "csv" and (option != "columns" or kind not in HEADERLESS_KINDS):
            raise UserError(f"--{option}: is for csv, not for {source}; remove it")
    if (delimiter := command_options.get("delimiter")) is not None:
        checked_options["delimiter"] = delimiter = "\t" if delimiter == "\\t" else delimiter
        if not DELIMITER.fullmatch(delimiter):
            expectation = "one character that is no letter or figure, such as ';' or '\\t' (a tab)"
            raise UserError(f"--delimiter: {delimiter!r} is none; it should be {expectation}")
    if command_options.get("quote", '"') not in QUOTES:
        raise UserError(f"--quote: {command_options['quote']!r} is none; it should be {' or '.join(QUOTES)}")
    if (columns := command_options.get("columns")) is not None:
        checked_options["columns"] = column_names = columns.split(",")
        if not all(column_names) or len(set(column_names)) < len(column_names):
            raise UserError(f"--columns: {columns!r} has a name twice or an empty one; name each column once")
    return checked_options


def describe_encoding_doubt(recipe: Recipe, source: Path, encoding: str | None) -> str | None:
    """Return a note that a file read in the recipe's encoding seems to be UTF-8; None if it does not.

    Args:
        recipe: recipe of the run.
        source: input file.
        encoding: encoding of the command line; if it is set, the recipe's encoding is not used.
    """
    recipe_encoding = recipe.data.encoding
    if (
        encoding is not None
        or recipe_encoding is None
        or detect_kind(source) in BINARY_KINDS
        or codecs.lookup(recipe_encoding).name.startswith("utf")
    ):
        return None
    if not has_utf8_letters(source):
        return None
    read_as = f"{source} is read as {recipe_encoding}, as the run's recipe says"
    return f"{read_as}, and seems to be UTF-8: --encoding utf-8 if it is"
