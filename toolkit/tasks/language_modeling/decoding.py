"""Choose the tokens of a language model: the most probable token, a drawn token, or beam search.

The algorithms do not depend on a model. They call a function that computes the logits of the next token
(:class:`NextToken` wraps the port as such a function), and choose as ``transformers`` does. Logits are rounded to
float32 first. The repetition penalty (Keskar et al. 2019, section 4.1) includes the prompt, and precedes the
temperature, top-k and top-p; beam search applies it to log-probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models import families

#: Function that returns the logits of the next token, (B, V). Its arguments are the sequences so far, (B, n), and for
#: each the row of the previous call that it continues, (B,), or None in the first call.
NextLogits = Callable[[np.ndarray, np.ndarray | None], np.ndarray]

#: Limits of float32, the type of the logits.
FLOAT32 = np.finfo(np.float32)
#: Added to the score of a candidate that must not be chosen, as the reference does.
EXCLUDED_SCORE = np.float32(-1e9)


@dataclass(frozen=True)
class Decoding:
    """Settings that choose the next token.

    Attributes:
        length: maximum number of new tokens.
        beams: number of sequences that beam search keeps; 1 turns beam search off. Beam search does not sample.
        sample: whether to draw from the distribution; otherwise the most probable token is taken.
        temperature: divisor of the logits; below 1, probable tokens become more probable.
        top_k: number of most probable tokens to draw from; None for all tokens.
        top_p: probability to cover: tokens are drawn from the smallest set of most probable tokens that reaches it;
            None for all tokens.
        repetition_penalty: divisor of the positive logits of tokens in the sequence, and factor of their negative
            logits.
        stop: id of a token that ends the text and is part of it; None if only `length` ends it.
        seed: seed of the draws.
        length_penalty: exponent of the length that divides the score of a beam.
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
    """Yield each new token as soon as it is chosen; beam search yields all tokens at the end.

    Args:
        next_logits: function that computes the logits of the next token.
        prompt: token ids of the prompt, (n,).
        decoding: settings of the decoding.
    """
    if decoding.beams > 1:
        yield from beam_search(next_logits, prompt, decoding)
        return
    for tokens in _steps(next_logits, [prompt], decoding, [decoding.seed]):
        yield tokens[0]


def generate_together(
    next_logits: NextLogits, prompts: Sequence[Sequence[int]], decoding: Decoding, seeds: Sequence[int]
) -> list[list[int]]:
    """Return the new tokens after each of several prompts of equal length, chosen as in :func:`generate`.

    Args:
        next_logits: function that computes the logits.
        prompts: token ids of each prompt, (prompts, n).
        decoding: settings; its `seed` is not used.
        seeds: seed of the draws for each prompt.
    """
    if decoding.beams > 1:
        return [beam_search(next_logits, prompt, decoding) for prompt in prompts]
    new_tokens: list[list[int]] = [[] for _ in prompts]
    for tokens in _steps(next_logits, prompts, decoding, seeds):
        for index, token in tokens.items():
            new_tokens[index].append(token)
    return new_tokens


def _steps(
    next_logits: NextLogits, prompts: Sequence[Sequence[int]], decoding: Decoding, seeds: Sequence[int]
) -> Iterator[dict[int, int]]:
    """Yield the next token of each prompt that has not ended, by the index of the prompt.

    Args:
        next_logits: function that computes the logits of the next token.
        prompts: token ids of each prompt, (prompts, n).
        decoding: settings of the decoding.
        seeds: seed of the draws for each prompt.
    """
    rngs = [np.random.default_rng(seed) for seed in seeds]
    sequences = np.asarray(prompts, dtype=np.int64)
    indices, parents = np.arange(len(sequences)), None
    for _ in range(decoding.length):
        logits = next_logits(sequences, parents).astype(np.float32, copy=False)
        logits = apply_repetition_penalty(logits, sequences, decoding.repetition_penalty)
        next_tokens = np.array(
            [
                draw(row, decoding, rngs[index]) if decoding.sample else int(row.argmax())
                for index, row in zip(indices, logits, strict=True)
            ]
        )
        yield dict(zip(indices.tolist(), next_tokens.tolist(), strict=True))
        parents = np.flatnonzero(next_tokens != decoding.stop)
        if not len(parents):
            return
        sequences, indices = np.column_stack([sequences, next_tokens])[parents], indices[parents]


def apply_repetition_penalty(logits: np.ndarray, sequences: np.ndarray, penalty: float) -> np.ndarray:
    """Lower the logits (B, V) of the tokens that occur in the sequences (B, n)."""
    if penalty == 1.0:
        return logits
    present_logits = np.take_along_axis(logits, sequences, axis=1)
    with np.errstate(over="ignore"):
        lowered_logits = np.where(
            present_logits < 0, present_logits * np.float32(penalty), present_logits / np.float32(penalty)
        )
    penalized_logits = logits.copy()
    np.put_along_axis(penalized_logits, sequences, np.clip(lowered_logits, -FLOAT32.max, FLOAT32.max), axis=1)
    return penalized_logits


def is_valid_penalty(penalty: float) -> bool:
    """Return whether a repetition penalty is a positive finite number in float32, the type of the logits."""
    return bool(FLOAT32.tiny <= penalty <= FLOAT32.max)


def draw(logits: np.ndarray, decoding: Decoding, rng: np.random.Generator) -> int:
    """Draw a token from logits (V,) by its probability (:func:`distribution`).

    Args:
        logits: logits of the next token, (V,).
        decoding: settings of the decoding.
        rng: random generator.
    """
    cumulative = np.cumsum(distribution(logits, decoding))
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))


