"""Questions and contexts cut into the windows that a model reads, with the character span of each token.

A window is ``question, separator, part of the context, padding``. A question is never cut. A context that does not fit
is cut into windows that overlap by ``stride`` tokens, so that every answer of up to ``stride`` tokens is whole in one
of them. Reformer's tokenizers have no separator token, so id 1 serves as one: both have it (``<s>`` in SentencePiece,
unused by google/reformer-enwik8's bytes), and neither produces it.
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
from toolkit.files.cache import CACHE_VERSION, kept
from toolkit.files.digest import digest
from toolkit.tasks.question_answering.squad import Example

if TYPE_CHECKING:
    from toolkit.tasks.question_answering.squad import Answer

SEPARATOR = 1

#: Start and end position of a window that does not hold the whole answer: the question's first token.
NO_ANSWER = 0

#: The file of some texts' tokens in the cache.
TOKENS = "tokens.safetensors"


@dataclass(frozen=True)
class TokenizedTexts:
    """The tokens of some texts, one text after the other.

    Attributes:
        ids: int32 (tokens,).
        spans: int32 (tokens, 2), the characters of its text that a token stands for, ``text[first:past]``. A token can
            be a part of a character, or the space in front of a word alone: then it is empty.
        bounds: int64 (texts + 1,); text i has the tokens ``bounds[i]:bounds[i + 1]``.
    """

    ids: np.ndarray
    spans: np.ndarray
    bounds: np.ndarray

    def of(self, index: int) -> slice:
        """The tokens of a text."""
        return slice(int(self.bounds[index]), int(self.bounds[index + 1]))

    def sizes(self) -> np.ndarray:
        """How many tokens each text has."""
        return np.diff(self.bounds)


def tokenize(texts: Sequence[str], tokenizer: Tokenizer, name: str = "texts") -> TokenizedTexts:
    """The tokens of texts with their offsets."""
    ids, spans = [], []
    for text in tqdm(texts, desc=f"tokenizing {name}", unit=" texts", delay=2, leave=False):
        found, places = tokenizer.encode_with_offsets(text)
        ids.append(np.asarray(found, dtype=np.int32))
        spans.append(np.asarray(places, dtype=np.int32).reshape(-1, 2))
    bounds = np.cumsum([0, *map(len, ids)], dtype=np.int64)
    empty = np.zeros((0, 2), dtype=np.int32)
    return TokenizedTexts(np.concatenate([empty[:, 0], *ids]), np.concatenate([empty, *spans]), bounds)


def tokenize_once(texts: Sequence[str], tokenizer: Tokenizer, name: str = "texts") -> TokenizedTexts:
    """As :func:`tokenize`, from the cache if these texts were seen before with this tokenizer."""

    def fill(folder: Path) -> None:
        save_file(vars(tokenize(texts, tokenizer, name)), folder / TOKENS)

    key = digest(tokenizer.fingerprint(), CACHE_VERSION, *texts)
    return TokenizedTexts(**load_file(kept("tokens", key, fill) / TOKENS))


class QuestionTooLong(ValueError):
    """A question fills the window, so that no context fits beside it."""


def has_room(question: str, tokenizer: Tokenizer, max_length: int, stride: int) -> bool:
    """Whether a question leaves room for more than ``stride`` tokens of its context beside it, as :class:`Windows`
    demands."""
    return max_length - 1 - len(tokenizer.encode(question.strip())) > stride


class Windows:
    """A map-style data set of the windows of some questions.

    An item is ``input_ids`` and ``attention_mask`` (T,), ``start_positions`` and ``end_positions`` (scalars): the first
    and the last token of the question's first answer, :data:`NO_ANSWER` where the window does not hold the whole of it.
    All int64.

    Args:
        examples: the questions.
        tokenizer: with ``encode_with_offsets``.
        max_length: the most tokens that a window has.
        stride: tokens that a window shares with the one before.
        max_answer_length: the most tokens that an answer found in a window may have.
        no_answer_threshold: no answer is given if "no answer" scores above the best span by more than this; None:
            there always is one.
        whole_words: an answer is widened to the words that it begins and ends in (:mod:`.words`).
        name: of the split, for the progress bar.
        length: T, to which windows are padded; None for ``max_length``.
        cached: keep the tokens for the next time.

    Raises:
        QuestionTooLong: a question leaves no room for more than ``stride`` tokens of its context.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        tokenizer: Tokenizer,
        max_length: int,
        stride: int,
        max_answer_length: int,
        no_answer_threshold: float | None = None,
        whole_words: bool = False,
        name: str = "texts",
        length: int | None = None,
        cached: bool = True,
    ) -> None:
        self.examples = list(examples)
        self.max_length, self.stride, self.length = max_length, stride, length or max_length
        self.max_answer_length, self.no_answer_threshold = max_answer_length, no_answer_threshold
        self.whole_words = whole_words
        self.pad_token_id = tokenizer.pad_token_id
        contexts = {item.context: None for item in self.examples}
        places = {context: index for index, context in enumerate(contexts)}
        self.context_of = np.array([places[item.context] for item in self.examples], dtype=np.int64)
        encode = tokenize_once if cached else tokenize
        self.contexts = encode(list(contexts), tokenizer, f"{name} contexts")
        # White space around a question says nothing, and published ones have up to 25,000 blanks of it.
        self.questions = encode([item.question.strip() for item in self.examples], tokenizer, f"{name} questions")
        self._cut()
        self._find_answers()
        #: The answers of the last evaluation, which :func:`.task.compute_metrics` sets.
        self.answered: list[list[Answer]] | None = None

    def _cut(self) -> None:
        """Lay out the windows: each one's question, first context token (of all contexts') and number of these."""
        room = self.max_length - 1 - self.questions.sizes()
        if len(room) and room.min() <= self.stride:
            worst = self.examples[int(room.argmin())]
            raise QuestionTooLong(
                f"the question {worst.id} has {self.questions.sizes().max()} tokens, which leaves {room.min()} of "
                f"{self.max_length} for its context; windows overlap by {self.stride}"
            )
        step = room - self.stride
        sizes = self.contexts.sizes()[self.context_of]
        counts = 1 + np.maximum(0, -(-(sizes - room) // step))
        self.example_of = np.repeat(np.arange(len(sizes)), counts)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        skipped = within * step[self.example_of]
        self.size_of = np.minimum(room[self.example_of], sizes[self.example_of] - skipped)
        self.first_of = self.contexts.bounds[self.context_of[self.example_of]] + skipped
        #: Where in each window the context begins.
        self.offset_of = self.questions.sizes()[self.example_of] + 1

    def _find_answers(self) -> None:
        tokens = np.array([self.answer_tokens(index) for index in range(len(self.examples))]).reshape(-1, 2)
        first, last = tokens[self.example_of].T
        whole = (first >= self.first_of) & (last < self.first_of + self.size_of) & (first <= last)
        shift = self.offset_of - self.first_of
        self.start_positions = np.where(whole, first + shift, NO_ANSWER)
        self.end_positions = np.where(whole, last + shift, NO_ANSWER)

    def answer_tokens(self, index: int, reference: int = 0) -> tuple[int, int]:
        """The first and the last token (of all contexts') that overlap a reference answer; (0, -1) without one."""
        example = self.examples[index]
        if reference >= len(example.answers):
            return 0, -1
        start = example.answer_starts[reference]
        end = start + len(example.answers[reference])
        tokens = self.contexts.of(int(self.context_of[index]))
        firsts, pasts = self.contexts.spans[tokens].T
        first = np.searchsorted(pasts, start, side="right")
        last = np.searchsorted(firsts, end, side="left") - 1
        return tokens.start + int(first), tokens.start + int(last)

    def text(self, index: int, first: int, last: int) -> str:
        """The text of a question's context from one token (of all contexts') to another, both included."""
        start, end = self.contexts.spans[first, 0], self.contexts.spans[last, 1]
        return self.examples[index].context[start:end]

    def inexact(self) -> list[tuple[Example, str]]:
        """The questions whose first answer begins or ends inside a token, with the text of its tokens."""
        covered = [
            (item, self.text(index, *self.answer_tokens(index)))
            for index, item in enumerate(self.examples)
            if item.answers
        ]
        return [(item, text) for item, text in covered if text != item.answers[0]]

    def __len__(self) -> int:
        return len(self.example_of)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        question = self.questions.ids[self.questions.of(int(self.example_of[index]))]
        first, size = int(self.first_of[index]), int(self.size_of[index])
        row = np.concatenate([question, [SEPARATOR], self.contexts.ids[first : first + size]])
        input_ids = np.full(self.length, self.pad_token_id, dtype=np.int64)
        input_ids[: len(row)] = row
        return {
            "input_ids": input_ids,
            "attention_mask": (np.arange(self.length) < len(row)).astype(np.int64),
            "start_positions": np.asarray(self.start_positions[index], dtype=np.int64),
            "end_positions": np.asarray(self.end_positions[index], dtype=np.int64),
        }
