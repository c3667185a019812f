"""Choose sizes for the data: tokens, length, attention, width, steps; to learn in minutes on two cores."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.machine.scratch import scratch_folder

#: Tokens, including padding, that a small classifier trains on in about four minutes on two cores.
TOKEN_BUDGET = 8_000_000
TOKENS_A_SECOND = 35_000
#: Tokens for a language model, whose tokens cost more because the whole vocabulary is scored.
TEXT_BUDGET = 3_000_000
#: Largest proposed length; longer pairs of texts are cut, and the recipe has a comment about it.
MAX_LENGTH = 1024
#: Most tokens of a text that is classified as a whole, and tokens of the windows of longer texts. Accuracy with the
#: first 1,024 tokens, and with windows of 512, 256 and 128 tokens: 1,600 film reviews 0.80; 0.82, 0.82 and 0.82; 268
#: documents of 4,000 words 0.61; 0.88, 0.97 and 0.98.
MAX_WHOLE_TOKENS, WINDOW_TOKENS = 512, 256
#: Tokens of a chunk of attention; lengths are multiples of it.
CHUNK_TOKENS = 64
#: (minimum bytes of text, pieces to learn from it); with less text, bytes are the tokens. Accuracy on 8,500 short
#: reviews: 0.75 to 0.77 with 16,000 pieces, 0.74 to 0.76 with 8,000, and 0.71 to 0.74 with 2,000. With 600 kB of text
#: and 77 labels, more than 2,000 pieces do not change it.
PIECES_BY_BYTES = ((30_000, 500), (150_000, 1000), (400_000, 4000), (800_000, 16_000))
#: (minimum bytes of text, pieces) for a family without a tokenizer of bytes.
WORD_PIECES_BY_BYTES = ((0, 512), (100_000, 1024), (400_000, 2048), (1_500_000, 4096))
MAX_PIECES, MIN_PIECES = 16_000, 64
#: Up to this many labels a classifier needs few passes over its texts.
FEW_LABELS, FEW_LABELS_PASSES, MANY_LABELS_PASSES = 20, 3, 10
#: Batch size -> steps that it needs to learn anything.
MIN_STEPS = {32: 900, 16: 1200, 8: 1500}
#: Tokens that a classifier may train on: of 1,600 reviews of 1,024 tokens eight passes gave 0.80, five 0.73.
LABEL_BUDGET = 12_000_000
#: Tokens and passes of pretraining. Perplexity fell from 1057 (token frequencies) to 224 in four passes over film
#: reviews, and from 318 to 30 in six passes over intents. Fine-tuning uses the passes and learning rate of randomly
#: initialized weights: a rate of 7e-4, or six passes instead of three, did not improve 8,500 short reviews.
PRETRAIN_BUDGET, PRETRAIN_PASSES = 8_000_000, 20
#: Number of texts from which a model has its full width and no dropout.
MANY_ROWS = 20_000
#: Characters of the text on which numbers of pieces are tried.
SAMPLE_CHARACTERS = 1_000_000
#: Bytes of text below which the held-out documents may be most of the text.
LITTLE_TEXT_BYTES = 100_000
#: Names of Unicode's characters begin with their script.
SCRIPTS = {
    "LATIN": "Latin", "CYRILLIC": "Cyrillic", "GREEK": "Greek", "ARABIC": "Arabic", "HEBREW": "Hebrew",
    "CJK": "Chinese", "HIRAGANA": "Japanese", "KATAKANA": "Japanese", "HANGUL": "Korean", "DEVANAGARI": "Devanagari",
    "THAI": "Thai", "BENGALI": "Bengali", "TAMIL": "Tamil", "GEORGIAN": "Georgian", "ARMENIAN": "Armenian",
}  # fmt: skip


@dataclass(frozen=True)
class TokenLengths:
    """Kind of the tokens, and lengths of sampled texts.

    Attributes:
        pieces: number of pieces of a SentencePiece model to train; None if bytes are the tokens.
        lengths: number of tokens of each text of a sample.
    """

    pieces: int | None
    lengths: np.ndarray


@dataclass(frozen=True)
class Steps:
    """How long to train.

    Attributes:
        batch_size: examples per step.
        epochs: passes over the training split; None if a part of it is enough.
        max_steps: used instead.
        eval_steps: None for once after each epoch.
        seconds: about, on two cores.
    """

    batch_size: int
    epochs: int | None
    max_steps: int | None
    eval_steps: int | None
    seconds: float


def describe_script(texts: Sequence[str]) -> str:
    """Describe the script of most letters in words, such as ``mostly Latin letters``."""
    counts: Counter[str] = Counter()
    for text in texts[:500]:
        for character in text[:200]:
            if character.isalpha():
                name = unicodedata.name(character, "other").split()[0]
                counts[SCRIPTS.get(name, name.capitalize())] += 1
    if not counts:
        return "no letters"
    best, count = counts.most_common(1)[0]
    share = count / counts.total()
    return f"{'all' if share == 1 else 'mostly' if share > 0.6 else 'in part'} {best} letters"


def choose_tokens(
    texts: Sequence[str], rows: int, train: Callable[..., Any], corpus: tuple[Sequence[str], int] | None = None
) -> TokenLengths:
    """Choose bytes or a SentencePiece vocabulary, by the amount of text, and count the tokens of each text.

    Args:
        texts: sample of the texts.
        rows: number of all texts.
        train: function that trains a SentencePiece tokenizer, given texts, the number of pieces and a folder.
        corpus: other texts to train the pieces on, as a sample and the number of bytes of all; None for ``texts``.
    """
    sizes = np.array([len(text.encode("utf-8", "surrogatepass")) for text in texts])
    training_texts, total_bytes = corpus or (texts, float(sizes.mean()) * rows)
    characters = len(set("".join(training_texts)))
    num_pieces = max((pieces for least, pieces in PIECES_BY_BYTES if total_bytes >= least), default=None)
    if num_pieces is not None:
        num_pieces = max(num_pieces, math.ceil(characters * 1.3 / 500) * 500)
    if num_pieces is None or num_pieces > MAX_PIECES:
        return TokenLengths(None, sizes)
    tried_texts, source = (_cut_sample(some) for some in (texts, training_texts))
    while num_pieces >= PIECES_BY_BYTES[0][1]:
        try:
            with scratch_folder("toolkit-pieces-") as folder:
                tokenizer = train(_training_part(source), num_pieces, Path(folder))
            return TokenLengths(num_pieces, np.array([len(ids) for ids in tokenizer(tried_texts)["input_ids"]]))
        except ValueError:  # too few different words
            num_pieces = num_pieces * 3 // 4 // 100 * 100
    return TokenLengths(None, sizes)


def _cut_sample(texts: Sequence[str]) -> list[str]:
    """Texts up to :data:`SAMPLE_CHARACTERS` characters."""
    sample_texts, budget = [], SAMPLE_CHARACTERS
    for text in texts:
        if budget > 0:
            sample_texts.append(text[:budget])
            budget -= len(text)
    return sample_texts


def read_beginnings(files: Sequence[Path], encoding: str) -> Iterator[str]:
    """Yield the beginnings of files, together at most :data:`SAMPLE_CHARACTERS` bytes."""
    num_left = SAMPLE_CHARACTERS
    for path in files:
        if num_left > 0:
            content = path.read_bytes()[:num_left]
            num_left -= len(content)
            yield content.decode(encoding, "ignore")


def choose_word_pieces(num_bytes: int, texts: Sequence[str], train: Callable[..., Any]) -> int:
    """Return a number of word pieces that can be learned from the texts.

    It covers each character as a piece inside and as a piece at the end of a word.

    Args:
        num_bytes: bytes of all texts.
        texts: a sample of the texts.
        train: function that trains a tokenizer from texts, number of pieces and folder; ValueError if too few words.
    """
    num_wanted = max(pieces for least, pieces in WORD_PIECES_BY_BYTES if num_bytes >= least)
    num_wanted = max(num_wanted, math.ceil(len(set("".join(texts))) * 2.6 / 512) * 512)
    lines = _training_part("\n".join(texts).splitlines(), 3 if num_bytes < LITTLE_TEXT_BYTES else 7)
    pieces = num_wanted
    while pieces >= MIN_PIECES:
        try:
            with scratch_folder("toolkit-pieces-") as folder:
                train(lines, pieces, Path(folder))
                return pieces
        except ValueError:  # too few different words
            pieces = pieces * 3 // 4
    return num_wanted


def _training_part(texts: Sequence[str], tenths: int = 7) -> list[str]:
    """Return the first `tenths` of every ten texts, like a run, whose tokenizer is not trained on held-out texts."""
    return [text for place, text in enumerate(texts) if place % 10 < tenths] or list(texts)


def choose_length(lengths: np.ndarray, max_length: int = MAX_LENGTH, min_length: int = 32) -> int:
    """Return the smallest multiple of a chunk, or half a chunk for short texts, that fits 95% of the texts.

    Args:
        lengths: number of tokens of each text, (N,).
        max_length: largest length that may be chosen.
        min_length: smallest length that may be chosen.
    """
    needed_length = max(min_length, upper_length(lengths))
    unit = CHUNK_TOKENS // 2 if needed_length <= CHUNK_TOKENS else CHUNK_TOKENS
    return min(max_length, -(-needed_length // unit) * unit)


def upper_length(lengths: np.ndarray) -> int:
    """Return the length that 95% of the texts do not exceed.

    Args:
        lengths: number of tokens of each text, (N,).
    """
    return int(np.ceil(np.percentile(lengths, 95)))


def count_windows(lengths: np.ndarray, max_tokens: int) -> float:
    """Return the mean number of windows of at most ``max_tokens`` tokens for a text."""
    return float(np.maximum(1, np.ceil(lengths / max_tokens)).mean())


def choose_epochs(num_labels: int, examples: int, length: int) -> int:
    """Return the number of passes after which a small, randomly initialized classifier begins to memorize its texts.

    Measured on reviews (8,500 texts, two labels): accuracy is best after the third of fifteen passes (0.74) and falls
    to 0.71. On intents (10,000 texts, 77 labels) it rises up to the ninth pass.

    Args:
        num_labels: number of labels.
        examples: number of training examples.
        length: maximum length of an example, in tokens.
    """
    passes = MANY_LABELS_PASSES if num_labels > FEW_LABELS else FEW_LABELS_PASSES
    batch = _choose_batch_size(examples, length)
    return max(passes, round(MIN_STEPS[batch] * batch / examples))


def choose_steps(examples: int, length: int, budget: int = TOKEN_BUDGET, max_epochs: int = 20) -> Steps:
    """Choose how long to train on examples of a length.

    Args:
        examples: number of training examples.
        length: maximum length of an example, in tokens.
        budget: number of tokens that the training may read.
        max_epochs: maximum number of passes over the examples.
    """
    batch = _choose_batch_size(examples, length)
    epochs = budget / (examples * length)
    if epochs < 1:
        steps = max(1, round(budget / (batch * length)))
        return Steps(batch, None, steps, max(1, steps // 5), budget / TOKENS_A_SECOND)
    passes = min(max_epochs, max(1, round(epochs)))
    return Steps(batch, passes, None, None, passes * examples * length / TOKENS_A_SECOND)


def _choose_batch_size(examples: int, length: int) -> int:
    """Return the batch size for a number of training examples and a maximum length in tokens.

    Args:
        examples: number of training examples.
        length: maximum length of an example, in tokens.
    """
    batch = 32 if length <= 128 else 16 if length <= 512 else 8
    return 8 if examples < 300 else min(batch, 16) if examples < 1500 else batch


def choose_held_out_share(counts: Sequence[int]) -> float:
    """Share of the rows to validate on: a tenth of many, at most some 2,000; more of few, so that there are some.

    Args:
        counts: rows of each label; without labels, one number.
    """
    rows = sum(counts)
    share = next((share for share in (0.1, 0.2, 0.3) if sum(round(count * share) for count in counts) >= 20), 0.3)
    if rows * share > 2000:
        share = max(0.001, round(2000 / rows, 3))
    while share < 0.9 and not any(min(round(count * share), count - 1) for count in counts):
        share = round(share + 0.1, 1)
    return share
