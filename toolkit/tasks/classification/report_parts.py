"""Sections of a classifier's page that are the same for one label per text and for several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from toolkit.pages.bins import named_bins
from toolkit.pages.elements import Section, name, share, table
from toolkit.tasks.classification.label_names import PROBABILITY_OF

#: Number of labels in the table of scores; the others open on a click.
LABELS_SHOWN = 16
#: Maximum number of labels that the top of the page names as never predicted.
MAX_IGNORED = 3


def label_names_of(column_names: Iterable[str]) -> list[str]:
    """Return the labels of a predictions file, by its columns of probabilities."""
    return [column.removeprefix(PROBABILITY_OF) for column in column_names if column.startswith(PROBABILITY_OF)]


def label_scores(
    names: Sequence[str], label_metrics: Sequence[np.ndarray], label_indices: Iterable[int], caption: str
) -> Section:
    """Return the section that shows precision, recall and F1 of each label.

    Args:
        names: names of the labels, in the order of their ids.
        label_metrics: precision, recall, F1, number of texts with the label, and number of texts with the label as a
            prediction, (labels,) each.
        label_indices: indices of the labels that are shown.
        caption: caption of the table.
    """
    precision, recall, f1, support, num_predicted = label_metrics
    label_indices = list(label_indices)
    rows = [
        (
            name(names[index]),
            f"{precision[index]:.3f}",
            f"{recall[index]:.3f}",
            share(f1[index], f"{f1[index]:.3f}"),
            f"{support[index]:,}",
            f"{num_predicted[index]:,}",
        )
        for index in label_indices
    ]
    titles = ("label", "precision", "recall", "F1", "texts", "times given")
    never_predicted = [
        f"{names[index]} ({support[index]:,})" for index in label_indices if support[index] and not num_predicted[index]
    ]
    highlight = f"Never predicted: {', '.join(never_predicted[:MAX_IGNORED])}" if never_predicted else ""
    highlight += f" and {len(never_predicted) - MAX_IGNORED} more labels" if len(never_predicted) > MAX_IGNORED else ""
    return Section("How good each label is", [table(titles, rows, caption, "numbers", LABELS_SHOWN)], highlight)


def accuracy_by_length(token_counts: Sequence[int], is_correct: np.ndarray, title: str, caption: str) -> Section:
    """Return the section that shows the share of correct texts by their number of tokens.

    Args:
        token_counts: number of tokens that the model read of each text.
        is_correct: whether each text is predicted correctly, bool, (texts,).
        title: title of the column with the share.
        caption: caption of the table.
    """
    rows = [
        (length, f"{len(indices):,}", share(float(is_correct[indices].mean()), f"{is_correct[indices].mean():.3f}"))
        for length, indices in named_bins(token_counts).items()
    ]
    return Section("Length and accuracy", [table(("tokens", "texts", title), rows, caption, "numbers")])
