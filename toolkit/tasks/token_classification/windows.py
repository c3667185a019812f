"""Texts cut into the windows that a model reads, with each word's tag at the first token of the word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from toolkit.data.batches import IGNORED_LABEL
from toolkit.tasks.question_answering.windows import tokenize, tokenize_once

if TYPE_CHECKING:
    from models.port.tokenization import Tokenizer
    from toolkit.tasks.token_classification.rows import Span

#: The place of a word that has no token of its own.
NOWHERE = -1


class TaggedWindows:
    """A map-style data set of the windows of some texts.

    A text longer than ``max_length`` tokens is cut into windows that overlap by ``stride`` tokens. A word is labelled
    in the one in which it is further from the edges. Windows without such a word are left out. An item is
    ``input_ids``, ``attention_mask`` and ``labels``, int64 (T,); labels are -100 but at the first token of each word.

    Args:
        texts: any strings.
        words: the spans of each text's words.
        labels: the label of each of these; None for texts to be labelled, whose labels are all 0.
        max_length: the most tokens of a window.
        stride: tokens that a window shares with the one before.
        length: T, to which windows are padded; None for ``max_length``.
        cached: keep the tokens for the next time.
        names: of the labels, by their ids.

    Attributes:
        text_of: of each window, its text.
        sizes: of each window, its tokens.
        word_bounds: text i has the words ``word_bounds[i]:word_bounds[i + 1]`` of all.
        window_of, place_of: of each word, its window and its place there; :data:`NOWHERE` if it shares its token with
            the word before, or has none.
    """

    def __init__(
        self,
        texts: Sequence[str],
        words: Sequence[Sequence[Span]],
        labels: Sequence[Sequence[int]] | None,
        tokenizer: Tokenizer,
        max_length: int,
        stride: int,
        name: str = "texts",
        length: int | None = None,
        cached: bool = True,
        names: Sequence[str] = (),
    ) -> None:
        self.names = names
        self.max_length, self.length, self.pad_token_id = max_length, length or max_length, tokenizer.pad_token_id
        self.tokens = (tokenize_once if cached else tokenize)(texts, tokenizer, name)
        self.word_bounds = np.cumsum([0, *map(len, words)], dtype=np.int64)
        counted = np.concatenate([np.zeros(0, np.int64), *(np.asarray(one, np.int64) for one in labels or ())])
        self.labels = np.zeros(self.word_bounds[-1], np.int64) if labels is None else counted
        self._cut(self._first_tokens(words), stride)

    def _first_tokens(self, words: Sequence[Sequence[Span]]) -> np.ndarray:
        """The first token of each word, of all texts' words, within its text."""
        found = []
        for index, spans in enumerate(words):
            starts, ends = np.asarray(spans, np.int64).reshape(-1, 2).T
            firsts, pasts = self.tokens.spans[self.tokens.of(index)].T
            first = np.searchsorted(pasts, starts, side="right")
            begins = np.append(firsts, np.iinfo(np.int32).max)[first]
            shared = np.diff(first, prepend=NOWHERE) == 0
            found.append(np.where((begins >= ends) | shared, NOWHERE, first))
        return np.concatenate([np.zeros(0, np.int64), *found])

    def _cut(self, first: np.ndarray, stride: int) -> None:
        """Lay out the windows, and the words in them."""
        sizes, step = self.tokens.sizes(), self.max_length - stride
        counts = 1 + np.maximum(0, -(-(sizes - self.max_length) // step))
        starts = np.cumsum(counts) - counts
        text_of_word = np.repeat(np.arange(len(sizes)), np.diff(self.word_bounds))
        within = np.clip((first - stride // 2) // step, 0, counts[text_of_word] - 1)
        held = np.flatnonzero(first != NOWHERE)
        kept, numbers = np.unique((starts[text_of_word] + within)[held], return_inverse=True)
        self.window_of, self.place_of = np.full(len(first), NOWHERE), np.full(len(first), NOWHERE)
        self.window_of[held], self.place_of[held] = numbers, (first - within * step)[held]
        self.text_of = np.repeat(np.arange(len(sizes)), counts)[kept]
        skipped = (kept - starts[self.text_of]) * step
        self.sizes = np.minimum(self.max_length, sizes[self.text_of] - skipped)
        self._first = self.tokens.bounds[self.text_of] + skipped
        self._words = np.split(held, np.flatnonzero(np.diff(numbers)) + 1) if len(held) else []

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
        """Divide an array with a row for each word by text."""
        return np.split(values, self.word_bounds[1:-1])

    def of_words(self, labels: np.ndarray, probabilities: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return each text's labels of its words, and their probabilities, from those of each token of each window
        (N, T). A word without a place is in the entity of the word before, if that is in one."""
        first = np.repeat(self.word_bounds[:-1], np.diff(self.word_bounds))  # of its text
        order = np.arange(len(first))
        source = np.maximum.accumulate(np.where(self.window_of == NOWHERE, NOWHERE, order)) if len(order) else order
        known = source >= first
        found, shares = np.zeros(len(first), np.int64), np.ones(len(first))
        at = source[known]
        found[known] = labels[self.window_of[at], self.place_of[at]]
        shares[known] = probabilities[self.window_of[at], self.place_of[at]]
        found += (source != order) & (found % 2 == 1)  # B-TYPE is odd, and I-TYPE follows on it
        return self.by_text(found), self.by_text(shares)
