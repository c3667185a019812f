"""Synthetic weights and batches, which are chosen to reveal faults of a port."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from models.families import default_family, part
from models.port.weights import make_generator
from toolkit.machine.heap import allocate_mapped_zeros
from toolkit.parity.inputs.texts import ENDS_IN_PAD, FULL, NOTHING_COUNTS, Texts, layouts_of, make_texts
from toolkit.parity.job.family import ported_family

#: Kinds of synthetic weights (:class:`SyntheticWeights`).
KINDS = ("random", "heavy-tailed", "large-gains")

#: Number of elements beyond which a parameter is drawn in parts of this size, each by a separate generator, on all
#: processors. Only an embedding like CTRL's is so large, and both workers wait for it.
LARGE = 2**24
#: Number of elements that :func:`make_students_t` changes at a time.
PIECE = 2**16


def randomize_constants(weights: Mapping[str, np.ndarray], seed: int) -> tuple[dict[str, np.ndarray], int]:
    """Add small random numbers to every parameter whose values are all equal, and count these parameters.

    New weights have zero biases, unit norm gains and gates of a single zero: a port that drops a bias, swaps two gains
    or ignores a gate computes the same. Of a trained checkpoint, only parameters of a single element are changed.

    Args:
        weights: all parameters, by name.
        seed: seed of the random numbers.

    Returns:
        All parameters in float32 by name, and the number of parameters that were randomized.
    """
    randomized_weights, count = {}, 0
    for name, value in weights.items():
        value = np.asarray(value, np.float32)
        if is_constant(value):
            value = value + _small_noise(name, value.shape, seed)
            count += 1
        randomized_weights[name] = value
    return randomized_weights, count


def randomize_constant_buffers(buffers: Mapping[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """Return random values for the buffers of real numbers whose values are all equal, and no other buffers.

    The correction bias of a new router is zero, and a frozen batch norm multiplies by one. A port that uses such a
    buffer wrongly would compute the same. The noise moves values away from zero, since a buffer may be a variance.

    Args:
        buffers: all buffers, by name.
        seed: seed of the random values.
    """
    return {
        name: (value + np.where(value < 0, -1, 1) * np.abs(_small_noise(name, value.shape, seed))).astype(value.dtype)
        for name, value in buffers.items()
        if value.dtype.kind == "f" and is_constant(value)
    }


def is_constant(value: np.ndarray) -> bool:
    """Return whether all elements of a parameter or buffer are the same finite number."""
    if not value.size or value.flat[-1] != value.flat[0]:  # the second spares most tensors a pass
        return False
    return bool(np.isfinite(value.flat[0]) and (value == value.flat[0]).all())


def _small_noise(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return normal float32 numbers of standard deviation 0.1 that are drawn for a tensor.

    Args:
        name: name of the tensor, which determines the draw together with the seed.
        shape: shape of the tensor.
        seed: seed of the draw.
    """
    draw = make_generator(seed, f"stir:{name}")  # a seed means the same weights in every release
    return np.float32(0.1) * draw.standard_normal(shape, np.float32)


class SyntheticWeights(Mapping[str, np.ndarray]):
    """Weights that amplify rounding as trained weights do, without a download: float32 arrays by name, drawn on access.

    Args:
        config: a resolved configuration of the family ``model``.
        head: head of the model.
        seed: seed of all parameters.
        kind: ``random``: normal, of the configuration's width. ``heavy-tailed``: Student's t with 3 degrees of freedom,
            whose outliers amplify rounding as trained weights do. ``large-gains``: norm gains of standard deviation 8,
            matrices four times as wide, and blocks whose output grows from layer to layer, as in some trained
            Reformers: attention saturates, and the residual streams end 10^6 times as large as they began.
        model: name of the family.

    Raises:
        ValueError: an unknown kind.
    """

    def __init__(
        self, config: Mapping[str, Any], head: str, seed: int, kind: str = "random", model: str = default_family()
    ) -> None:
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is none of {', '.join(KINDS)}")
        weights = part(model, "weights")
        self.table = weights.parameters(config, head)
        self.deviations, self.depth = weights.standard_deviations(config), weights.num_layers(config)
        self.last_maps = ported_family(model).last_maps
        self.seed, self.kind = seed, kind

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, name: str) -> np.ndarray:
        shape, _ = self.table[name]
        count = math.prod(shape)
        if count <= LARGE:
            value = np.empty(shape, np.float32)
            self._draw(name, value.reshape(-1), "")
            return value
        value = allocate_mapped_zeros(shape, "float32")
        parts = [value.reshape(-1)[start : start + LARGE] for start in range(0, count, LARGE)]
        with ThreadPoolExecutor(os.cpu_count()) as threads:  # NumPy draws without Python's lock
            list(threads.map(partial(self._draw, name), parts, (f"@{index}" for index in range(len(parts)))))
        return value

    def _draw(self, name: str, values: np.ndarray, part: str) -> None:
        """Fill a parameter, or a part of it, with its random values in place. The largest matrix takes 1.3 GB.

        Args:
            name: name of the parameter.
            values: the flattened memory to fill, (n,).
            part: suffix of the generator's name for a part, such as `@1`; empty for the whole parameter.
        """
        role = self.table[name].role
        draw = make_generator(self.seed, f"{self.kind}:{name}{part}")
        draw.standard_normal(out=values, dtype=np.float32)
        if role in ("norm_bias", "bias"):
            values *= np.float32(0.1)
        elif role == "norm_gain" and self.kind == "large-gains":
            values *= np.float32(8.0)
        elif role == "norm_gain":
            values *= np.float32(0.2)
            values += 1
        elif self.kind == "heavy-tailed":
            values *= np.float32(2 * self.deviations["linear"])
            make_students_t(values, draw)
        else:
            growth = self._growth(name) if self.kind == "large-gains" and role == "linear" else 1.0
            values *= np.float32(self.deviations[role] * growth)

    def _growth(self, name: str) -> float:
        """Return the factor of a matrix's width with the kind ``large-gains``.

        The factor is 4, except for the last linear map of each block. There it grows from 4 to 4 * 10^5 in the last
        layer.

        Args:
            name: name of the matrix.
        """
        layer = re.search(r"\.(\d+)\.", name) if name.removesuffix(".weight").endswith(self.last_maps) else None
        return 4.0 * 10.0 ** (5.0 * int(layer[1]) / max(1, self.depth - 1)) if layer else 4.0


