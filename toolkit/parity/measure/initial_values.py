"""New parameters of each side: what is kept of their values, and what is counted of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

#: New models of each side, each from its own seed: of a small parameter one alone says little.
NUM_MODELS = 8
#: Values kept of a parameter at most, of all models together.
MAX_SAMPLES = 2**16
#: A shorter row may be all zero by chance.
NARROW = 4
#: Values beyond these joint standard deviations from the joint mean are counted.
BEYOND = (1, 2, 3)


@dataclass
class SampleStats:
    """Values of a parameter that a side has made anew.

    Attributes:
        count, mean, lowest, highest: of the values kept.
        squares: the sum of their squared distances from the mean.
        zero_rows: rows of zeros along the first axis, unless the parameter is all zero.
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
        beyond: magnitude of :data:`BEYOND` -> number of the port's values further out, and of both sides'.
    """

    ours: SampleStats | None = None
    theirs: SampleStats | None = None
    apart: float = 0.0
    beyond: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Samples:
    """The kept values of each parameter (float32, (N,)) and its rows of zeros, if any (int64)."""

    values: Mapping[str, np.ndarray]
    zero_rows: Mapping[str, np.ndarray]

    def tensors(self) -> dict[str, np.ndarray]:
        """As they stand in a file."""
        values = {f"values:{name}": value for name, value in self.values.items()}
        return values | {f"zero_rows:{name}": rows for name, rows in self.zero_rows.items()}

    @classmethod
    def of(cls, tensors: Mapping[str, np.ndarray]) -> Samples:
        """Read the result of :meth:`tensors`."""
        parts: dict[str, dict[str, np.ndarray]] = {"values": {}, "zero_rows": {}}
        for key, value in tensors.items():
            kind, _, name = key.partition(":")
            parts[kind][name] = value
        return cls(**parts)


def sample_values(models: Iterable[Mapping[str, np.ndarray]]) -> Samples:
    """Keep some values of each parameter, at places that are equal on both sides and in every run. ``models`` are the
    parameters of :data:`TIMES` models, each made anew."""
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
    """Rows along the first axis that are zero, as the embedding of a padding token; none if all are zero."""
    rows = value.reshape(len(value), -1)
    zero = ~rows.any(1)
    return np.flatnonzero(zero) if rows.shape[1] >= NARROW and not zero.all() else np.zeros(0, np.int64)


def _some(flat: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    most = MAX_SAMPLES // NUM_MODELS
    return flat[draw.choice(flat.size, most, replace=False)] if flat.size > most else flat.copy()


def compare_sides(ours: Samples, theirs: Samples) -> dict[str, NewValues]:
    """Counts of each parameter that either side makes."""
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
