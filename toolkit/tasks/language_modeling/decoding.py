"""How a language model chooses tokens: the most probable one, a drawn one, or by beam search.

The algorithms know no model: they are given a function that computes the next token's logits (:class:`NextToken` makes
one of the port), and choose as ``transformers`` does: logits are rounded to float32 first; the repetition penalty
(Keskar et al. 2019, section 4.1) covers the prompt too, and comes before the temperature, top-k and top-p; beam search
applies it to log-probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models import families

#: Called with the sequences so far [B, n] and, for each, the row of the previous call that it continues (None in the
#: first call); returns the next token's logits [B, V].
NextLogits = Callable[[np.ndarray, np.ndarray | None], np.ndarray]

#: Limits of float32, the type of the logits.
FLOAT32 = np.finfo(np.float32)
#: Added to the score of a candidate that must not be chosen, as the reference does.
NEVER = np.float32(-1e9)


@dataclass(frozen=True)
class Decoding:
    """How the next token is chosen.

    Attributes:
        length: the most new tokens.
        beams: more than 1: beam search, which keeps this many sequences (no sampling).
        sample: draw from the distribution; otherwise take the most probable token.
        temperature: divides the logits; below 1, probable tokens become more probable.
        top_k: draw from the k most probable tokens; None: from all.
        top_p: draw from the smallest set of most probable tokens whose probabilities sum to this; None: from all.
        repetition_penalty: divides the positive logits of tokens already in the sequence, multiplies the negative ones.
        stop: the id of a token that ends the text, and is part of it; None: only `length` ends it.
        seed: of the draws.
        length_penalty: a beam's score is divided by its length to this power.
    """

    length: int = 100
    beams: int = 1
    sample: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.2
    stop: int | None = None
    seed: int = 0
    length_penalty: float = 1.0


def generate(next_logits: NextLogits, prompt: Sequence[int], decoding: Decoding) -> Iterator[int]:
    """Yield the new tokens, each as soon as it is chosen; beam search, all at the end."""
    if decoding.beams > 1:
        yield from beam_search(next_logits, prompt, decoding)
        return
    for tokens in _steps(next_logits, [prompt], decoding, [decoding.seed]):
        yield tokens[0]


def generate_together(
    next_logits: NextLogits, prompts: Sequence[Sequence[int]], decoding: Decoding, seeds: Sequence[int]
) -> list[list[int]]:
    """Return the new tokens after each of several prompts of equal length, as :func:`generate` chooses them.

    Args:
        seeds: of the draws for each prompt, in place of ``decoding.seed``.
    """
    if decoding.beams > 1:
        return [beam_search(next_logits, prompt, decoding) for prompt in prompts]
    found: list[list[int]] = [[] for _ in prompts]
    for tokens in _steps(next_logits, prompts, decoding, seeds):
        for place, token in tokens.items():
            found[place].append(token)
    return found


def _steps(
    next_logits: NextLogits, prompts: Sequence[Sequence[int]], decoding: Decoding, seeds: Sequence[int]
) -> Iterator[dict[int, int]]:
    """Yield the next token of each prompt that has not ended: its place -> token."""
    rngs = [np.random.default_rng(seed) for seed in seeds]
    sequences = np.asarray(prompts, dtype=np.int64)
    places, parents = np.arange(len(sequences)), None
    for _ in range(decoding.length):
        logits = next_logits(sequences, parents).astype(np.float32, copy=False)
        logits = penalise(logits, sequences, decoding.repetition_penalty)
        chosen = np.array(
            [
                draw(row, decoding, rngs[place]) if decoding.sample else int(row.argmax())
                for place, row in zip(places, logits, strict=True)
            ]
        )
        yield dict(zip(places.tolist(), chosen.tolist(), strict=True))
        parents = np.flatnonzero(chosen != decoding.stop)
        if not len(parents):
            return
        sequences, places = np.column_stack([sequences, chosen])[parents], places[parents]


def penalise(logits: np.ndarray, sequences: np.ndarray, penalty: float) -> np.ndarray:
    """Lower logits [B, V] of the tokens that sequences [B, n] already hold."""
    if penalty == 1.0:
        return logits
    present = np.take_along_axis(logits, sequences, axis=1)
    with np.errstate(over="ignore"):
        lowered_logits = np.where(present < 0, present * np.float32(penalty), present / np.float32(penalty))
    penalised = logits.copy()
    np.put_along_axis(penalised, sequences, np.clip(lowered_logits, -FLOAT32.max, FLOAT32.max), axis=1)
    return penalised


def is_valid_penalty(penalty: float) -> bool:
    """Return whether a repetition penalty is a positive finite number in float32, the type of the logits."""
    return bool(FLOAT32.tiny <= penalty <= FLOAT32.max)


def draw(logits: np.ndarray, decoding: Decoding, rng: np.random.Generator) -> int:
    """Draw a token from logits [V] by its probability (:func:`distribution`)."""
    cumulative = np.cumsum(distribution(logits, decoding))
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))


def distribution(logits: np.ndarray, decoding: Decoding) -> np.ndarray:
    """Return each token's probability, [V] float64, to be drawn: temperature, then top-k, then top-p.

    The largest logit is subtracted before the division: at a temperature near 0, the others become -inf and it stays 0.
    """
    logits = logits.astype(np.float64)
    with np.errstate(over="ignore"):
        logits = (logits - logits.max()) / decoding.temperature
    if decoding.top_k is not None and decoding.top_k < len(logits):
        logits = np.where(logits < np.partition(logits, -decoding.top_k)[-decoding.top_k], -np.inf, logits)
    if decoding.top_p is not None and decoding.top_p < 1:
        order = np.argsort(logits, kind="stable")
        unlikely = np.cumsum(_softmax(logits[order])) <= 1 - decoding.top_p
        unlikely[-1] = False
        logits = logits.copy()
        logits[order[unlikely]] = -np.inf
    return _softmax(logits)


def beam_search(next_logits: NextLogits, prompt: Sequence[int], decoding: Decoding) -> list[int]:
    """Return the new tokens of the best-scoring sequence, by its log-probability / its length ** `length_penalty`.

    Each step considers twice as many candidates as beams, so that enough remain when some end. The search stops when no
    beam can overtake the worst finished sequence. As in the reference, a beam counts with the score that it would have
    if it ended now.
    """
    beams, first = decoding.beams, len(prompt)
    running = np.tile(np.asarray(prompt, dtype=np.int64), (beams, 1))  # (beams, n)
    running_scores = np.full(beams, NEVER)
    running_scores[0] = 0.0  # all beams are still equal, so only the first may be continued
    finished: list[tuple[np.float32, bool, np.ndarray]] = [(NEVER, False, running[0])] * beams
    parents: np.ndarray | None = None
    improvable = True
    for length in range(1, decoding.length + 1):
        logits = next_logits(running, parents).astype(np.float32, copy=False)
        log_probabilities = penalise(_log_softmax(logits), running, decoding.repetition_penalty)
        total = (log_probabilities + running_scores[:, None]).reshape(-1)
        top = _largest(total, 2 * beams)
        rows, tokens = np.divmod(top, logits.shape[1])
        candidates = np.concatenate([running[rows], tokens[:, None]], axis=1)  # (2 * beams, n + 1)
        ends = (tokens == decoding.stop) | (length == decoding.length)
        continued = total[top] + ends * NEVER
        kept = _largest(continued, beams)
        for place in range(2 * beams):
            # Candidates beyond the first `beams` may be continued, but not chosen.
            chosen = bool(ends[place]) and place < beams
            score = total[top[place]] / np.float32(length**decoding.length_penalty)
            finished.append((score if chosen else score + NEVER, chosen, candidates[place]))
        finished = [finished[place] for place in _largest(np.array([entry[0] for entry in finished]), beams)]
        running, running_scores, parents = candidates[kept], continued[kept], rows[kept]
        worst = min(entry[0] for entry in finished)
        bounds = [worst if entry[1] else NEVER for entry in finished]
        possible = running_scores[0] / np.float32(length**decoding.length_penalty)
        improvable = improvable and any(possible > bound for bound in bounds)
        if not improvable or ends.all():
            break
    return finished[0][2][first:].tolist()


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """The indices of the largest values, in descending order; the first of equal ones."""
    return np.argsort(-values, kind="stable")[:count]


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    """Along the last axis, in the logits' own precision."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def longest_text(model: Any) -> int:
    """Return the most tokens a model's text may have, prompt included."""
    return families.part(model.config.model_type, "lengths").longest(vars(model.config))


