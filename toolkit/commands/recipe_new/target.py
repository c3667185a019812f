"""What a column can be predicted as: one label per text, several, or a number."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import datasets

from toolkit.files.nested_columns import read_column
from toolkit.files.written_values import parse_value
from toolkit.tasks.classification.label_lists import NO, YES

#: A number, as it is written.
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
#: A number in another notation: with a unit, a decimal comma, or a separator of thousands.
ODD_NUMBER = re.compile(r"\D{0,3}\d[\d.,' ]*\D{0,3}")
#: A number with a comma; such values are ids of labels only if the column's name is a plural.
COMMA_NUMBER = re.compile(r"[+-]?\d+,\d+|\d{1,3}(,\d{3})+(\.\d+)?", re.ASCII)
PLURAL_NAMES = re.compile(r".*(labels|tags|classes|categories|topics|genres|emotions|ids|types)", re.IGNORECASE)
#: Names of columns of amounts, whose integers are not classes if they have more values than this.
NUMBER_NAMES = re.compile(
    r"score|similarity|relatedness|price|amount|value|cost|rating|stars|age|year|salary|points|target|y"
    r"|count|likes|views|votes|upvotes|minutes|duration",
    re.IGNORECASE,
)
MAX_GRADES = 20
#: What tools write for a missing value. It may be a label as well.
MAYBE_MISSING = re.compile(r"(?i:nan|null|n/a|#n/a|<na>|nat)|None")
#: Separators of several labels in a cell; a blank only between whole numbers.
SEPARATORS = (",", ";", "|", " ")


@dataclass(frozen=True)
class Target:
    """Labels or numbers of a column that can be predicted.

    Attributes:
        columns: name of the column, or names of several columns of 0 and 1.
        problem: value of ``data.problem_type``.
        counts: label or number -> its number of rows, the most frequent first.
        rows: number of rows with a value.
        separator: separator between several labels in a cell; None if a cell has a single label.
        absent: indices of the rows without a value.
        words: word that may mean a missing label -> indices of its rows.
        none: number of rows with none of several labels.
        odd: a value that is a number in another notation; None if there is none.
    """

    columns: list[str]
    problem: str
    counts: dict[str, int]
    rows: int
    separator: str | None = None
    absent: list[int] = field(default_factory=list)
    words: dict[str, list[int]] = field(default_factory=dict)
    none: int = 0
    odd: str | None = None


def find_target(
    rows: datasets.Dataset, name: str, problem: str | None = None, *, is_named: bool = False
) -> Target | None:
    """Return the target of a column if its values can be predicted; otherwise None.

    Args:
        rows: rows of the table.
        name: name of the column.
        problem: required problem type; None for any type.
        is_named: whether the user named the column.
    """
    values = _read_values(rows, name)
    absent = [place for place, value in enumerate(values) if value is None or value == ""]
    present = [value for value in values if value not in (None, "")]
    if not present:
        return None
    lists = [parse_value(value) if isinstance(value, str) else value for value in present]
    if all(isinstance(value, list) for value in lists):
        return (
            _build_multi_label_target([name], lists, None, absent) if _allows_problem("multi_label", problem) else None
        )
    if any(isinstance(value, list | dict) for value in present):
        return None
    words: dict[str, list[int]] = {}
    for place, value in enumerate(values):
        if value is not None and MAYBE_MISSING.fullmatch(value):
            words.setdefault(value, []).append(place)
    known_values = [value for value in present if value not in words]
    if _allows_problem("regression", problem) and _are_amounts(
        known_values, name, is_named=is_named or problem is not None, problem=problem
    ):
        return Target([name], "regression", _count_values(known_values), len(known_values), absent=absent, words=words)
    odd = None if problem == "multi_label" else _find_odd_number(known_values, name)
    separator = find_separator(set(known_values)) if odd is None and _allows_problem("multi_label", problem) else None
    if separator is not None:
        cells = [[part.strip() for part in (value or "").split(separator) if part.strip()] for value in values]
        return _build_multi_label_target([name], cells, separator, [])
    if problem in (None, "single_label"):
        return Target([name], "single_label", _count_values(present), len(present), absent=absent, words=words, odd=odd)
    return None


def build_separated_target(rows: datasets.Dataset, name: str, separator: str) -> Target:
    """Return the target of a column of several labels with this separator between them."""
    cells = [[part for part in (value or "").split(separator) if part] for value in _read_values(rows, name)]
    counts = _count_values([label for cell in cells for label in dict.fromkeys(cell)])
    return Target([name], "multi_label", counts, len(cells), separator, none=sum(not cell for cell in cells))


def find_indicator_target(rows: datasets.Dataset, names: Iterable[str]) -> Target | None:
    """Return the target of the columns that hold only 0 and 1, one column for each label; None if fewer than two exist.

    Args:
        rows: rows of the data.
        names: columns to consider.
    """
    values_by_column = {name: values for name in names if _is_indicator(values := _read_values(rows, name))}
    if len(values_by_column) < 2:
        return None
    table = list(zip(*values_by_column.values(), strict=True))
    absent = [place for place, row in enumerate(table) if any(value in (None, "") for value in row)]
    cells = [
        [name for name, value in zip(values_by_column, row, strict=True) if value.lower() in YES]
        for row in table
        if None not in row and "" not in row
    ]
    several = _build_multi_label_target(list(values_by_column), cells, None, absent)
    return several and replace(several, counts={name: several.counts.get(name, 0) for name in values_by_column})


def _is_indicator(values: Sequence[Any]) -> bool:
    """Whether a column holds 0 and 1 alone, but for missing values."""
    known_values = {value.lower() if isinstance(value, str) else None for value in values if value not in (None, "")}
    return bool(known_values) and known_values <= YES | NO


def find_non_indicator(rows: datasets.Dataset, names: Iterable[str]) -> str | None:
    """Return the first of the columns that holds another value than 0 and 1; None if all hold only these.

    Args:
        rows: rows of the data.
        names: columns to consider.
    """
    return next((name for name in names if not _is_indicator(_read_values(rows, name))), None)


def find_separator(values: set[str]) -> str | None:
    """Find what separates several labels in one cell: the parts are fewer than the cells, as they occur again."""
    for mark in SEPARATORS:
        cells = [[part.strip() for part in value.split(mark) if part.strip()] for value in values]
        parts = {part for cell in cells for part in cell}
        words = mark == " " and not all(part.isdecimal() for part in parts)
        if any(len(cell) > 1 for cell in cells) and len(parts) < len(values) and not words:
            return mark
    return None


def _find_odd_number(values: Sequence[str], name: str) -> str | None:
    """One of values that are numbers but not written as such; None of others, and of ids of labels."""
    nearly = bool(NUMBER_NAMES.fullmatch(name.strip())) and all(ODD_NUMBER.fullmatch(value) for value in values)
    has_commas = not PLURAL_NAMES.fullmatch(name.strip()) and all(COMMA_NUMBER.fullmatch(value) for value in values)
    odd = next((value for value in values if not NUMBER.fullmatch(value)), None)
    return odd if nearly or has_commas else None


def _allows_problem(kind: str, problem: str | None) -> bool:
    """Return whether the user's choice of the problem type, None for any, allows this type."""
    return problem in (None, kind)


