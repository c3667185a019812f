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
BUDGET = 8_000_000
TOKENS_A_SECOND = 35_000
#: The same for a language model, where a token costs more: the whole vocabulary is scored.
TEXT_BUDGET = 3_000_000
#: Largest length proposed; of two texts read as one, longer ones are cut, and the recipe says so.
LONGEST = 1024
#: A text to classify is read at once up to so many tokens. Of longer ones windows are read: in the first 1,024 tokens
#: 1,600 film reviews were told apart at 0.80, in windows of 512, 256 and 128 tokens at 0.82, 0.82 and 0.82; and 268
#: documents of 4,000 words at 0.61; 0.88, 0.97 and 0.98 (2026-11-26).
AT_ONCE, WINDOW = 512, 256
#: Lengths are multiples of it: a chunk of attention.
CHUNK = 64
#: (least bytes of text, pieces to learn from it); with less text, bytes are the tokens.
#: With 16,000 pieces 8,500 short reviews are told apart at 0.75 to 0.77, with 8,000 at 0.74 to 0.76, with 2,000 at 0.71
#: to 0.74; with 600 kB of text and 77 labels more than 2,000 change nothing (2026-11-26).
PIECES = ((30_000, 500), (150_000, 1000), (400_000, 4000), (800_000, 16_000))
#: The same where no tokenizer works without training.
WORD_PIECES = ((0, 512), (100_000, 1024), (400_000, 2048), (1_500_000, 4096))
MOST_PIECES, LEAST_PIECES = 16_000, 64
#: Up to this many labels a classifier needs few passes over its texts.
FEW_LABELS, FEW_LABELS_PASSES, MANY_LABELS_PASSES = 20, 3, 10
#: Batch size -> steps that it needs to learn anything.
LEAST_STEPS = {32: 900, 16: 1200, 8: 1500}
#: Tokens that a classifier may train on: of 1,600 reviews of 1,024 tokens eight passes gave 0.80, five 0.73.
LABEL_BUDGET = 12_000_000
#: Tokens and passes of pretraining. In four passes over film reviews the perplexity fell from 1057, of frequencies,
#: to 224; in six over intents, from 318 to 30. What starts from it wants the passes and rate of new weights: with 7e-4,
#: or six passes for three, 8,500 short reviews were told apart no better (2026-11-26).
PRETRAIN_BUDGET, PRETRAIN_PASSES = 8_000_000, 20
#: A model for as many texts has its whole width, and no dropout.
MANY_ROWS = 20_000
#: Characters of text that pieces are tried on.
TRIED_ON = 1_000_000
#: With fewer bytes of text, the few documents held out may be most of it.
LITTLE = 100_000
#: Names of Unicode's characters begin with their script.
SCRIPTS = {
    "LATIN": "Latin", "CYRILLIC": "Cyrillic", "GREEK": "Greek", "ARABIC": "Arabic", "HEBREW": "Hebrew",
    "CJK": "Chinese", "HIRAGANA": "Japanese", "KATAKANA": "Japanese", "HANGUL": "Korean", "DEVANAGARI": "Devanagari",
    "THAI": "Thai", "BENGALI": "Bengali", "TAMIL": "Tamil", "GEORGIAN": "Georgian", "ARMENIAN": "Armenian",
}  # fmt: skip


