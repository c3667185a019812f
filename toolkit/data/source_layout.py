"""Layout of a file for `toolkit predict --input`: the command line's, else the run's recipe's."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.files.plain import UnreadableFile
from toolkit.errors import UserError
from toolkit.files.csv_rows import QUOTES, Layout, first_rows, likely_delimiter, usual_delimiter
from toolkit.files.tables import BINARY, kind_of, sound
from toolkit.files.text_encoding import has_letters_of_utf8, is_encoding
from toolkit.recipe.keys import DELIMITER

if TYPE_CHECKING:
    from toolkit.recipe.recipe import Recipe


def source_layout(recipe: Recipe, source: Path, **given: str | None) -> tuple[str | None, Layout]:
    """Delimiter of a file to label, None for the one that fits, and the rest of its layout.

    Args:
        given: ``encoding``, ``delimiter``, ``quote`` and ``columns`` of the command line, as far as there are any. A
            delimiter may be written as ``\\t``, columns with commas.

    Raises:
        UserError: one that is invalid, or that the kind of file lacks.
    """
    kind = kind_of(source)
    layout = checked_layout({name: value for name, value in given.items() if value is not None}, kind, source)
    if kind in BINARY:
        return None, Layout()
    delimiter = layout.get("delimiter")
    if delimiter is None and kind == "csv" and usual_delimiter(source) == ",":
        delimiter = recipe.data.delimiter
    data = recipe.data
    columns = layout.get("columns") or data.columns
    chosen = Layout(
        encoding=layout.get("encoding") or data.encoding or "utf-8",
        quote=layout.get("quote") or data.quote or '"',
        columns=tuple(columns) if columns else None,
    )
    if "columns" not in layout and data.columns and kind == "csv" and _has_header(recipe, source, delimiter, chosen):
        chosen = replace(chosen, columns=None)
    return delimiter, chosen


def checked_layout(given: Mapping[str, str], kind: str, source: Path) -> dict[str, Any]:
    """Return options of the command line as the keys of a recipe have them.

    Args:
        given: options of :func:`source_layout`.

    Raises:
        UserError: as :func:`source_layout`.
    """
    checked: dict[str, Any] = dict(given)
    if (encoding := given.get("encoding")) is not None:
        if kind in BINARY:
            raise UserError(f"--encoding: {source} is {kind}, which has none; remove it")
        if not is_encoding(encoding):
            raise UserError(f"--encoding: no encoding of text is called {encoding!r}; set one such as cp1252 or utf-16")
    for option in ("delimiter", "quote", "columns"):
        if option in given and kind != "csv" and (option, kind) != ("columns", "json"):
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


def _has_header(recipe: Recipe, source: Path, delimiter: str | None, layout: Layout) -> bool:
    """Whether a file has a header, though the recipe's have none: its first row has the names that the recipe gives."""
    try:
        with sound(source):
            plain = replace(layout, columns=None, delimiter="")
            plain = replace(plain, delimiter=delimiter or likely_delimiter(source, plain, recipe.data.text_columns))
            header = next(iter(first_rows(source, plain, 1)), [])
    except (UnreadableFile, OSError):
        return False  # the reader says what is wrong
    return set(recipe.data.text_columns) <= set(header)


def doubt(recipe: Recipe, source: Path, encoding: str | None) -> str | None:
    """Note that a file read in the recipe's encoding seems to be UTF-8; None where it does not.

    Args:
        encoding: that of the command line, if there is one.
    """
    used = recipe.data.encoding
    if encoding is not None or used is None or kind_of(source) in BINARY or codecs.lookup(used).name.startswith("utf"):
        return None
    if not has_letters_of_utf8(source):
        return None
    return f"{source} is read as {used}, as the run's recipe says, and seems to be UTF-8: --encoding utf-8 if it is"
