"""Read long texts in windows (``data.long_texts: windows``) instead of cutting them.

In training each window has the label of its text. The logits of a text are the mean of its windows' logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import datasets

    from models.port.tokenization import Tokenizer

#: Column of a tokenized split with the index of each window's text.
TEXT_OF = "text_of"


def split_evenly(token_ids: Sequence[int], max_length: int) -> list[list[int]]:
    """Split a text's tokens into as few windows as possible, of about equal length.

    An empty text gives one empty window.

    Args:
        token_ids: ids of the tokens, (T,).
        max_length: maximum number of tokens in a window.
    """
    windows = np.array_split(np.asarray(token_ids, np.int64), max(1, -(-len(token_ids) // max_length)))
    return [window.tolist() for window in windows]


def encode_texts(
    texts: Sequence[str], tokenizer: Tokenizer, max_length: int, *, in_windows: bool
) -> tuple[list[list[int]], np.ndarray, list[bool]]:
    """Tokenize texts, and cut or split those that are too long.

    Args:
        texts: N texts.
        tokenizer: tokenizer of the model.
        max_length: maximum number of tokens in a row.
        in_windows: whether longer texts are split into several rows; otherwise they are cut.

    Returns:
        The token ids of each row, the index of its text, (rows,), and whether each text was cut, (N,).
    """
    if not in_windows:
        beginnings = tokenizer.encode_prefixes(texts, max_length + 1)
        is_cut = [len(row) > max_length for row in beginnings]
        return [row[:max_length] for row in beginnings], np.arange(len(texts)), is_cut
    windows = [split_evenly(ids, max_length) for ids in tokenizer.encode_batch([*texts])]
    text_indices = np.repeat(np.arange(len(texts)), np.array([len(rows) for rows in windows], np.int64))
    return [row for rows in windows for row in rows], text_indices, [False] * len(texts)


def mean_of_texts(logits: np.ndarray, text_indices: np.ndarray) -> np.ndarray:
    """Average the logits of the windows of each text.

    After softmax, the mean is the normalized geometric mean of the windows' probabilities.

    Args:
        logits: logits of the windows, (windows, L).
        text_indices: index of each window's text, (windows,), in ascending order.

    Returns:
        Logits of the texts, (texts, L).
    """
    starts = _first_windows(text_indices)
    if len(starts) == len(text_indices):
        return logits  # texts in one window keep their logits bitwise
    sums = np.add.reduceat(logits.astype(np.float64), starts, axis=0)
    return (sums / np.diff(starts, append=len(text_indices))[:, None]).astype(logits.dtype)


def outputs_of_texts(outputs: tuple[np.ndarray, ...], dataset: datasets.Dataset) -> tuple[np.ndarray, ...]:
    """Reduce the logits and labels of windows to a row for each text.

    Args:
        outputs: logits (windows, L), and labels of each window.
        dataset: data set of the windows.
    """
    logits, labels = outputs
    text_indices = texts_of(dataset)
    return mean_of_texts(logits, text_indices), labels[_first_windows(text_indices)]


def _first_windows(text_indices: np.ndarray) -> np.ndarray:
    """Return the index of each text's first window.

    Args:
        text_indices: index of the text of each window, ascending, (windows,).
    """
    return np.flatnonzero(np.diff(text_indices, prepend=-1))


def texts_of(dataset: datasets.Dataset) -> np.ndarray:
    """Return the index of each window's text in a tokenized split, (windows,).

    Args:
        dataset: data set of the windows.
    """
    return dataset.with_format("arrow")[:][TEXT_OF].to_numpy()