class NextToken:
    """The port's logits for the next token, as :data:`NextLogits` describes.

    Args:
        model: with a ``causal_lm`` head, in evaluation mode.
        use_cache: keep the keys and values of earlier positions, and compute only the last position. A model that has
            no such cache computes all positions each time.
        vocab_size: number of tokens to choose from, if the model has scores for more; None: all.
    """

    def __init__(self, model: Any, use_cache: bool = True, vocab_size: int | None = None) -> None:
        self.model = model
        self.vocab_size = vocab_size
        self.use_cache = use_cache and model.has_cache
        self._continuation: Any = None

    def __call__(self, sequences: np.ndarray, parents: np.ndarray | None = None) -> np.ndarray:
        """Logits [B, V] after sequences [B, n]; each adds one token to the row `parents` of the previous call."""
        import paddle

        with paddle.no_grad():
            if not self.use_cache:
                return self._whole(sequences)
            if parents is None or self._continuation is None:
                logits, self._continuation = self.model.begin(paddle.to_tensor(sequences))
            else:
                if not np.array_equal(parents, np.arange(self._continuation.texts)):
                    self._continuation.choose(paddle.to_tensor(parents))
                logits = self._continuation(paddle.to_tensor(sequences[:, -1:]))
            return logits.numpy()[:, : self.vocab_size]

    def _whole(self, sequences: np.ndarray) -> np.ndarray:
        """As :meth:`__call__`, without a cache; where lengths must be certain multiples, the rest is padding."""
        import paddle

        config = self.model.config
        length = sequences.shape[1]
        missing = families.part(config.model_type, "lengths").evaluated(vars(config), length) - length
        ids = np.pad(sequences, ((0, 0), (0, missing)), constant_values=config.pad_token_id or 0)
        kept = np.pad(np.ones_like(sequences), ((0, 0), (0, missing)))
        return (
            self.model(paddle.to_tensor(ids), paddle.to_tensor(kept)).logits[:, length - 1, : self.vocab_size].numpy()
        )
