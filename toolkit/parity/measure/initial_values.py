"""Parameters as a side makes them anew: what is kept of their values, and what is counted of two sides'."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

#: Models that each side makes anew, each from a seed of its own: of a small parameter one alone says little.
TIMES = 8
#: Values of a parameter that are kept of all of them together, at most.
SAMPLED = 2**16
#: A row of fewer numbers may be all zero by chance.
NARROW = 4
#: In joint standard deviations from the joint mean, beyond which values are counted.
BEYOND = (1, 2, 3)


@dataclass
class SampleStats:
    """Of the values of a parameter that a side has made anew.

    Attributes:
        count, mean, lowest, highest: of those that were kept.
        squares: the sum of their squared distances from the mean.
        zero_rows: where the parameter has zeros alone along its first axis, if it is not zero throughout.
    """

    count: int
    mean: float
    squares: float
    lowest: float
    highest: float
    zero_rows: list[int] = field(default_factory=list)

    @property
    def is_constant(self) -> bool:
        return self.lowest == self.highest


@dataclass
class NewValues:
    """A parameter as both sides make it anew.

    Attributes:
        ours, theirs: the port's values and the reference's; None of a side that has none.
        apart: the largest distance between their empirical distribution functions.
        beyond: magnitude of :data:`BEYOND` -> how many of the port's values lie further out, and how many of all.
    """

    ours: SampleStats | None = None
    theirs: SampleStats | None = None
    apart: float = 0.0
    beyond: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Samples:
    """Of each parameter the values that were kept (float32, (N,)) and its rows of zeros, if it has any (int64)."""

    values: Mapping[str, np.ndarray]
    zero_rows: Mapping[str, np.ndarray]

    def tensors(self) -> dict[str, np.ndarray]:
        """As they stand in a file."""
        values = {f"values:{name}": value for name, value in self.values.items()}
        return values | {f"zero_rows:{name}": rows for name, rows in self.zero_rows.items()}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, np.ndarray]) -> Samples:
        """What :meth:`tensors` gave."""
        parts: dict[str, dict[str, np.ndarray]] = {"values": {}, "zero_rows": {}}
        for key, value in tensors.items():
            kind, _, name = key.partition(":")
            parts[kind][name] = value
        return cls(**parts)


def sampled(models: Iterable[Mapping[str, np.ndarray]]) -> Samples:
    """Keep some values of each parameter, from places that are the same on both sides and in every run.

    Args:
        models: the parameters of :data:`TIMES` models, each model made anew.
    """
    values: dict[str, list[np.ndarray]] = {}
    zero_rows: dict[str, np.ndarray] = {}
    for number, parameters in enumerate(models):
        for name, value in parameters.items():
            rows = _zero_rows(value)
            if len(rows):
                zero_rows[name] = rows
                value = np.delete(value, rows, 0)
            draw = np.random.default_rng([number, *name.encode()])
            values.setdefault(name, []).append(_some(value.reshape(-1), draw))
    return Samples({name: np.concatenate(parts) for name, parts in values.items()}, zero_rows)


def _zero_rows(value: np.ndarray) -> np.ndarray:
    """Where a parameter is zero along its first axis, as the embedding of a padding token is; none of one that is zero
    throughout."""
    rows = value.reshape(len(value), -1)
    zero = ~rows.any(1)
    return np.flatnonzero(zero) if rows.shape[1] >= NARROW and not zero.all() else np.zeros(0, np.int64)


def _some(flat: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    most = SAMPLED // TIMES
    return flat[draw.choice(flat.size, most, replace=False)] if flat.size > most else flat.copy()


def counted(ours: Samples, theirs: Samples) -> dict[str, NewValues]:
    """Of each parameter that either side makes, what was counted."""
    return {name: _counted(name, ours, theirs) for name in {**theirs.values, **ours.values}}


def _counted(name: str, ours: Samples, theirs: Samples) -> NewValues:
    found = NewValues(_stats(name, ours), _stats(name, theirs))
    if name not in ours.values or name not in theirs.values:
        return found
    one, other = (side.values[name].astype(np.float64) for side in (ours, theirs))
    both = np.concatenate([one, other])
    ordered = np.sort(both)  # in order, each is found beside the one before it
    shares = [np.searchsorted(np.sort(side), ordered, "right") / len(side) for side in (one, other)]
    found.apart = float(np.abs(shares[0] - shares[1]).max())
    for magnitude in BEYOND:
        out = np.abs(both - both.mean()) > magnitude * both.std()
        found.beyond[str(magnitude)] = [int(out[: len(one)].sum()), int(out.sum())]
    return found


def _stats(name: str, side: Samples) -> SampleStats | None:
    if name not in side.values:
        return None
    values = side.values[name].astype(np.float64)
    mean = float(values.mean())
    rows = [int(row) for row in side.zero_rows.get(name, ())]
    squares = float(((values - mean) ** 2).sum())
    return SampleStats(len(values), mean, squares, float(values.min()), float(values.max()), rows)
