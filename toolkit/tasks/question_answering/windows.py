"""Cut questions and contexts into the windows that a model reads, with the character span of each token.

A window is ``question, separator, part of the context, padding``. A question is never cut. A context that does not fit
is cut into windows that overlap by ``stride`` tokens, so that every answer of up to ``stride`` tokens is whole in one
of them. Reformer's tokenizers have no separator token, so id 1 is used: both have it (``<s>`` in SentencePiece, unused
by google/reformer-enwik8's bytes), and neither produces it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import load_file, save_file
from tqdm import tqdm

from models.port.tokenization import Tokenizer
from toolkit.files.cache import CACHE_VERSION, get_or_create_entry
from toolkit.files.digest import digest_parts
from toolkit.tasks.question_answering.squad import Example

if TYPE_CHECKING:
    from toolkit.tasks.question_answering.squad import Answer

SEPARATOR = 1

#: Start and end position in a window that does not contain the whole answer: the question's first token.
NO_ANSWER = 0

#: Name of the file of tokens in the cache.
TOKENS_FILE = "tokens.safetensors"


@dataclass(frozen=True)
class TokenizedTexts:
    """The tokens of some texts, one text after the other.

    Attributes:
        ids: ids of the tokens, (tokens,) int32.
        spans: characters ``text[first:past]`` of each token in its text, (tokens, 2) int32. The span is empty if the
            token is a part of a character, or only the space in front of a word.
        bounds: start of each text's tokens, and their total number, (texts + 1,) int64; text i has the tokens
            ``bounds[i]:bounds[i + 1]``.
    """

    ids: np.ndarray
    spans: np.ndarray
    bounds: np.ndarray

    def of(self, index: int) -> slice:
        """Return the slice with the tokens of a text."""
        return slice(int(self.bounds[index]), int(self.bounds[index + 1]))

    def sizes(self) -> np.ndarray:
        """Return the number of tokens of each text, (texts,)."""
        return np.diff(self.bounds)


def tokenize(texts: Sequence[str], tokenizer: Tokenizer, title: str = "texts") -> TokenizedTexts:
    """Return the tokens of texts with their offsets."""
    ids_of_texts, spans_of_texts = [], []
    for text in tqdm(texts, desc=f"tokenizing {title}", unit=" texts", delay=2, leave=False, disable=None):
        token_ids, token_spans = tokenizer.encode_with_offsets(text)
        ids_of_texts.append(np.asarray(token_ids, dtype=np.int32))
        spans_of_texts.append(np.asarray(token_spans, dtype=np.int32).reshape(-1, 2))
    bounds = np.cumsum([0, *map(len, ids_of_texts)], dtype=np.int64)
    empty = np.zeros((0, 2), dtype=np.int32)
    return TokenizedTexts(
        np.concatenate([empty[:, 0], *ids_of_texts]), np.concatenate([empty, *spans_of_texts]), bounds
    )


def tokenize_once(texts: Sequence[str], tokenizer: Tokenizer, title: str = "texts") -> TokenizedTexts:
    """Return the tokens of texts with their offsets, from the cache if it has them for this tokenizer."""

    def fill(folder: Path) -> None:
        save_file(vars(tokenize(texts, tokenizer, title)), folder / TOKENS_FILE)

    key = digest_parts(tokenizer.fingerprint(), CACHE_VERSION, *texts)
    return TokenizedTexts(**load_file(get_or_create_entry("tokens", key, fill) / TOKENS_FILE))


class QuestionTooLongError(ValueError):
    """A question fills the window, so that no context fits."""


def has_room(question: str, tokenizer: Tokenizer, max_length: int, stride: int) -> bool:
    """Return whether a question leaves enough tokens of a window for its context.

    :class:`Windows` needs more than ``stride`` tokens.
    """
    return max_length - 1 - len(tokenizer.encode(question.strip())) > stride


class Windows:
    """A map-style data set of the windows of some questions.

    An item is ``input_ids`` and ``attention_mask`` (T,), ``start_positions`` and ``end_positions`` (scalars), all
    int64. The positions are the first and the last token of the question's first answer, or :data:`NO_ANSWER` if the
    window does not contain the whole answer.

    Args:
        examples: questions.
        tokenizer: tokenizer with ``encode_with_offsets``.
        max_length: maximum number of tokens of a window.
        stride: number of tokens that a window shares with the previous window.
        max_answer_length: maximum number of tokens of an answer that is found in a window.
        no_answer_threshold: score difference to the best span above which the result is "no answer"; None if there
            always is an answer.
        whole_words: whether an answer is widened to the words that it starts and ends in (:mod:`.words`).
        split_name: name of the split, for the progress bar.
        length: T, to which windows are padded; None for ``max_length``.
        uses_cache: whether the tokens are read from and written to the cache.

    Raises:
        QuestionTooLongError: a question leaves at most ``stride`` tokens for its context.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        tokenizer: Tokenizer,
        max_length: int,
        stride: int,
        max_answer_length: int,
        no_answer_threshold: float | None = None,
        split_name: str = "texts",
        length: int | None = None,
        *,
        whole_words: bool = False,
        uses_cache: bool = True,
    ) -> None:
        self.examples = list(examples)
        self.max_length, self.stride, self.length = max_length, stride, length or max_length
        self.max_answer_length, self.no_answer_threshold = max_answer_length, no_answer_threshold
        self.whole_words = whole_words
        self.pad_token_id = tokenizer.pad_token_id
        contexts = {item.context: None for item in self.examples}
        context_indices = {context: index for index, context in enumerate(contexts)}
        self.context_of = np.array([context_indices[item.context] for item in self.examples], dtype=np.int64)
        encode = tokenize_once if uses_cache else tokenize
        self.contexts = encode(list(contexts), tokenizer, f"{split_name} contexts")
        # White space around a question has no meaning, and published questions have up to 25,000 blanks.
        self.questions = encode([item.question.strip() for item in self.examples], tokenizer, f"{split_name} questions")
        self._cut()
        self._find_answers()
        #: Answers of the last evaluation, set by :func:`.task.compute_metrics`.
        self.best_answers: list[list[Answer]] | None = None

    def _cut(self) -> None:
        """Compute the windows: the question of each, its first context token, and its number of context tokens.

        Context tokens are counted over all contexts.
        """
        num_context_tokens = self.max_length - 1 - self.questions.sizes()
        if len(num_context_tokens) and num_context_tokens.min() <= self.stride:
            longest_question = self.examples[int(num_context_tokens.argmin())]
            raise QuestionTooLongError(
                f"the question {longest_question.id} has {self.questions.sizes().max()} tokens, "
                f"which leaves {num_context_tokens.min()} of {self.max_length} for its context; "
                f"windows overlap by {self.stride}"
            )
        step = num_context_tokens - self.stride
        sizes = self.contexts.sizes()[self.context_of]
        counts = 1 + np.maximum(0, -(-(sizes - num_context_tokens) // step))
        self.example_of = np.repeat(np.arange(len(sizes)), counts)
        window_indices = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        num_skipped = window_indices * step[self.example_of]
        self.size_of = np.minimum(num_context_tokens[self.example_of], sizes[self.example_of] - num_skipped)
        self.first_of = self.contexts.bounds[self.context_of[self.example_of]] + num_skipped
        #: Position in each window at which the context starts, (windows,).
        self.offset_of = self.questions.sizes()[self.example_of] + 1

    def _find_answers(self) -> None:
        """Set the first and last answer token of each window; :data:`NO_ANSWER` unless it has the whole answer."""
        tokens = np.array([self.answer_tokens(index) for index in range(len(self.examples))]).reshape(-1, 2)
        first, last = tokens[self.example_of].T
        is_whole = (first >= self.first_of) & (last < self.first_of + self.size_of) & (first <= last)
        shift = self.offset_of - self.first_of
        self.start_positions = np.where(is_whole, first + shift, NO_ANSWER)
        self.end_positions = np.where(is_whole, last + shift, NO_ANSWER)

    def answer_tokens(self, index: int, reference_index: int = 0) -> tuple[int, int]:
        """Return the first and last token (of all contexts) that overlap a reference answer.

        They are (0, -1) without an answer.
        """
        example = self.examples[index]
        if reference_index >= len(example.answers):
            return 0, -1
        start = example.answer_starts[reference_index]
        end = start + len(example.answers[reference_index])
        tokens = self.contexts.of(int(self.context_of[index]))
        firsts, pasts = self.contexts.spans[tokens].T
        first = np.searchsorted(pasts, start, side="right")
        last = np.searchsorted(firsts, end, side="left") - 1
        return tokens.start + int(first), tokens.start + int(last)

    def text(self, index: int, first: int, last: int) -> str:
        """Return the text of a question's context between two tokens (of all contexts), both included.

        Args:
            index: index of the question.
            first: first token, counted over all contexts.
            last: last token, counted over all contexts.
        """
        start, end = self.contexts.spans[first, 0], self.contexts.spans[last, 1]
        return self.examples[index].context[start:end]

    def inexact(self) -> list[tuple[Example, str]]:
        """Return the questions whose first answer starts or ends inside a token, with the text of its tokens."""
        covered_texts = [
            (item, self.text(index, *self.answer_tokens(index)))
            for index, item in enumerate(self.examples)
            if item.answers
        ]
        return [(item, text) for item, text in covered_texts if text != item.answers[0]]

    def __len__(self) -> int:
        return len(self.example_of)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        question = self.questions.ids[self.questions.of(int(self.example_of[index]))]
        first, size = int(self.first_of[index]), int(self.size_of[index])
        token_ids = np.concatenate([question, [SEPARATOR], self.contexts.ids[first : first + size]])
        input_ids = np.full(self.length, self.pad_token_id, dtype=np.int64)
        input_ids[: len(token_ids)] = token_ids
        return {
            "input_ids": input_ids,
            "attention_mask": (np.arange(self.length) < len(token_ids)).astype(np.int64),
            "start_positions": np.asarray(self.start_positions[index], dtype=np.int64),
            "end_positions": np.asarray(self.end_positions[index], dtype=np.int64),
        }
