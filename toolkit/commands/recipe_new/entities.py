"""Find texts and their entities (NER) among the columns of a table."""

from __future__ import annotations

from typing import Any

from toolkit.commands.recipe_new.look import DataFiles
from toolkit.files.written_values import value_of
from toolkit.tasks.token_classification.rows import TaggedText, tag_names, tagged
from toolkit.tasks.token_classification.tags import entities

#: Rows by which columns are judged.
JUDGED = 100


def entity_columns(found: DataFiles) -> tuple[str, str] | None:
    """Return the columns of texts, or tokens, and of their entities, or tags; None if there are none. Of several with
    tags, the one that is called after entities is taken."""
    if found.rows is None or found.classes:
        return None
    judged = found.rows[:JUDGED]
    named = sorted(judged, key=lambda name: not ("ner" in name.lower() or "entit" in name.lower()))
    labels = [name for name in named if any(map(_is_list, judged[name]))]
    pairs = ((text, label) for label in labels for text in named if text != label)
    first = found.rows.select(range(min(JUDGED, len(found.rows))))
    return next((pair for pair in pairs if _have_entities(first, *pair)), None)


def _is_list(value: Any) -> bool:
    return isinstance(value_of(value) if isinstance(value, str) else value, list)


def _have_entities(rows: Any, text: str, label: str) -> bool:
    try:
        return any(entities(one.tags) for one in _tagged(rows, text, label))
    except ValueError:
        return False


def tagged_texts(rows: Any, text: str, label: str) -> list[TaggedText]:
    """Return the texts of all rows, or of the first ones if others are wrong: `recipe check` says what is."""
    try:
        return _tagged(rows, text, label)
    except ValueError:
        return _tagged(rows.select(range(min(JUDGED, len(rows)))), text, label)


def _tagged(rows: Any, text: str, label: str) -> list[TaggedText]:
    names = tag_names(rows, label)
    return [tagged(row[text], row[label], names) for row in rows.select_columns([text, label])]
