"""Cut texts into the windows that a model reads, with each word's tag at the first token of the word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from toolkit.data.batches import IGNORED_LABEL
from toolkit.tasks.question_answering.windows import tokenize, tokenize_once

if TYPE_CHECKING:
    from models.port.tokenization import Tokenizer
    from toolkit.tasks.token_classification.rows import Span

#: Position of a word without a separate token.
NO_POSITION = -1


class TaggedWindows:
    """A map-style data set of the windows of some texts.

    A text longer than ``max_length`` tokens is cut into windows that overlap by ``stride`` tokens. A word in two
    windows is labeled in the window in which it is further from the edges. Windows without such a word are left out. An
    item is ``input_ids``, ``attention_mask`` and ``labels``, (T,) int64; labels are -100 except at the first token of
    each word.

    Args:
        texts: any strings.
        words: spans of each text's words.
        labels: label ids of each text's words; None for texts without labels, which are all 0 then.
        tokenizer: tokenizer with ``encode_with_offsets``.
        max_length: maximum number of tokens of a window.
        stride: number of tokens that a window shares with the previous window.
        title: name of the texts in the progress bar.
        length: T, to which windows are padded; None for ``max_length``.
        uses_cache: whether the tokens are read from and written to the cache.
        label_names: names of the labels, in the order of their ids.

    Attributes:
        text_of: index of each window's text, (windows,).
        sizes: number of tokens of each window, (windows,).
        word_bounds: text i has the words ``word_bounds[i]:word_bounds[i + 1]`` of all words.
        window_of, place_of: window of each word, and its position there, (words,); :data:`NO_POSITION` if it shares its
            token with the previous word, or has none.
    """

    def __init__(
        self,
        texts: Sequence[str],
        words: Sequence[Sequence[Span]],
        labels: Sequence[Sequence[int]] | None,
        tokenizer: Tokenizer,
        max_length: int,
        stride: int,
        title: str = "texts",
        length: int | None = None,
        label_names: Sequence[str] = (),
        *,
        uses_cache: bool = True,
    ) -> None:
        self.names = label_names
        self.max_length, self.length, self.pad_token_id = max_length, length or max_length, tokenizer.pad_token_id
        self.tokens = (tokenize_once if uses_cache else tokenize)(texts, tokenizer, title)
        self.word_bounds = np.cumsum([0, *map(len, words)], dtype=np.int64)
        all_labels = np.concatenate(
            [np.zeros(0, np.int64), *(np.asarray(labels_of_text, np.int64) for labels_of_text in labels or ())]
        )
        self.labels = np.zeros(self.word_bounds[-1], np.int64) if labels is None else all_labels
        self._cut(self._first_tokens(words), stride)

    def _first_tokens(self, words: Sequence[Sequence[Span]]) -> np.ndarray:
        """Return the first token of each word within its text, (words,)."""
        first_tokens = []
        for index, spans in enumerate(words):
            starts, ends = np.asarray(spans, np.int64).reshape(-1, 2).T
            firsts, pasts = self.tokens.spans[self.tokens.of(index)].T
            first = np.searchsorted(pasts, starts, side="right")
            begins = np.append(firsts, np.iinfo(np.int32).max)[first]
            shares_token = np.diff(first, prepend=NO_POSITION) == 0
            first_tokens.append(np.where((begins >= ends) | shares_token, NO_POSITION, first))
        return np.concatenate([np.zeros(0, np.int64), *first_tokens])

    def _cut(self, first: np.ndarray, stride: int) -> None:
        """Compute the windows, and the words in them.

        Args:
            first: position of each word's first token in its text, :data:`NO_POSITION` for a word without tokens.
            stride: number of tokens that neighboring windows share.
        """
        sizes, step = self.tokens.sizes(), self.max_length - stride
        counts = 1 + np.maximum(0, -(-(sizes - self.max_length) // step))
        starts = np.cumsum(counts) - counts
        text_of_word = np.repeat(np.arange(len(sizes)), np.diff(self.word_bounds))
        window_in_text = np.clip((first - stride // 2) // step, 0, counts[text_of_word] - 1)
        word_indices = np.flatnonzero(first != NO_POSITION)
        window_ids, window_numbers = np.unique(
            (starts[text_of_word] + window_in_text)[word_indices], return_inverse=True
        )
        self.window_of, self.place_of = np.full(len(first), NO_POSITION), np.full(len(first), NO_POSITION)
        self.window_of[word_indices], self.place_of[word_indices] = (
            window_numbers,
            (first - window_in_text * step)[word_indices],
        )
        self.text_of = np.repeat(np.arange(len(sizes)), counts)[window_ids]
        num_skipped = (window_ids - starts[self.text_of]) * step
        self.sizes = np.minimum(self.max_length, sizes[self.text_of] - num_skipped)
        self._first = self.tokens.bounds[self.text_of] + num_skipped
        self._words = np.split(word_indices, np.flatnonzero(np.diff(window_numbers)) + 1) if len(word_indices) else []

    def __len__(self) -> int:
        return len(self.text_of)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        first, size, words = int(self._first[index]), int(self.sizes[index]), self._words[index]
        input_ids = np.full(self.length, self.pad_token_id, np.int64)
        input_ids[:size] = self.tokens.ids[first : first + size]
        labels = np.full(self.length, IGNORED_LABEL, np.int64)
        labels[self.place_of[words]] = self.labels[words]
        mask = (np.arange(self.length) < size).astype(np.int64)
        return {"input_ids": input_ids, "attention_mask": mask, "labels": labels}

    def by_text(self, values: np.ndarray) -> list[np.ndarray]:
        """Split an array with a row for each word by text."""
        return np.split(values, self.word_bounds[1:-1])

    def of_words(self, labels: np.ndarray, probabilities: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the labels of each text's words, and their probabilities.

        A word without a position continues the entity of the previous word, if there is one.

        Args:
            labels: label of each token of each window, (N, T).
            probabilities: probabilities of these labels, (N, T).
        """
        first_words = np.repeat(self.word_bounds[:-1], np.diff(self.word_bounds))  # the first word of each word's text
        order = np.arange(len(first_words))
        source = (
            np.maximum.accumulate(np.where(self.window_of == NO_POSITION, NO_POSITION, order)) if len(order) else order
        )
        has_label = source >= first_words
        word_labels, word_probabilities = np.zeros(len(first_words), np.int64), np.ones(len(first_words))
        source_words = source[has_label]
        word_labels[has_label] = labels[self.window_of[source_words], self.place_of[source_words]]
        word_probabilities[has_label] = probabilities[self.window_of[source_words], self.place_of[source_words]]
        word_labels += (source != order) & (word_labels % 2 == 1)  # B-TYPE is odd, and I-TYPE follows on it
        return self.by_text(word_labels), self.by_text(word_probabilities)
