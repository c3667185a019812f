"""`predictions-SPLIT.csv` of a run folder: the best model's output for each example of a split, a row for each.

Written and read row by row, so that a split of any size takes little memory; the columns are the task's.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from toolkit.files.csv_rows import long_fields
from toolkit.files.whole import replacing
from toolkit.run_folder.read import reading

#: What to do about a damaged file.
REMEDY = "remove it: toolkit report writes it again"
#: The splits that a model is measured on, in the order in which a reader wants them.
SPLITS = ("test", "validation")


def predictions_file(folder: Path, split: str) -> Path:
    """Where the predictions of a split lie in a run folder."""
    return folder / f"predictions-{split}.csv"


def write_predictions(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the rows, the keys of the first as the header; a reader sees the old file or the whole new one.

    A NUL, which readers of CSV refuse, and a lone surrogate, which UTF-8 cannot hold, are written as backslash escapes.

    Raises:
        WriteFailed: the system refuses it; the old file stays.
    """
    with replacing(path, errors="backslashreplace") as file:
        writer = None
        for row in rows:
            if writer is None:
                writer = csv.DictWriter(file, [_cell(name) for name in row])
                writer.writeheader()
            writer.writerow({_cell(name): _cell(value) for name, value in row.items()})


def read_predictions(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a file of predictions, one after another, as text. Raises UserError if it is missing or damaged."""
    with reading(path, REMEDY), long_fields(), path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, strict=True):
            if None in row or None in row.values():
                raise ValueError("a row has more or fewer cells than the header")
            yield row


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value.replace("\0", "\\x00") if isinstance(value, str) else value
