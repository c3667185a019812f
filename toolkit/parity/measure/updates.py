"""Gradients for both sides' optimizers in the short training after the step, and the weight of each example.

An update has the examples of one accumulated batch. Each example has a separate gradient: R64's gradient with its
elements scaled in turn. The gradient of a mean loss is the mean over the examples, weighted by their loss terms. So
micro-batches with wrong weights give a different gradient. If only its scale differed, clipping and Adam would hide it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

#: Factors of R64's gradient in each update. Its elements are multiplied by the factors in turn. If the gradients of all
#: updates were equal, the decay rates of Adam's moments would cancel out. If an update only halved all elements, the
#: decay rate of the second moment would still cancel out when both gradients are clipped to the same norm.
SHARES = ((1.0,), (-0.5, 0.25), (0.75, -1.0, 0.5), (-0.25, 1.5))
#: Factors of the second update for Lion, which uses only the sign of a weighted sum. They are graded so that a wrong
#: beta1 changes some signs. With the usual betas (0.9 and 0.99, 0.5 and 0.75), no sum is 0: rounding would decide it.
LION_SHARES = tuple(-0.97 * 2.0 ** (-step / 6) for step in range(60))
#: Factors that the gradient's elements of an example are multiplied by in turn. The next example starts one factor
#: later.
ROW_FACTORS = (0.5, 1.0, 1.5)
#: Label of a token or text that has no loss term.
IGNORED_LABEL = -100


def count_update_rows(batch_size: int, accumulation_steps: int) -> int:
    """Return the number of examples of an update: three micro-batches at most, the last with one example less.

    More micro-batches would detect no other faults. A batch of one example has no shorter last micro-batch.

    Args:
        batch_size: number of examples of a micro-batch.
        accumulation_steps: number of micro-batches of an update.
    """
    return max(1, batch_size * min(accumulation_steps, 3) - (batch_size > 1 and accumulation_steps > 1))


def count_loss_terms(
    task: str, labels: Mapping[str, np.ndarray], class_weights: Sequence[float] | None = None
) -> np.ndarray:
    """Return the number of terms of each example in the mean loss, int64 (N,).

    If the mean is weighted by class, the result is the weight of each example's class, float64 (N,).

    Args:
        task: name of the loss, such as ``language_modeling``.
        labels: ``labels`` (N, ...), or ``start_positions`` (N,).
        class_weights: weight of each class. With several labels for each text, the weights scale the terms but are not
            part of
        the divisor.
    """
    if task == "question_answering":
        return np.ones(len(labels["start_positions"]), np.int64)
    targets = labels["labels"]
    if class_weights is not None and targets.ndim == 1:
        return np.where(targets == IGNORED_LABEL, 0.0, np.asarray(class_weights, np.float64)[targets.clip(0)])
    term_labels = targets[:, 1:] if task == "language_modeling" else targets.reshape(len(targets), -1)
    return (term_labels != IGNORED_LABEL).sum(1)


def make_distinct_inputs(num_examples: int) -> dict[str, np.ndarray]:
    """Return token ids and masks that differ between the examples of an update, int64 (N, T) each, by key.

    Each token occurs once. A mask has the binary digits of the example's number, counted from 1.
    """
    length = num_examples.bit_length()
    bits = np.arange(1, num_examples + 1)[:, None] >> np.arange(length) & 1
    return {"input_ids": np.arange(num_examples * length).reshape(num_examples, length), "attention_mask": bits}


def clean_examples(examples: Mapping[str, np.ndarray], terms: np.ndarray) -> dict[str, np.ndarray]:
    """Return the inputs that an update's forwards received in a comparable form, by ``trained:KEY``, float64 (N, ...).

    Floats are rounded to float32. A side may omit an example without a loss term, so such an example is set to 0.

    Args:
        examples: tensors of the examples by key, (N, ...) each.
        terms: number of loss terms of each example, (N,).
    """
    tensors = {}
    for key, tensor in examples.items():
        tensor = np.array(tensor.astype(np.float32) if tensor.dtype.kind == "f" else tensor, np.float64)
        tensor[np.asarray(terms) == 0] = 0.0
        tensors[f"trained:{key}"] = tensor
    return tensors


def weigh_terms(terms: np.ndarray) -> np.ndarray:
    """Return the weight of each example in the mean over all loss terms, float64 (N,).

    The weights are zeros if no example has a term.

    Args:
        terms: number of loss terms of each example, or its class weight, (N,).
    """
    total = terms.sum()
    return terms / total if total else np.zeros(len(terms))


def scale_gradient(
    gradient: np.ndarray, update: int, example_weights: Sequence[float] | np.ndarray, optimizer: str = "adamw"
) -> np.ndarray:
    """Return the gradient that the optimizer gets in an update: R64's gradient, scaled element by element.

    It is the gradient of a mean loss over the update's examples.

    Args:
        gradient: gradient of R64, in the layout of the reference.
        update: number of the update, counted from 1.
        example_weights: loss weight of each example, (N,); they sum to 1.
        optimizer: name of the optimizer, as in :class:`toolkit.parity.job.job.TrainingSettings`.
    """
    shares = LION_SHARES if optimizer == "lion" and update == 2 else SHARES[update - 1]
    return _multiply_in_turn(gradient, _combine_factors(shares, tuple(map(float, example_weights))))


@functools.lru_cache(maxsize=64)
def _combine_factors(shares: tuple[float, ...], example_weights: tuple[float, ...]) -> np.ndarray:
    """Return the factors that a gradient's elements are multiplied by in turn, float64.

    They are the product of the update's factors and the weighted mean of the examples' factors.

    Args:
        shares: factors of the update, of :data:`SHARES` or :data:`LION_SHARES`.
        example_weights: loss weight of each example.
    """
    mean_factors = [
        sum(
            weight * ROW_FACTORS[(element + example) % len(ROW_FACTORS)]
            for example, weight in enumerate(example_weights)
        )
        for element in range(len(ROW_FACTORS))
    ]
    period = math.lcm(len(shares), len(mean_factors))
    return np.resize(shares, period) * np.resize(mean_factors, period)


def _multiply_in_turn(gradient: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Return the product of a gradient's flat elements and the factors, which repeat cyclically."""
    product = np.empty(gradient.shape, np.result_type(gradient, factors))
    flat, result = np.ravel(gradient), product.reshape(-1)
    rest = flat.size // factors.size * factors.size
    np.multiply(flat[:rest].reshape(-1, factors.size), factors, out=result[:rest].reshape(-1, factors.size))
    np.multiply(flat[rest:], factors[: flat.size - rest], out=result[rest:])
    return product


def pick_updates(max_steps: int) -> list[int]:
    """Return the numbers, from 1, of the updates whose learning rates are compared: at most 1,000, evenly spaced.

    Args:
        max_steps: number of updates of the run.
    """
    return sorted({1 + round(position) for position in np.linspace(0, max_steps - 1, min(max_steps, 1000))})
