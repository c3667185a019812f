"""Read targets other than one label per text: several labels, or a number (``data.problem_type``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Value
from datasets import Sequence as ListOf

from toolkit.data.batches import IGNORED_LABEL
from toolkit.recipe.recipe import Recipe
from toolkit.tasks.classification.label_lists import label_lists, stored_names
from toolkit.tasks.classification.label_names import ids_by_name, join_names, name_labels, note_similar, rename_labels

KEY = "data.label"


def encode_label_lists(recipe: Recipe, splits: DatasetDict) -> dict[str, tuple[list[list[int]], Any]]:
    """Return the label ids of each row, sorted and unique, and their feature, by split.

    Raises:
        UserError: a column does not contain lists of words or whole numbers, or a label does not occur in training.
    """
    values = {split_name: label_lists(recipe, split_name, rows) for split_name, rows in splits.items()}
    train_labels = {value for row_labels in values["train"] for value in row_labels}
    if len(train_labels) < 2:
        raise recipe.error(
            KEY, f"the train split has {len(train_labels)} labels in all; classification needs two or more"
        )
    own_names = stored_names(recipe, splits["train"])
    names = (
        name_labels(recipe, train_labels) if own_names is None else rename_labels(recipe, dict(enumerate(own_names)))
    )
    ids, unique_names = ids_by_name(names)
    note_similar(recipe, unique_names)
    for split_name, lists in values.items():
        for row_number, row_labels in enumerate(lists, 1):
            if unknown := sorted(map(str, set(row_labels) - train_labels)):
                problem = (
                    f"row {row_number} of the {split_name} split has the label {unknown[0]}, which no row of train has"
                )
                raise recipe.error(
                    KEY, f"{problem}; known: {join_names(names[value] for value in ids if value in train_labels)}"
                )
    feature = ListOf(ClassLabel(names=unique_names))
    return {
        split_name: ([sorted({ids[value] for value in row_labels}) for row_labels in lists], feature)
        for split_name, lists in values.items()
    }


def read_numbers_of_splits(recipe: Recipe, splits: DatasetDict) -> dict[str, tuple[list[float], Any]]:
    """Return the number of each row, rounded to float32, and its feature, by split.

    Raises:
        UserError: a column contains something other than numbers, or all training rows have the same number.
    """
    (column,) = recipe.data.label_columns
    numbers_by_split = {
        split_name: _read_numbers(recipe, split_name, rows, column) for split_name, rows in splits.items()
    }
    if len(set(numbers_by_split["train"])) < 2:
        raise recipe.error(KEY, f"all {len(numbers_by_split['train'])} rows of the train split have the same {column}")
    return {split_name: (numbers, Value("float32")) for split_name, numbers in numbers_by_split.items()}


def _read_numbers(recipe: Recipe, split_name: str, rows: Dataset, column: str) -> list[float]:
    """Return the numbers of a column, rounded to float32, and reject all other values.

    Args:
        recipe: recipe of the run, for errors.
        split_name: name of the split, for errors.
        rows: rows of the split.
        column: column of the numbers.
    """
    if isinstance(rows.features[column], ClassLabel):
        raise recipe.error("data.problem_type", f"regression is of numbers, and the column {column} holds named labels")
    numbers = []
    for row_number, value in enumerate(rows.select_columns([column])[:][column], 1):
        problem = f"row {row_number} of the {split_name} split has {value!r} as its {column}"
        try:
            target = math.nan if isinstance(value, bool) else float(np.float32(float(value)))
        except (TypeError, ValueError, OverflowError):
            target = math.nan
        if not math.isfinite(target):
            raise recipe.error(KEY, f"{problem}; it should be a number")
        if target == IGNORED_LABEL:
            raise recipe.error(KEY, f"{problem}, which marks a label that is ignored; divide all numbers by 10, say")
        numbers.append(target)
    return numbers


def multi_hot(label_lists: Sequence[Sequence[int]], num_labels: int) -> np.ndarray:
    """Encode lists of label ids as float32 (rows, num_labels): 1 if a row has the label, and 0 otherwise."""
    encoding = np.zeros((len(label_lists), num_labels), np.float32)
    for index, label_ids in enumerate(label_lists):
        encoding[index, list(label_ids)] = 1
    return encoding