def _read_values(rows: datasets.Dataset, name: str) -> list[Any]:
    """Return the values of a column as text without surrounding blanks.

    Lists stay lists, and a missing value is None.
    """
    kind = (rows.info.features or {}).get(name)  # `rows.features` copies all
    values = read_column(rows, name)
    if isinstance(kind, datasets.ClassLabel):
        return [None if value in (None, -1) else kind.int2str(value) for value in values]
    if getattr(kind, "dtype", "").startswith("float") and all(v is None or v != v or v.is_integer() for v in values):
        values = [None if value is None or value != value else int(value) for value in values]
    return [
        value if value is None or isinstance(value, list | dict) else None if value != value else _format_value(value)
        for value in values
    ]


def _format_value(value: Any) -> str:
    """Return a label as text, with ``true`` and ``false`` for booleans."""
    return str(value).lower() if isinstance(value, bool) else str(value).strip()


def _build_multi_label_target(
    label_columns: list[str], cells: Sequence[list[Any]], separator: str | None, absent: list[int]
) -> Target | None:
    """Return the target of texts with several labels; None if a label is not a word or a whole number.

    Args:
        label_columns: columns of the labels.
        cells: labels of each row.
        separator: text between two labels in a cell; None if a cell holds a list.
        absent: indices of rows without a value.
    """
    if not all(isinstance(label, str | int) for cell in cells for label in cell):
        return None
    counts = _count_values([label for cell in cells for label in dict.fromkeys(str(label).strip() for label in cell)])
    return Target(
        label_columns, "multi_label", counts, len(cells), separator, absent, none=sum(not cell for cell in cells)
    )


def _count_values(values: Sequence[str]) -> dict[str, int]:
    """Return the number of occurrences of each value, the most frequent value first."""
    return dict(Counter(values).most_common())


def _are_amounts(values: Sequence[str], name: str, *, is_named: bool, problem: str | None) -> bool:
    """Return whether values are numbers to predict, not names of classes.

    They are if they have fractions, or if the column's name means a number and it has many different integers.

    Args:
        values: values of a column as texts.
        name: name of the column.
        is_named: whether the user named the column.
        problem: problem type that the user chose; None if the user left the choice to the program.
    """
    if not values or not all(NUMBER.fullmatch(value) for value in values):
        return False
    numbers = [float(value) for value in values]
    if problem == "regression" or not all(number.is_integer() for number in numbers):
        return True
    distinct = len(set(numbers))
    counted_up = numbers == sorted(numbers) and distinct == len(numbers)
    if bool(NUMBER_NAMES.fullmatch(name.strip())):
        return distinct > MAX_GRADES and not (counted_up and not is_named)
    return is_named and distinct > len(numbers) / 2 and not counted_up
