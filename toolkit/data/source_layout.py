"""Encoding and delimiter of a file for `toolkit predict --input`: the command line's, else the run's recipe's."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from toolkit.errors import UserError
from toolkit.files.csv_rows import usual_delimiter
from toolkit.files.tables import BINARY, kind_of
from toolkit.files.text_encoding import has_letters_of_utf8, is_encoding
from toolkit.recipe.keys import DELIMITER

if TYPE_CHECKING:
    from toolkit.recipe.recipe import Recipe


class SourceLayout(NamedTuple):
    """How a file is written.

    Attributes:
        delimiter: of csv; None for one that fits.
    """

    encoding: str = "utf-8"
    delimiter: str | None = None


def source_layout(recipe: Recipe, source: Path, encoding: str | None, delimiter: str | None) -> SourceLayout:
    """Encoding and delimiter of a file to label.

    Args:
        encoding, delimiter: those of the command line, if there are any. A delimiter may be written as ``\\t``.

    Raises:
        UserError: one that is invalid, or that the kind of file lacks.
    """
    kind = kind_of(source)
    if encoding is not None:
        if kind in BINARY:
            raise UserError(f"--encoding: {source} is {kind}, which has none; remove it")
        if not is_encoding(encoding):
            raise UserError(f"--encoding: no encoding of text is called {encoding!r}; set one such as cp1252 or utf-16")
    if delimiter is not None:
        delimiter = "\t" if delimiter == "\\t" else delimiter
        if kind != "csv":
            raise UserError(f"--delimiter: is for csv, not for {source}; remove it")
        if not DELIMITER.fullmatch(delimiter):
            right = "one character that is no letter or figure, such as ';' or '\\t' (a tab)"
            raise UserError(f"--delimiter: {delimiter!r} is none; it should be {right}")
    elif kind == "csv" and usual_delimiter(source) == ",":
        delimiter = recipe.data.delimiter
    if kind in BINARY:
        return SourceLayout()
    return SourceLayout(encoding or recipe.data.encoding or "utf-8", delimiter)


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
