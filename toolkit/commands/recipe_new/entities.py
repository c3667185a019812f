"""Find texts and their entities (NER) among the columns of a table."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from toolkit.commands.recipe_new.look import DataFiles
from toolkit.files.nested_columns import flattened
from toolkit.files.written_values import value_of
from toolkit.tasks.token_classification.rows import TaggedText, counting_in, tag_names, tagged
from toolkit.tasks.token_classification.tags import entities

#: Rows by which columns are judged.
JUDGED = 100


def entity_columns(found: DataFiles) -> tuple[str, str] | None:
    """Return the columns of texts, or tokens, and of their entities, or tags; None if there are none. Of several with
    tags, the one that is called after entities is taken."""
    if found.rows is None or found.classes:
        return None
    first = _first_rows(found)
    return next((pair for pair in _pairs(first) if _have_entities(first, *pair)), None)


def entity_problem(found: DataFiles) -> str:
    """Describe what the column that is nearest to entities lacks; empty if no column holds lists."""
    if found.rows is None or found.classes:
        return ""
    first = _first_rows(found)
    for text, label in _pairs(first):
        try:
            _tagged(first, text, label)
        except ValueError as error:
            if all(isinstance(value, str | list) for value in first[text]):
                return f"; with {text} and {label}, the first row that does not fit {error}"
    return ""


def _first_rows(found: DataFiles) -> Any:
    assert found.rows is not None
    return flattened(found.rows.select(range(min(JUDGED, len(found.rows)))))


def _pairs(first: Any) -> Iterator[tuple[str, str]]:
    """Yield columns of texts and of lists; columns whose names say that they hold entities come first."""
    named = sorted(first.column_names, key=lambda name: not ("ner" in name.lower() or "entit" in name.lower()))
    labels = [name for name in named if any(map(_is_list, first[name]))]
    return ((text, label) for label in labels for text in named if text != label)


def _is_list(value: Any) -> bool:
    return isinstance(value_of(value) if isinstance(value, str) else value, list)


def _have_entities(rows: Any, text: str, label: str) -> bool:
    """Return whether most rows are texts and entities, and some have entities."""
    tagged_rows = tagged_texts(rows, text, label)
    return 2 * len(tagged_rows) > len(rows) and any(entities(one.tags) for one in tagged_rows)


def tagged_texts(rows: Any, text: str, label: str) -> list[TaggedText]:
    """Return the texts of all rows that are not wrong; `recipe check` says what is wrong with the others."""
    found = []
    for read in _readers(rows, text, label):
        with contextlib.suppress(ValueError):
            found.append(read())
    return found


def _tagged(rows: Any, text: str, label: str) -> list[TaggedText]:
    return [read() for read in _readers(rows, text, label)]


def _readers(rows: Any, text: str, label: str) -> list[Callable[[], TaggedText]]:
    """Return a function for each row that reads its text and entities, or raises ValueError."""
    names, pairs = tag_names(rows, label), [(row[text], row[label]) for row in rows.select_columns([text, label])]
    counting = counting_in(pairs)
    return [partial(tagged, *pair, names, counting) for pair in pairs]
