"""Find the columns of a table that hold the texts and the labels."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import datasets
import numpy as np

from toolkit.errors import UserError
from toolkit.recipe.yaml_source import suggest

#: Common names of label columns and of text columns.
LABEL_NAMES = re.compile(
    r"label|labels|category|categories|class|target|sentiment|intent|topic|rating|stars?|score|polarity|genre|emotion"
    r"|language|lang|spam|y|tag|type|kategorie|klasse|étiquette|etiqueta|clase|类别|标签",
    re.IGNORECASE,
)
TEXT_NAMES = re.compile(
    r"text|texts|sentence|review|content|body|comment|message|tweet|question|document|description|utterance|文本|内容",
    re.IGNORECASE,
)
#: Values of a column that identifies rows and tells nothing of them.
IDENTIFIER = re.compile(r"https?://\S+|[0-9a-f]{8}-[0-9a-f-]{20,}|[0-9a-fA-F]{16,}|[\d\W]*")
#: A column with more distinct values holds labels only if its name or the user says so.
MOST_LABELS = 1000
#: Rows sampled to tell texts from identifiers.
SAMPLE = 2000


@dataclass(frozen=True)
class Columns:
    """Attributes:
    text, label: column names.
    counts: label -> its number of rows, the most frequent first.
    others: columns that are not used.
    """

    text: str
    label: str
    counts: dict[str, int]
    others: list[str]


def choose_columns(where: str, rows: datasets.Dataset, text: str | None, label: str | None) -> Columns:
    """Find the two columns.

    Args:
        where: the file, for errors.
        text, label: names that the user gave.

    Raises:
        UserError: one is not found, is not there, or holds nothing that can be learned.
    """
    names = rows.column_names
    for name in (text, label):
        if name is not None and name not in names:
            raise UserError(f"{where}: has no column {name}{suggest(name, names)}; it has {', '.join(names)}")
    if text is not None and text == label:
        raise UserError(f"{where}: {text} cannot be both the text and the label; name two columns")
    sample = rows.select(np.linspace(0, len(rows) - 1, min(SAMPLE, len(rows))).astype(int).tolist())
    if text is None:
        text = _text(where, sample, label)
    if label is None:
        label = _label(where, rows, text)
    counts = _counts(rows, label)
    if len(counts) < 2:
        raise UserError(
            f"{where}: all {len(rows)} rows have the same {label}; classification needs two labels or more "
            "(another column: --label NAME)"
        )
    if len(counts) == len(rows):
        raise UserError(f"{where}: each of the {len(rows)} rows has another {label}, so it is no label; set --label")
    return Columns(text, label, counts, [name for name in names if name not in (text, label)])


def _text(where: str, sample: datasets.Dataset, label: str | None) -> str:
    lengths: dict[str, float] = {}
    for name in sample.column_names:
        values = sample.select_columns([name])[:][name]
        if name == label or not all(isinstance(value, str) for value in values):
            continue
        if np.mean([bool(IDENTIFIER.fullmatch(value.strip())) for value in values]) < 0.5:
            mean = float(np.mean([len(value) for value in values]))
            lengths[name] = mean * (2 if TEXT_NAMES.fullmatch(name.strip()) else 1)
    if not lengths:
        raise UserError(f"{where}: has no column of texts; it has {', '.join(sample.column_names)}")
    return max(lengths, key=lambda name: lengths[name])


def _label(where: str, rows: datasets.Dataset, text: str) -> str:
    found: dict[str, tuple[bool, int]] = {}
    single = []
    for name in rows.column_names:
        if name == text or not _could_be_labels(rows, name):
            continue
        number = len(rows.unique(name))
        is_named = bool(LABEL_NAMES.fullmatch(name.strip().replace("_id", "")))
        if number == 1:
            single.append(name)
        elif number <= min(MOST_LABELS, len(rows) // 2) or (is_named and number < len(rows)):
            found[name] = (not is_named, number)
    if found:
        return min(found, key=lambda name: found[name])
    others = [name for name in rows.column_names if name != text]
    if single:
        raise UserError(f"{where}: all {len(rows)} rows have the same {single[0]}; there is nothing to tell apart")
    why = f"every value of {', '.join(others)} is another, or missing" if others else "there is no other column"
    raise UserError(f"{where}: has no column of labels beside the texts in {text}: {why}; name one with --label")


def _could_be_labels(rows: datasets.Dataset, name: str) -> bool:
    """Whether each row of a column holds a word or whole number."""
    kind = rows.features[name]
    if isinstance(kind, datasets.ClassLabel):
        return True
    whole = ("string", "large_string", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
    if getattr(kind, "dtype", None) not in whole or not isinstance(kind, datasets.Value):
        return False
    values: Any = rows.with_format("arrow").select_columns([name])[:][name]
    return not values.null_count and not any(value == "" for value in rows.unique(name))


def _counts(rows: datasets.Dataset, label: str) -> dict[str, int]:
    values = rows.select_columns([label])[:][label]
    if any(isinstance(value, (list, dict)) for value in values):
        raise UserError(f"the column {label} holds lists; a label is a word or a whole number")
    counted = Counter(str(value) for value in values)
    return dict(counted.most_common())
