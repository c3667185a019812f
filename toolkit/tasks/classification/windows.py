"""Long texts read whole (``data.long_texts: windows``): each is cut into windows, which have its label in training, and
its logits are the mean of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import datasets

    from models.port.tokenization import Tokenizer

#: The column of a tokenized split that says which text a window is of.
TEXT_OF = "text_of"


def cut_evenly(ids: Sequence[int], longest: int) -> list[list[int]]:
    """Cut a text's tokens into as few windows of at most ``longest`` as there can be, all about as long; an empty text
    is one empty window."""
    windows = np.array_split(np.asarray(ids, np.int64), max(1, -(-len(ids) // longest)))
    return [window.tolist() for window in windows]


def read_as(
    texts: Sequence[str], tokenizer: Tokenizer, longest: int, whole: bool
) -> tuple[list[list[int]], np.ndarray, list[bool]]:
    """Return the rows of at most ``longest`` tokens that a model reads of texts, the text of each row, and whether each
    text is cut; with ``whole`` a longer text gives several rows, and none is cut."""
    if not whole:
        beginnings = tokenizer.beginnings(texts, longest + 1)
        cut = [len(row) > longest for row in beginnings]
        return [row[:longest] for row in beginnings], np.arange(len(texts)), cut
    windows = [cut_evenly(ids, longest) for ids in tokenizer.encode_batch([*texts])]
    text_of = np.repeat(np.arange(len(texts)), np.array([len(rows) for rows in windows], np.int64))
    return [row for rows in windows for row in rows], text_of, [False] * len(texts)


def mean_of_texts(logits: np.ndarray, text_of: np.ndarray) -> np.ndarray:
    """Average the logits (windows, L) of each text: (texts, L). Softmax makes of that the normalised geometric mean of
    the windows' probabilities.

    Args:
        text_of: (windows,) the text of each, in the order of the texts.
    """
    starts = _first_windows(text_of)
    if len(starts) == len(text_of):
        return logits  # no bit of a text in one window changes
    sums = np.add.reduceat(logits.astype(np.float64), starts, axis=0)
    return (sums / np.diff(starts, append=len(text_of))[:, None]).astype(logits.dtype)


def by_text(outputs: tuple[np.ndarray, ...], dataset: datasets.Dataset) -> tuple[np.ndarray, ...]:
    """Reduce a split's logits and labels, a row for each window, to a row for each text."""
    logits, labels = outputs
    text_of = texts_of(dataset)
    return mean_of_texts(logits, text_of), labels[_first_windows(text_of)]


def _first_windows(text_of: np.ndarray) -> np.ndarray:
    return np.flatnonzero(np.diff(text_of, prepend=-1))


def texts_of(dataset: datasets.Dataset) -> np.ndarray:
    """Return the text of each window of a tokenized split."""
    return dataset.with_format("arrow")[:][TEXT_OF].to_numpy()
