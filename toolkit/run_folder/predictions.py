"""`predictions-SPLIT.csv` of a run folder: the best model's predictions, with a row for each example of a split.

The file is written and read row by row, so that a large split takes little memory. The task defines the columns.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from toolkit.files.csv_rows import allow_long_fields
from toolkit.files.whole import open_replacement
from toolkit.run_folder.read import reading

#: Advice in messages about a damaged file.
REMEDY = "remove it: toolkit report writes it again"
#: Splits for measuring a model, the most important first.
SPLITS = ("test", "validation")


def predictions_file(folder: Path, split_name: str) -> Path:
    """Return the path of the predictions for a split in a run folder."""
    return folder / f"predictions-{split_name}.csv"


def write_predictions(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write predictions atomically. The keys of the first row are the header.

    NUL characters, which readers of CSV reject, and lone surrogates, which UTF-8 cannot encode, become backslash
    escapes.

    Raises:
        WriteError: the system cannot write the file; the old file stays.
    """
    with open_replacement(path, errors="backslashreplace") as file:
        writer = None
        for row in rows:
            if writer is None:
                writer = csv.DictWriter(file, [_format_cell(name) for name in row])
                writer.writeheader()
            writer.writerow({_format_cell(name): _format_cell(value) for name, value in row.items()})


def read_predictions(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a file of predictions, with all values as text.

    Raises:
        UserError: the file is missing or damaged.
    """
    with reading(path, REMEDY), allow_long_fields(), path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, strict=True):
            if None in row or None in row.values():
                raise ValueError("a row has more or fewer cells than the header")
            yield row


def _format_cell(value: Any) -> Any:
    """Return a value for a cell of the predictions file: numbers with six digits, texts without null characters."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return value.replace("\0", "\\x00") if isinstance(value, str) else value
