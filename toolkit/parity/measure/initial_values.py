"""Samples of each side's newly initialized parameters, and their comparison for verdict 8."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

#: Number of models that each side initializes, each with a separate seed: a small parameter needs several.
NUM_MODELS = 8
#: Largest number of values to sample from a parameter, over all models.
MAX_SAMPLES = 2**16
#: Smallest number of elements of a row of zeros. A shorter row may be zero by chance.
NARROW = 4
#: Distances from the joint mean, in joint standard deviations, beyond which values are counted.
BEYOND = (1, 2, 3)


@dataclass
class SampleStats:
    """Statistics of the sampled values of a newly initialized parameter on one side.

    Attributes:
        count: number of the values.
        mean, lowest, highest: mean, minimum and maximum of the values.
        squares: sum of the squared distances from the mean.
        zero_rows: indices of the rows of zeros along the first axis; empty if the whole parameter is zero.
    """

    count: int
    mean: float
    squares: float
    lowest: float
    highest: float
    zero_rows: list[int] = field(default_factory=list)

    @property
    def is_constant(self) -> bool:
        """Whether all sampled values of the parameter are equal."""
        return self.lowest == self.highest


@dataclass
class NewValues:
    """Comparison of both sides' values of a newly initialized parameter.

    Attributes:
        ours, theirs: statistics of the port and of the reference; None for a side without the parameter.
        apart: largest distance between the two empirical distribution functions.
        beyond: distance of :data:`BEYOND` -> number of values beyond it, of the port and of both sides together.
    """

    ours: SampleStats | None = None
    theirs: SampleStats | None = None
    apart: float = 0.0
    beyond: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Samples:
    """Samples of all newly initialized parameters of one side, by the parameters' names.

    Attributes:
        values: sampled values, float32 (N,).
        zero_rows: indices of the rows of zeros, int64; only parameters with such rows.
    """

    values: Mapping[str, np.ndarray]
    zero_rows: Mapping[str, np.ndarray]

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the samples as the tensors of a file, by ``values:NAME`` and ``zero_rows:NAME``."""
        values = {f"values:{name}": value for name, value in self.values.items()}
        return values | {f"zero_rows:{name}": rows for name, rows in self.zero_rows.items()}

    @classmethod
    def of(cls, tensors: Mapping[str, np.ndarray]) -> Samples:
        """Return the samples, given the tensors of a file as :meth:`tensors` returns them."""
        parts: dict[str, dict[str, np.ndarray]] = {"values": {}, "zero_rows": {}}
        for key, value in tensors.items():
            kind, _, name = key.partition(":")
            parts[kind][name] = value
        return cls(**parts)


def sample_values(models: Iterable[Mapping[str, np.ndarray]]) -> Samples:
    """Return samples of each parameter's values, at indices that are the same on both sides and in each run.

    Args:
        models: parameters by name, for each of :data:`NUM_MODELS` newly initialized models.
    """
    values: dict[str, list[np.ndarray]] = {}
    zero_rows: dict[str, np.ndarray] = {}
    for number, parameters in enumerate(models):
        for name, parameter in parameters.items():
            rows = _find_zero_rows(parameter)
            if len(rows):
                zero_rows[name] = rows
                parameter = np.delete(parameter, rows, 0)
            generator = np.random.default_rng([number, *name.encode()])
            flat, limit = parameter.reshape(-1), MAX_SAMPLES // NUM_MODELS
            sample = flat[generator.choice(flat.size, limit, replace=False)] if flat.size > limit else flat.copy()
            values.setdefault(name, []).append(sample)
    return Samples({name: np.concatenate(samples) for name, samples in values.items()}, zero_rows)


def _find_zero_rows(values: np.ndarray) -> np.ndarray:
    """Return the indices of the rows of zeros, such as the embedding of a padding token.

    The result is empty if all rows are zero.
    """
    rows = values.reshape(len(values), -1)
    is_zero = ~rows.any(1)
    return np.flatnonzero(is_zero) if rows.shape[1] >= NARROW and not is_zero.all() else np.zeros(0, np.int64)


def compare_sides(ours: Samples, theirs: Samples) -> dict[str, NewValues]:
    """Return the comparison of both sides' samples, by the name of each parameter that either side has.

    Args:
        ours: samples of the port's parameters.
        theirs: samples of the reference's parameters.
    """
    return {name: _compare_parameter(name, ours, theirs) for name in {**theirs.values, **ours.values}}


def _compare_parameter(name: str, ours: Samples, theirs: Samples) -> NewValues:
    """Return the comparison of both sides' samples of the parameter with this name.

    Args:
        name: name of the parameter.
        ours: samples of the port's parameters.
        theirs: samples of the reference's parameters.
    """
    new_values = NewValues(_describe_samples(name, ours), _describe_samples(name, theirs))
    if name not in ours.values or name not in theirs.values:
        return new_values
    our_values, their_values = (side.values[name].astype(np.float64) for side in (ours, theirs))
    all_values = np.concatenate([our_values, their_values])
    points = np.sort(all_values)  # sorted points make the searches fast: each result is near the previous result
    shares = [np.searchsorted(np.sort(side), points, "right") / len(side) for side in (our_values, their_values)]
    new_values.apart = float(np.abs(shares[0] - shares[1]).max())
    for magnitude in BEYOND:
        is_beyond = np.abs(all_values - all_values.mean()) > magnitude * all_values.std()
        new_values.beyond[str(magnitude)] = [int(is_beyond[: len(our_values)].sum()), int(is_beyond.sum())]
    return new_values


def _describe_samples(name: str, samples: Samples) -> SampleStats | None:
    """Return the statistics of the samples of the parameter with this name; None if the side lacks it."""
    if name not in samples.values:
        return None
    values = samples.values[name].astype(np.float64)
    mean = float(values.mean())
    rows = [int(row) for row in samples.zero_rows.get(name, ())]
    squares = float(((values - mean) ** 2).sum())
    return SampleStats(len(values), mean, squares, float(values.min()), float(values.max()), rows)
