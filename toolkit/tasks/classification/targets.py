"""Targets other than one label per text: several labels, or a number (``data.problem_type``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Value
from datasets import Sequence as ListOf

from toolkit.data.batches import IGNORED_LABEL
from toolkit.recipe.recipe import Recipe
from toolkit.tasks.classification.label_lists import label_lists, own_names
from toolkit.tasks.classification.label_names import ids_by_name, listed, named, note_similar, renamed

KEY = "data.label"


def with_label_lists(recipe: Recipe, splits: DatasetDict) -> dict[str, tuple[list[list[int]], Any]]:
    """Return split -> the ids of each row's labels, sorted and unique, and their feature.

    Raises:
        UserError: a column that holds no lists of words or whole numbers, or a label that training does not have.
    """
    values = {split: label_lists(recipe, split, rows) for split, rows in splits.items()}
    seen = {value for row in values["train"] for value in row}
    if len(seen) < 2:
        raise recipe.error(KEY, f"the train split has {len(seen)} labels in all; classification needs two or more")
    own = own_names(recipe, splits["train"])
    names = named(recipe, seen) if own is None else renamed(recipe, dict(enumerate(own)))
    ids, unique = ids_by_name(names)
    note_similar(recipe, unique)
    for split, lists in values.items():
        for number, row in enumerate(lists, 1):
            if strange := sorted(map(str, set(row) - seen)):
                wrong = f"row {number} of the {split} split has the label {strange[0]}, which no row of train has"
                raise recipe.error(KEY, f"{wrong}; known: {listed(names[value] for value in ids if value in seen)}")
    feature = ListOf(ClassLabel(names=unique))
    return {
        split: ([sorted({ids[value] for value in row}) for row in lists], feature) for split, lists in values.items()
    }


def with_numbers(recipe: Recipe, splits: DatasetDict) -> dict[str, tuple[list[float], Any]]:
    """Return split -> each row's number, rounded to float32, and their feature.

    Raises:
        UserError: a column that holds no numbers, or the same one throughout training.
    """
    (column,) = recipe.data.label_columns
    found = {split: _numbers(recipe, split, rows, column) for split, rows in splits.items()}
    if len(set(found["train"])) < 2:
        raise recipe.error(KEY, f"all {len(found['train'])} rows of the train split have the same {column}")
    return {split: (numbers, Value("float32")) for split, numbers in found.items()}


def _numbers(recipe: Recipe, split: str, rows: Dataset, column: str) -> list[float]:
    if isinstance(rows.features[column], ClassLabel):
        raise recipe.error("data.problem_type", f"regression is of numbers, and the column {column} holds named labels")
    numbers = []
    for number, value in enumerate(rows.select_columns([column])[:][column], 1):
        place = f"row {number} of the {split} split has {value!r} as its {column}"
        try:
            figure = math.nan if isinstance(value, bool) else float(np.float32(float(value)))
        except (TypeError, ValueError, OverflowError):
            figure = math.nan
        if not math.isfinite(figure):
            raise recipe.error(KEY, f"{place}; it should be a number")
        if figure == IGNORED_LABEL:
            raise recipe.error(KEY, f"{place}, which marks a label that is ignored; divide all numbers by 10, say")
        numbers.append(figure)
    return numbers


def multi_hot(rows: Sequence[Sequence[int]], count: int) -> np.ndarray:
    """Encode lists of ids as float32 (rows, count): 1 where a row has the label."""
    found = np.zeros((len(rows), count), np.float32)
    for index, row in enumerate(rows):
        found[index, list(row)] = 1
    return found
