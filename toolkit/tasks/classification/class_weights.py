"""Compute the weight of each label in the training loss from ``train.class_weights``: listed, or by frequency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.recipe.yaml_source import suggest
from toolkit.tasks.classification.label_names import join_names
from toolkit.terminal.progress import format_number

if TYPE_CHECKING:
    import datasets

    from toolkit.recipe.recipe import Recipe

KEY = "train.class_weights"
#: Limits of a weight. Beyond them, a batch could have a loss of 0 or one that overflows.
MIN_WEIGHT, MAX_WEIGHT = 1e-6, 1e6


def check_class_weights(recipe: Recipe) -> None:
    """Reject class weights for regression, and values that are not valid weights.

    Raises:
        UserError: a weight is wrong; the error names its line.
    """
    class_weights = recipe.train.class_weights
    if class_weights is None:
        return
    if recipe.data.problem_type == "regression":
        raise recipe.error(KEY, "the labels of regression are numbers, which have no classes; remove it")
    for label, weight in class_weights.items() if isinstance(class_weights, dict) else ():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not MIN_WEIGHT <= weight <= MAX_WEIGHT:
            expectation = f"a number from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}; one that is not named weighs 1"
            raise recipe.error(_key_path(label), f"{weight!r} is no weight of a label; it should be {expectation}")


def class_weights_of(recipe: Recipe, train: datasets.Dataset) -> np.ndarray | None:
    """Return the weight of each label in the training loss, (labels,) float32, or None for equal weights.

    With one label per text, ``balanced`` is scikit-learn's n / (k * count), for n texts and k labels that occur. With
    several, it weighs texts with a label against texts without it: (n - count) / count, as ``pos_weight``.

    Args:
        recipe: recipe of the run.
        train: training split with a column ``label``: an id, or a list of ids, for each row.

    Raises:
        UserError: a weight belongs to a label that does not exist.
    """
    class_weights = recipe.train.class_weights
    if class_weights is None:
        return None
    if isinstance(class_weights, dict):
        return _weights_by_name(recipe, class_weights, _label_names(train))
    counts = np.array(list(label_counts(train).values()))
    has_several_labels = recipe.data.problem_type == "multi_label"
    return (positive_weights if has_several_labels else balanced_weights)(counts, len(train)).astype(np.float32)


def label_counts(rows: datasets.Dataset) -> dict[str, int]:
    """Return the number of rows with each label, in the order of the ids; empty for a split without labels."""
    feature = rows.features.get("label")
    if not hasattr(getattr(feature, "feature", feature), "names"):
        return {}
    labels = rows["label"][:]
    ids = np.asarray([label for row in labels for label in row] if hasattr(feature, "feature") else labels, np.int64)
    names = _label_names(rows)
    return dict(zip(names, np.bincount(ids, minlength=len(names)).tolist(), strict=True))


def balanced_weights(counts: np.ndarray, total: int) -> np.ndarray:
    """Return n / (k * count) of each class.

    A class without texts has weight 1 and is not one of the k classes.

    Args:
        counts: number of texts of each class, (classes,).
        total: number of all texts, n.
    """
    return np.where(counts > 0, total / (np.count_nonzero(counts) * np.maximum(counts, 1)), 1.0)


def positive_weights(counts: np.ndarray, total: int) -> np.ndarray:
    """Return (n - count) / count of each label, or 1 if no text or every text has the label.

    Args:
        counts: number of texts with each label, (labels,).
        total: number of all texts, n.
    """
    has_both_classes = (counts > 0) & (counts < total)
    return np.where(has_both_classes, (total - counts) / np.maximum(counts, 1), 1.0)


def describe_class_weights(train: datasets.Dataset, class_weights: np.ndarray) -> str:
    """Return a line that lists the weights."""
    weights_text = join_names(
        f"{name} {format_number(weight)}" for name, weight in zip(_label_names(train), class_weights, strict=True)
    )
    return f"the training loss weighs labels: {weights_text}; validation and test losses do not"


def _weights_by_name(recipe: Recipe, class_weights: Mapping[str, Any], names: Sequence[str]) -> np.ndarray:
    """Return the weight of each label in the loss, float32 (labels,); 1 for labels without a weight.

    Args:
        recipe: recipe of the run, for errors.
        class_weights: weight of each named label.
        names: names of all labels, in the order of the ids.
    """
    for label in class_weights:
        if label not in names:
            suggestion = suggest(label, names) or f"; known: {join_names(names)}"
            raise recipe.error(_key_path(label), f"the data has no label of this name{suggestion}")
    return np.array([class_weights.get(name, 1.0) for name in names], np.float32)


def _label_names(train: datasets.Dataset) -> list[str]:
    """Return the names of a split's labels, in the order of their ids."""
    feature = train.features["label"]
    return getattr(feature, "feature", feature).names  # one label per text, or a list


def _key_path(label: str) -> tuple[str, ...]:
    """Return the recipe key of a label's weight."""
    return (*KEY.split("."), label)
