"""Find texts and their entities (NER) among the columns of a table."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from toolkit.commands.recipe_new.look import DataFiles
from toolkit.files.nested_columns import flatten_columns
from toolkit.files.written_values import parse_value
from toolkit.tasks.token_classification.rows import TaggedText, counting_in, tag_names, tag_row
from toolkit.tasks.token_classification.tags import entities

#: Number of first rows that decide about the columns.
JUDGED_ROWS = 100


def find_entity_columns(data_files: DataFiles) -> tuple[str, str] | None:
    """Return the columns of texts, or tokens, and of their entities, or tags; None if there are none.

    Of several columns with tags, a column that is named after entities is preferred.

    Args:
        data_files: facts about the files.
    """
    if data_files.rows is None or data_files.classes:
        return None
    first = _first_rows(data_files)
    return next((pair for pair in _list_column_pairs(first) if _have_entities(first, *pair)), None)


def describe_entity_problem(data_files: DataFiles) -> str:
    """Describe the first row that does not fit as a text with entities; empty if no column holds lists.

    Args:
        data_files: facts about the files.
    """
    if data_files.rows is None or data_files.classes:
        return ""
    first = _first_rows(data_files)
    for text, label in _list_column_pairs(first):
        try:
            _read_all_tagged(first, text, label)
        except ValueError as error:
            if all(isinstance(value, str | list) for value in first[text]):
                return f"; with {text} and {label}, the first row that does not fit {error}"
    return ""


def _first_rows(data_files: DataFiles) -> Any:
    """Return the first :data:`JUDGED_ROWS` rows, with nested columns flattened.

    Args:
        data_files: facts about the files.
    """
    assert data_files.rows is not None
    return flatten_columns(data_files.rows.select(range(min(JUDGED_ROWS, len(data_files.rows)))))


def _list_column_pairs(first_rows: Any) -> Iterator[tuple[str, str]]:
    """Yield pairs of a text column and a list column; columns that are named after entities come first."""
    ordered_names = sorted(
        first_rows.column_names, key=lambda name: not ("ner" in name.lower() or "entit" in name.lower())
    )
    labels = [name for name in ordered_names if any(map(_is_list, first_rows[name]))]
    return ((text, label) for label in labels for text in ordered_names if text != label)


def _is_list(value: Any) -> bool:
    """Return whether a value is a list, or the text of a list."""
    return isinstance(parse_value(value) if isinstance(value, str) else value, list)


def _have_entities(rows: Any, text: str, label: str) -> bool:
    """Return whether most rows are texts and entities, and some have entities."""
    tagged_rows = read_tagged_texts(rows, text, label)
    return 2 * len(tagged_rows) > len(rows) and any(entities(row.tags) for row in tagged_rows)


def read_tagged_texts(rows: Any, text: str, label: str) -> list[TaggedText]:
    """Return the tagged texts of all valid rows; `recipe check` reports the faults of the other rows."""
    tagged_rows = []
    for read in _make_readers(rows, text, label):
        with contextlib.suppress(ValueError):
            tagged_rows.append(read())
    return tagged_rows


def _read_all_tagged(rows: Any, text: str, label: str) -> list[TaggedText]:
    """Return the tagged text of each row.

    Args:
        rows: rows to read.
        text: column of the texts.
        label: column of the entities or tags.
    """
    return [read() for read in _make_readers(rows, text, label)]


def _make_readers(rows: Any, text: str, label: str) -> list[Callable[[], TaggedText]]:
    """Return a function for each row that reads its text and entities, or raises ValueError."""
    names, pairs = tag_names(rows, label), [(row[text], row[label]) for row in rows.select_columns([text, label])]
    counting = counting_in(pairs)
    return [partial(tag_row, *pair, names, counting) for pair in pairs]