def distribution(logits: np.ndarray, decoding: Decoding) -> np.ndarray:
    """Return the probability of drawing each token, (V,) float64, after temperature, top-k and top-p.

    The largest logit is subtracted before the division. So at a temperature near 0 it stays 0, and all others become
    -inf.
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
    """Return the new tokens of the sequence with the highest log-probability / length ** `length_penalty`.

    Each step considers twice as many candidates as beams, so that enough remain when some end. The search stops when no
    beam can overtake the worst finished sequence. As in the reference, a beam is rated with the score that it would
    have if it ended now.

    Args:
        next_logits: function that computes the logits of the next token.
        prompt: token ids of the prompt, (n,).
        decoding: settings of the decoding.
    """
    beams, prompt_length = decoding.beams, len(prompt)
    running_beams = np.tile(np.asarray(prompt, dtype=np.int64), (beams, 1))  # (beams, n)
    running_scores = np.full(beams, EXCLUDED_SCORE)
    running_scores[0] = 0.0  # all beams are still equal, so only the first may be continued
    finished_beams: list[tuple[np.float32, bool, np.ndarray]] = [(EXCLUDED_SCORE, False, running_beams[0])] * beams
    parents: np.ndarray | None = None
    can_improve = True
    for length in range(1, decoding.length + 1):
        logits = next_logits(running_beams, parents).astype(np.float32, copy=False)
        log_probabilities = apply_repetition_penalty(_log_softmax(logits), running_beams, decoding.repetition_penalty)
        scores = (log_probabilities + running_scores[:, None]).reshape(-1)
        best = _largest(scores, 2 * beams)
        rows, tokens = np.divmod(best, logits.shape[1])
        candidates = np.concatenate([running_beams[rows], tokens[:, None]], axis=1)  # (2 * beams, n + 1)
        has_ended = (tokens == decoding.stop) | (length == decoding.length)
        continued_scores = scores[best] + has_ended * EXCLUDED_SCORE
        kept_indices = _largest(continued_scores, beams)
        for index in range(2 * beams):
            # Candidates after the first `beams` may be continued, but cannot end.
            is_finished = bool(has_ended[index]) and index < beams
            score = scores[best[index]] / np.float32(length**decoding.length_penalty)
            finished_beams.append((score if is_finished else score + EXCLUDED_SCORE, is_finished, candidates[index]))
        finished_beams = [
            finished_beams[index] for index in _largest(np.array([entry[0] for entry in finished_beams]), beams)
        ]
        running_beams, running_scores, parents = (
            candidates[kept_indices],
            continued_scores[kept_indices],
            rows[kept_indices],
        )
        worst = min(entry[0] for entry in finished_beams)
        bounds = [worst if entry[1] else EXCLUDED_SCORE for entry in finished_beams]
        best_possible_score = running_scores[0] / np.float32(length**decoding.length_penalty)
        can_improve = can_improve and any(best_possible_score > bound for bound in bounds)
        if not can_improve or has_ended.all():
            break
    return finished_beams[0][2][prompt_length:].tolist()


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the largest values, in descending order; equal values keep their order."""
    return np.argsort(-values, kind="stable")[:count]


def _softmax(logits: np.ndarray) -> np.ndarray:
    """Return the softmax of logits, (vocabulary,)."""
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return the log-softmax along the last axis, in the precision of the logits."""
    shifted_logits = logits - logits.max(axis=-1, keepdims=True)
    return shifted_logits - np.log(np.exp(shifted_logits).sum(axis=-1, keepdims=True))


def max_text_length(model: Any) -> int:
    """Return the maximum number of tokens of a model's text, prompt included."""
    return families.part(model.config.model_type, "lengths").max_evaluation_length(vars(model.config))


class NextToken:
    """The port as a function of the next token's logits (:data:`NextLogits`).

    Args:
        model: port with a ``causal_lm`` head, in evaluation mode.
        use_cache: whether to keep the keys and values of earlier positions and compute only the last position. A model
            without such a cache computes all positions each time.
        vocab_size: number of tokens to choose from, if the model has scores for more; None for all.
    """

    def __init__(self, model: Any, vocab_size: int | None = None, *, use_cache: bool = True) -> None:
        self.model = model
        self.vocab_size = vocab_size
        self.use_cache = use_cache and model.has_cache
        self._continuation: Any = None

    def __call__(self, sequences: np.ndarray, parents: np.ndarray | None = None) -> np.ndarray:
        """Return the logits (B, V) after sequences (B, n); each adds a token to row `parents` of the last call."""
        import paddle

        with paddle.no_grad():
            if not self.use_cache:
                return self._compute_all_positions(sequences)
            if parents is None or self._continuation is None:
                logits, self._continuation = self.model.begin(paddle.to_tensor(sequences))
            else:
                if not np.array_equal(parents, np.arange(self._continuation.num_texts)):
                    self._continuation.select_texts(paddle.to_tensor(parents))
                logits = self._continuation(paddle.to_tensor(sequences[:, -1:]))
            return logits.numpy()[:, : self.vocab_size]

    def _compute_all_positions(self, sequences: np.ndarray) -> np.ndarray:
        """Return the logits (B, V) without a cache; sequences are padded if the model needs certain lengths."""
        import paddle

        config = self.model.config
        length = sequences.shape[1]
        padding = families.part(config.model_type, "lengths").evaluation_length(vars(config), length) - length
        ids = np.pad(sequences, ((0, 0), (0, padding)), constant_values=config.pad_token_id or 0)
        attention_mask = np.pad(np.ones_like(sequences), ((0, 0), (0, padding)))
        return (
            self.model(paddle.to_tensor(ids), paddle.to_tensor(attention_mask))
            .logits[:, length - 1, : self.vocab_size]
            .numpy()
        )