def make_students_t(normal: np.ndarray, draw: np.random.Generator) -> None:
    """Turn normal numbers into numbers of Student's t distribution with 3 degrees of freedom, in place.

    Each number is divided by the root of a chi-square number over its degrees of freedom. The numbers are changed in
    pieces that stay in the processor's cache.

    Args:
        normal: normal numbers, float32 (n,).
        draw: generator of the chi-square numbers.
    """
    room = np.empty(min(PIECE, len(normal)), np.float32)
    for start in range(0, len(normal), PIECE):
        piece = normal[start : start + PIECE]
        spread = draw.standard_gamma(np.float32(1.5), dtype=np.float32, out=room[: len(piece)])
        np.multiply(2, spread, out=spread)
        piece *= np.sqrt(np.divide(3, spread, out=spread), out=spread)


def random_batch(
    config: Mapping[str, Any],
    head: str,
    batch_size: int,
    length: int,
    seed: int,
    model: str = default_family(),
    layouts: Sequence[int] | None = None,
) -> dict[str, np.ndarray]:
    """Return synthetic texts (:mod:`.texts`) with their mask and labels, including ignored labels.

    Args:
        config: configuration of the model, resolved or not.
        head: head of the model, which determines the labels.
        batch_size: number of texts B. Five rows are all of :data:`.texts.LAYOUTS`; an odd number keeps B * T from
            having more factors of two than T.
        length: number of tokens T of each row.
        seed: seed of the tokens and labels.
        model: name of the family.
        layouts: index of each row's layout in :data:`.texts.LAYOUTS`; None for :func:`.texts.layouts_of` B.

    Returns:
        ``input_ids`` and ``attention_mask`` int64 (B, T), and the other inputs of the head.
    """
    config = part(model, "schema").resolve(config)
    draw = np.random.default_rng(seed)
    places = layouts_of(batch_size) if layouts is None else np.asarray(layouts)
    texts = make_texts(config, model, places, length, draw)
    batch = {"input_ids": texts.tokens, "attention_mask": texts.mask}
    if head == "sequence_classification":
        return {**batch, "labels": _text_labels(config, batch_size, draw)}
    if head == "question_answering":
        return {**batch, **_answers(texts, draw)}
    labels = _token_labels(texts, draw)
    if head == "token_classification":
        labels = np.where(labels == -100, labels, draw.integers(0, config["num_labels"], labels.shape))
    return {**batch, "labels": labels}


def _text_labels(config: Mapping[str, Any], count: int, draw: np.random.Generator) -> np.ndarray:
    """Return random labels of ``count`` texts for the configuration's ``problem_type``.

    Without a ``problem_type``, a model with one output gets numbers, and any other model gets classes.

    Returns:
        int64 (count,) classes; float32 (count, labels) of 0 and 1; float32 numbers, (count,) or (count, labels).
    """
    outputs = config["num_labels"]
    kind = config["problem_type"] or ("regression" if outputs == 1 else "single_label_classification")
    if kind == "regression":
        return draw.standard_normal(count if outputs == 1 else (count, outputs), np.float32)
    if kind == "multi_label_classification":
        return draw.integers(0, 2, (count, outputs)).astype(np.float32)
    return draw.integers(0, outputs, count)


def _answers(synthetic_texts: Texts, draw: np.random.Generator) -> dict[str, np.ndarray]:
    """Return start and end positions of answers, each int64 (B,), which cover different cases.

    Some answers lie within the text, some end beyond the row and are to be ignored, one is the last token of its text,
    and one is the whole text.
    """
    first, last = np.sort(draw.integers(0, synthetic_texts.ends[:, None], (len(synthetic_texts.ends), 2))).T
    at_end = synthetic_texts.ends - 1
    last = np.where(synthetic_texts.layouts == ENDS_IN_PAD, last + synthetic_texts.tokens.shape[1], last)
    last = np.where((synthetic_texts.layouts == NOTHING_COUNTS) | (synthetic_texts.layouts == FULL), at_end, last)
    first = np.where(
        synthetic_texts.layouts == NOTHING_COUNTS, at_end, np.where(synthetic_texts.layouts == FULL, 0, first)
    )
    return {"start_positions": first, "end_positions": last}


def _token_labels(synthetic_texts: Texts, draw: np.random.Generator) -> np.ndarray:
    """Return each text's own tokens as labels, int64 (B, T), with -100 for ignored positions.

    Ignored are padding, a tenth of the other positions, and all positions of the rows with one layout.
    """
    is_ignored = (
        (draw.random(synthetic_texts.tokens.shape) < 0.1)
        | (synthetic_texts.mask == 0)
        | (synthetic_texts.layouts == NOTHING_COUNTS)[:, None]
    )
    return np.where(is_ignored, -100, synthetic_texts.tokens)
