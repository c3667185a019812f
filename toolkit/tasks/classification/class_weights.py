"""``train.class_weights``: the weight of each label in the training loss, given or by how rare it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.recipe.yaml_source import suggest
from toolkit.tasks.classification.label_names import listed
from toolkit.terminal.progress import format_number

if TYPE_CHECKING:
    import datasets

    from toolkit.recipe.recipe import Recipe

KEY = "train.class_weights"
#: A weight beyond these would leave a batch with no loss, or one that overflows.
LEAST, MOST = 1e-6, 1e6


def check_class_weights(recipe: Recipe) -> None:
    """Refuse weights for regression, and values that are no weight.

    Raises:
        UserError: at the weight's line.
    """
    given = recipe.train.class_weights
    if given is None:
        return
    if recipe.data.problem_type == "regression":
        raise recipe.error(KEY, "the labels of regression are numbers, which have no classes; remove it")
    for label, weight in given.items() if isinstance(given, dict) else ():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not LEAST <= weight <= MOST:
            right = f"a number from {LEAST:g} to {MOST:g}; one that is not named weighs 1"
            raise recipe.error(_path(label), f"{weight!r} is no weight of a label; it should be {right}")


def class_weights_of(recipe: Recipe, train: datasets.Dataset) -> np.ndarray | None:
    """Return the weight of each label in the training loss: float32 (labels,), or None for equal weights.

    With one label per text, ``balanced`` is scikit-learn's n / (k * count), for n texts of k labels that occur. With
    several, it weighs texts with a label against those without: (n - count) / count, as ``pos_weight``.

    Args:
        train: the training split, with a column ``label``: an id per row, or a list of ids.

    Raises:
        UserError: a weight of a label that does not exist.
    """
    given = recipe.train.class_weights
    if given is None:
        return None
    if isinstance(given, dict):
        return _by_name(recipe, given, _names(train))
    counts = np.array(list(label_counts(train).values()))
    several = recipe.data.problem_type == "multi_label"
    return (positive_weights if several else balanced_weights)(counts, len(train)).astype(np.float32)


def label_counts(rows: datasets.Dataset) -> dict[str, int]:
    """Label -> how many rows of a split have it, in the order of their ids; empty for a split without labels."""
    kind = rows.features.get("label")
    if not hasattr(getattr(kind, "feature", kind), "names"):
        return {}
    labels = rows["label"][:]
    ids = np.asarray([label for row in labels for label in row] if hasattr(kind, "feature") else labels, np.int64)
    names = _names(rows)
    return dict(zip(names, np.bincount(ids, minlength=len(names)).tolist(), strict=True))


def balanced_weights(counts: np.ndarray, total: int) -> np.ndarray:
    """Return n / (k * count) of each class; one without texts weighs 1 and is not among the k.

    Args:
        counts: (classes,) of texts.
        total: n, of all texts.
    """
    return np.where(counts > 0, total / (np.count_nonzero(counts) * np.maximum(counts, 1)), 1.0)


def positive_weights(counts: np.ndarray, total: int) -> np.ndarray:
    """Return (n - count) / count of each label; 1 for a label that no text or every text has.

    Args:
        counts: (labels,) of the texts that have it.
        total: n, of all texts.
    """
    is_told = (counts > 0) & (counts < total)
    return np.where(is_told, (total - counts) / np.maximum(counts, 1), 1.0)


def described(train: datasets.Dataset, weights: np.ndarray) -> str:
    """Describe the weights in a line."""
    each = listed(f"{name} {format_number(weight)}" for name, weight in zip(_names(train), weights, strict=True))
    return f"the training loss weighs labels: {each}; validation and test losses do not"


def _by_name(recipe: Recipe, given: Mapping[str, Any], names: Sequence[str]) -> np.ndarray:
    for label in given:
        if label not in names:
            near = suggest(label, names) or f"; known: {listed(names)}"
            raise recipe.error(_path(label), f"the data has no label of this name{near}")
    return np.array([given.get(name, 1.0) for name in names], np.float32)


def _names(train: datasets.Dataset) -> list[str]:
    """The names of a split's labels, in the order of their ids."""
    kind = train.features["label"]
    return getattr(kind, "feature", kind).names  # one label per text, or a list


def _path(label: str) -> tuple[str, ...]:
    """Recipe key of a label's weight."""
    return (*KEY.split("."), label)
