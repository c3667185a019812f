"""Sections of a classifier's page that are the same for one label per text and for several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from xml.etree.ElementTree import Element

import numpy as np

from toolkit.pages.document import name, scrolled, table
from toolkit.pages.markup import element
from toolkit.pages.plot import named_bins, share
from toolkit.tasks.classification.label_names import PROBABILITY_OF


def label_names_of(columns: Iterable[str]) -> list[str]:
    """Return the labels of a predictions file, by its columns of probabilities."""
    return [column.removeprefix(PROBABILITY_OF) for column in columns if column.startswith(PROBABILITY_OF)]


def label_scores(
    names: Sequence[str], scores: Sequence[np.ndarray], order: Iterable[int], caption: str
) -> Iterator[Element]:
    """Yield the section that shows precision, recall and F1 of each label.

    Args:
        scores: for each label precision, recall, F1, the number of texts that have it and of texts that are given it.
        order: indices of the labels that are shown.
    """
    precision, recall, f1, support, given = scores
    rows = [
        (
            name(names[index]),
            f"{precision[index]:.3f}",
            f"{recall[index]:.3f}",
            share(f1[index], f"{f1[index]:.3f}"),
            f"{support[index]:,}",
            f"{given[index]:,}",
        )
        for index in order
    ]
    yield element("h2", "How good each label is", id="labels")
    titles = ("label", "precision", "recall", "F1", "texts", "times given")
    yield scrolled(table(titles, rows, caption, "numbers"), "labels", "scroll")


def accuracy_by_length(tokens: Sequence[int], right: np.ndarray, title: str, caption: str) -> Iterator[Element]:
    """Yield the section that shows the share of right texts by their number of tokens.

    Args:
        tokens: number of tokens that the model read of each text.
        right: whether each text is right, bool (texts,).
    """
    rows = [
        (length, f"{len(places):,}", share(float(right[places].mean()), f"{right[places].mean():.3f}"))
        for length, places in named_bins(tokens).items()
    ]
    yield element("h2", "Length and accuracy")
    yield table(("tokens", "texts", title), rows, caption, "numbers")