@dataclass(frozen=True)
class TokenLengths:
    """Attributes:
    pieces: of a SentencePiece model to train; None if bytes are the tokens.
    lengths: of the texts of a sample, in tokens.
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


def script_of(texts: Sequence[str]) -> str:
    """Say what script the letters mostly are."""
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


def tokens_of(
    texts: Sequence[str], rows: int, train: Callable[..., Any], corpus: tuple[Sequence[str], int] | None = None
) -> TokenLengths:
    """Choose the kind of tokens, and count those of the texts.

    Args:
        texts: a sample.
        rows: number of all texts.
        train: (texts, number of pieces, folder) -> a tokenizer.
        corpus: other texts that the pieces are learned from: a sample, and the bytes of all; None for ``texts``.
    """
    sizes = np.array([len(text.encode("utf-8", "surrogatepass")) for text in texts])
    learned, total = corpus or (texts, float(sizes.mean()) * rows)
    characters = len(set("".join(learned)))
    wanted = max((pieces for least, pieces in PIECES if total >= least), default=None)
    if wanted is not None:
        wanted = max(wanted, math.ceil(characters * 1.3 / 500) * 500)
    if wanted is None or wanted > MOST_PIECES:
        return TokenLengths(None, sizes)
    tried, source = (_beginning(some) for some in (texts, learned))
    while wanted >= PIECES[0][1]:
        try:
            with scratch_folder("toolkit-pieces-") as folder:
                tokenizer = train(_part(source), wanted, Path(folder))
            return TokenLengths(wanted, np.array([len(ids) for ids in tokenizer(tried)["input_ids"]]))
        except ValueError:  # too few different words
            wanted = wanted * 3 // 4 // 100 * 100
    return TokenLengths(None, sizes)


def _beginning(texts: Sequence[str]) -> list[str]:
    """Texts up to :data:`TRIED_ON` characters."""
    tried, budget = [], TRIED_ON
    for text in texts:
        if budget > 0:
            tried.append(text[:budget])
            budget -= len(text)
    return tried


def beginnings(files: Sequence[Path], encoding: str) -> Iterator[str]:
    """Read files until there is enough text to try pieces on."""
    left = TRIED_ON
    for path in files:
        if left > 0:
            content = path.read_bytes()[:left]
            left -= len(content)
            yield content.decode(encoding, "ignore")


def word_pieces(size: int, texts: Sequence[str], train: Callable[..., Any]) -> int:
    """Return a number of word pieces for ``size`` bytes, which the texts give: each character is one inside and one at
    the end of a word."""
    wanted = max(pieces for least, pieces in WORD_PIECES if size >= least)
    wanted = max(wanted, math.ceil(len(set("".join(texts))) * 2.6 / 512) * 512)
    lines = _part("\n".join(texts).splitlines(), 3 if size < LITTLE else 7)
    pieces = wanted
    while pieces >= LEAST_PIECES:
        try:
            with scratch_folder("toolkit-pieces-") as folder:
                train(lines, pieces, Path(folder))
                return pieces
        except ValueError:  # too few different words
            pieces = pieces * 3 // 4
    return wanted


def _part(texts: Sequence[str], tenths: int = 7) -> list[str]:
    """Some texts of each ten: the tokenizer of a run is trained on what is not held out."""
    return [text for place, text in enumerate(texts) if place % 10 < tenths] or list(texts)


def length_for(lengths: np.ndarray, most: int = LONGEST, least: int = 32) -> int:
    """Return the least multiple of a chunk that fits 95% of the texts; within one chunk, of half a chunk."""
    wanted = max(least, percentile(lengths))
    unit = CHUNK // 2 if wanted <= CHUNK else CHUNK
    return min(most, -(-wanted // unit) * unit)


def percentile(lengths: np.ndarray) -> int:
    """Return the length that 95% of the texts do not exceed."""
    return int(np.ceil(np.percentile(lengths, 95)))


def windows_of(lengths: np.ndarray, longest: int) -> float:
    """Return how many windows of at most ``longest`` tokens a text is read in, on average."""
    return float(np.maximum(1, np.ceil(lengths / longest)).mean())


def epochs_for(labels: int, examples: int, length: int) -> int:
    """Return the most passes from which a small classifier from new weights still gains; after that it learns its texts
    by heart.

    Measured on reviews (8,500 texts, two labels): the third pass is the best of fifteen, which end at 0.71 beside 0.74;
    intents (10,000 texts, 77 labels) gain up to the ninth.
    """
    passes = MANY_LABELS_PASSES if labels > FEW_LABELS else FEW_LABELS_PASSES
    batch = _batch(examples, length)
    return max(passes, round(LEAST_STEPS[batch] * batch / examples))


def steps_for(examples: int, length: int, budget: int = BUDGET, most_epochs: int = 20) -> Steps:
    """Choose how long to train on examples of a length."""
    batch = _batch(examples, length)
    epochs = budget / (examples * length)
    if epochs < 1:
        steps = max(1, round(budget / (batch * length)))
        return Steps(batch, None, steps, max(1, steps // 5), budget / TOKENS_A_SECOND)
    passes = min(most_epochs, max(1, round(epochs)))
    return Steps(batch, passes, None, None, passes * examples * length / TOKENS_A_SECOND)


def _batch(examples: int, length: int) -> int:
    batch = 32 if length <= 128 else 16 if length <= 512 else 8
    return 8 if examples < 300 else min(batch, 16) if examples < 1500 else batch


def held_out(counts: Sequence[int]) -> float:
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
