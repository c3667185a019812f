"""Layout of a file for `toolkit predict --input`: the command line's, else the run's recipe's."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from models.files.plain import UnreadableFile
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
    """How a file is written.

    Attributes:
        kind: a value of :data:`toolkit.files.kinds.KIND_BY_ENDING`.
        delimiter: of csv; None for one that fits.
        layout: the rest.
    """

    kind: str
    delimiter: str | None = None
    layout: Layout = Layout()


def source_layout(recipe: Recipe, source: Path, needed: Collection[str] = (), **given: str | None) -> SourceLayout:
    """Find out how a file to label is written.

    Args:
        needed: the columns of its texts. A text file is a table if the first of its rows has these, and others.
        given: ``encoding``, ``delimiter``, ``quote`` and ``columns`` of the command line, as far as there are any. A
            delimiter may be written as ``\\t``, columns with commas.

    Raises:
        UserError: one that is invalid, or that the kind of file lacks.
    """
    data, kind = recipe.data, detect_kind(source)
    options = {name: value for name, value in given.items() if value is not None}
    encoding = options.get("encoding") or data.encoding or "utf-8"
    if kind == "text" and is_text_encoding(encoding) and _is_table(recipe, source, needed, options, encoding):
        kind = "csv"
    chosen = checked_layout(options, kind, source)
    columns = chosen.get("columns") or (data.columns if kind in HEADERLESS_KINDS else None)
    layout = Layout(
        encoding="utf-8" if kind in BINARY_KINDS else encoding,
        quote=chosen.get("quote") or data.quote or '"',
        columns=tuple(columns) if columns else None,
    )
    delimiter = chosen.get("delimiter")
    if delimiter is None and kind == "csv" and default_delimiter(source) == ",":
        delimiter = data.delimiter
    if (
        "columns" not in chosen
        and columns
        and needed
        and set(needed) <= set(_first_row(source, kind, delimiter, layout))
    ):
        layout = replace(layout, columns=None)
    return SourceLayout(kind, delimiter, layout)


def _is_table(recipe: Recipe, source: Path, needed: Collection[str], options: Mapping[str, str], encoding: str) -> bool:
    """Whether a text file is a table that has the needed columns, by its header or by what names its columns."""
    if options.keys() & {"delimiter", "quote", "columns"}:
        return True
    layout = Layout(encoding=encoding, quote=recipe.data.quote or '"')
    first = _first_row(source, "csv", recipe.data.delimiter, layout)
    named = recipe.data.columns is not None and len(first) == len(recipe.data.columns)
    return len(first) > 1 and (named or (bool(needed) and set(needed) <= set(first)))


def _first_row(source: Path, kind: str, delimiter: str | None, layout: Layout) -> list[str]:
    """The first row of a table, header or not; none where the reader will say what is wrong."""
    plain = replace(layout, columns=None, delimiter=delimiter or "")
    try:
        with convert_content_errors(source):
            if kind == "xlsx":
                return next(read_sheet_rows(source), [])
            if kind != "csv":
                return []
            plain = replace(plain, delimiter=delimiter or detect_delimiter(source, plain))
            return next(iter(read_first_rows(source, plain, 1)), [])
    except (UnreadableFile, OSError):
        return []


def checked_layout(given: Mapping[str, str], kind: str, source: Path) -> dict[str, Any]:
    """Return options of the command line, as of :func:`source_layout`, as the keys of a recipe have them. Raises as
    that does."""
    checked: dict[str, Any] = dict(given)
    if (encoding := given.get("encoding")) is not None:
        if kind in BINARY_KINDS:
            raise UserError(f"--encoding: {source} is {kind}, which has none; remove it")
        if not is_text_encoding(encoding):
            raise UserError(f"--encoding: no encoding of text is called {encoding!r}; set one such as cp1252 or utf-16")
    for option in ("delimiter", "quote", "columns"):
        if option in given and kind != "csv" and (option != "columns" or kind not in HEADERLESS_KINDS):
            raise UserError(f"--{option}: is for csv, not for {source}; remove it")
    if (delimiter := given.get("delimiter")) is not None:
        checked["delimiter"] = delimiter = "\t" if delimiter == "\\t" else delimiter
        if not DELIMITER.fullmatch(delimiter):
            right = "one character that is no letter or figure, such as ';' or '\\t' (a tab)"
            raise UserError(f"--delimiter: {delimiter!r} is none; it should be {right}")
    if given.get("quote", '"') not in QUOTES:
        raise UserError(f"--quote: {given['quote']!r} is none; it should be {' or '.join(QUOTES)}")
    if (columns := given.get("columns")) is not None:
        checked["columns"] = names = columns.split(",")
        if not all(names) or len(set(names)) < len(names):
            raise UserError(f"--columns: {columns!r} has a name twice or an empty one; name each column once")
    return checked


def doubt(recipe: Recipe, source: Path, encoding: str | None) -> str | None:
    """Note that a file read in the recipe's encoding, or in that of the command line, seems to be UTF-8; None where it
    does not."""
    used = recipe.data.encoding
    if (
        encoding is not None
        or used is None
        or detect_kind(source) in BINARY_KINDS
        or codecs.lookup(used).name.startswith("utf")
    ):
        return None
    if not has_utf8_letters(source):
        return None
    return f"{source} is read as {used}, as the run's recipe says, and seems to be UTF-8: --encoding utf-8 if it is"
