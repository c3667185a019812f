"""Gradients of both sides' optimizers in the short training after the step, and the weight of each example in it.

The examples of an update are those of one accumulated batch. Each has its own gradient: R64's with its elements scaled
in turn. The gradient of a mean loss is the examples' mean by their loss terms. So wrongly weighted micro-batches give
other gradients, not the same ones at another scale, to which clipping and Adam are blind.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

#: Shares of R64's gradients given to each update; the elements take them in turn. With equal gradients every time, the
#: decay rates of Adam's moments would cancel out; with half of all of them, that of the second moment still would
#: wherever both are clipped to the same norm.
SHARES = ((1.0,), (-0.5, 0.25), (0.75, -1.0, 0.5), (-0.25, 1.5))
#: In the place of the second update's for Lion, of whose sums it takes the sign alone: so graded that a wrong beta1
#: turns the sign of some. With none of the usual betas (0.9 and 0.99, 0.5 and 0.75) is a sum 0: rounding would decide.
LION_SHARES = tuple(-0.97 * 2.0 ** (-step / 6) for step in range(60))
#: Factors by which an example scales the gradient's elements in turn; the next example starts one factor later.
ROW_FACTORS = (0.5, 1.0, 1.5)
#: Labels of this value add no loss term.
IGNORED_LABEL = -100


def count_update_rows(batch_size: int, accumulation_steps: int) -> int:
    """Examples of an update here: three micro-batches tell as much as many; the last is one short if possible."""
    return max(1, batch_size * min(accumulation_steps, 3) - (batch_size > 1 and accumulation_steps > 1))


def count_loss_terms(
    task: str, labels: Mapping[str, np.ndarray], class_weights: Sequence[float] | None = None
) -> np.ndarray:
    """Number of terms of the mean loss of each example, by the loss's definition: int64 (N,). If the mean is weighted
    by class, the weight of each example's class: float64 (N,).

    Args:
        labels: ``labels`` (N, ...), or ``start_positions`` (N,).
        class_weights: by class. With several labels per text, they scale terms but are not part of the divisor.
    """
    if task == "question_answering":
        return np.ones(len(labels["start_positions"]), np.int64)
    given = labels["labels"]
    if class_weights is not None and given.ndim == 1:
        return np.where(given == IGNORED_LABEL, 0.0, np.asarray(class_weights, np.float64)[given.clip(0)])
    kept = given[:, 1:] if task == "language_modeling" else given.reshape(len(given), -1)
    return (kept != IGNORED_LABEL).sum(1)


def make_distinct_inputs(count: int) -> dict[str, np.ndarray]:
    """Distinct tokens and masks of the examples of an update, int64 (N, T) each: no token comes twice, and a mask is
    the example's number, from 1 on, in binary digits."""
    length = count.bit_length()
    digits = np.arange(1, count + 1)[:, None] >> np.arange(length) & 1
    return {"input_ids": np.arange(count * length).reshape(count, length), "attention_mask": digits}


def clean_examples(examples: Mapping[str, np.ndarray], terms: np.ndarray) -> dict[str, np.ndarray]:
    """What an update's forwards should be given of each example, by ``trained:KEY``: float64 (N, ...), floats rounded
    to float32. An example without a loss term may be left out, and is all 0."""
    found = {}
    for key, value in examples.items():
        value = np.array(value.astype(np.float32) if value.dtype.kind == "f" else value, np.float64)
        value[np.asarray(terms) == 0] = 0.0
        found[f"trained:{key}"] = value
    return found


def weigh_terms(terms: np.ndarray) -> np.ndarray:
    """Weight of each example in the mean over all terms; 0 if there are none."""
    total = terms.sum()
    return terms / total if total else np.zeros(len(terms))


def scale_gradient(
    gradient: np.ndarray, update: int, weights: Sequence[float] | np.ndarray, optimizer: str = "adamw"
) -> np.ndarray:
    """Gradient of a mean over examples, made from one of R64's.

    Args:
        gradient: of R64, in the layout of the reference.
        weights: of every example in the mean; they add up to 1.
        optimizer: of :class:`toolkit.parity.job.job.TrainingSettings`.
    """
    shares = LION_SHARES if optimizer == "lion" and update == 2 else SHARES[update - 1]
    return _times_in_turn(gradient, _factors(shares, tuple(map(float, weights))))


@functools.lru_cache(maxsize=64)
def _factors(shares: tuple[float, ...], weights: tuple[float, ...]) -> np.ndarray:
    """Factors of the elements of every gradient in turn: an update's shares, each times those of its examples."""
    of_examples = [
        sum(weight * ROW_FACTORS[(element + example) % len(ROW_FACTORS)] for example, weight in enumerate(weights))
        for element in range(len(ROW_FACTORS))
    ]
    period = math.lcm(len(shares), len(of_examples))
    return np.resize(shares, period) * np.resize(of_examples, period)


def _times_in_turn(value: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Multiply a tensor's elements by the factors in turn, cyclically."""
    scaled = np.empty(value.shape, np.result_type(value, factors))
    flat, result = np.ravel(value), scaled.reshape(-1)
    whole = flat.size // factors.size * factors.size
    np.multiply(flat[:whole].reshape(-1, factors.size), factors, out=result[:whole].reshape(-1, factors.size))
    np.multiply(flat[whole:], factors[: flat.size - whole], out=result[whole:])
    return scaled


def pick_updates(max_steps: int) -> list[int]:
    """Updates of a run, counted from 1, whose learning rates are compared: all, or 1,000 of more."""
    return sorted({1 + round(place) for place in np.linspace(0, max_steps - 1, min(max_steps, 1000))})
