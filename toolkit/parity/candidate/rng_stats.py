"""What is counted of random draws while they are made: rates, neighbours, likeness to other modules' and steps' draws.

Only sums are kept, beside the draws of one step. What they say is worked out in :mod:`toolkit.parity.chance`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from toolkit.parity.judge.rng_tests import BEYOND

#: Pairs that are looked at of two masks, or of a mask and itself moved.
PAIRS = 2**20
#: Two draws that are equal by chance with a probability below 2^-60 are a finding if they are equal.
REPEAT_BITS = 60
#: Of a normal number in float32, fewer than are random.
BITS_PER_NUMBER = 16


class Tallies:
    """The draws of several training steps, by name.

    Attributes:
        figures: name -> what :func:`.generators.measure` documents.
        cells: how many cells of masks there were so far.
    """

    def __init__(self) -> None:
        self.figures: dict[str, dict[str, Any]] = {}
        self.cells = 0
        self._step = 0
        self._of_shape: dict[tuple, np.ndarray] = {}
        self._of_module: dict[str, np.ndarray] = {}
        self._seen: dict[bytes, tuple[str, int]] = {}

    def begin_step(self) -> None:
        """What comes now belongs to the next step."""
        self._step += 1
        self._of_shape = {}

    def problem(self, name: str, message: str) -> None:
        """Something is wrong with a draw that has been counted; each is noted once."""
        problems = self.figures[name]["problems"]
        if message not in problems:
            problems.append(message)

    def mask(self, name: str, rate: float, shape: Sequence[int], values: np.ndarray) -> None:
        """Count a dropout mask.

        Args:
            rate, shape: as they were asked for.
            values: what became of ones: 0 where a cell is dropped. Its axes are as long as those of ``shape``, or that
                is 1 there and all values along the axis are the same.
        """
        figures = self._figures(name, "dropout", shape, {"rate": rate, "scale_error": 0.0, "rare": [0, 0]})
        mask = self._of_mask_shape(name, shape, values)
        dropped = mask == 0
        kept = mask.size - int(np.count_nonzero(dropped))
        if kept:
            # None above the scale and the mean at the scale: then all of them are.
            scales = np.array([mask.max(), mask.sum(dtype=np.float64) / kept]) * (1.0 - rate)
            figures["scale_error"] = float(np.max([figures["scale_error"], *np.abs(scales - 1.0)]))
        rare = dropped if rate <= 0.5 else ~dropped
        self.cells += rare.size
        _add(figures, "rare", [int(np.count_nonzero(rare)), rare.size])
        self._note_repeat(name, rate, rare.ravel())
        self._relate(name, rare, _both)

    def rotation(self, name: str, shape: Sequence[int], seeded: bool, drawn: np.ndarray) -> None:
        """Count normal numbers. ``seeded`` ones are the same each time, and counted the first time alone."""
        empty = {"seeded": seeded, "count": 0, "sum": 0.0, "squares": 0.0, "beyond": dict.fromkeys(map(str, BEYOND), 0)}
        figures = self._figures(name, "normal", shape, empty)
        if list(drawn.shape) != list(shape):
            self.problem(name, f"drawn with shape {list(drawn.shape)}, asked for {list(shape)}")
        if seeded and name in self._of_module:
            if not np.array_equal(self._of_module[name], drawn.ravel()[:PAIRS]):
                self.problem(name, "hash_seed asks for the same rotations each time; these differ from the first")
            return
        numbers = drawn.astype(np.float64)
        figures["count"] += numbers.size
        figures["sum"] += float(numbers.sum())
        figures["squares"] += float(np.square(numbers).sum())
        for limit in BEYOND:
            figures["beyond"][str(limit)] += int(np.count_nonzero(np.abs(numbers) > limit))
        self._note_equal_slices(name, drawn, {} if seeded else self._seen)
        if seeded:  # modules of equal shape draw the same, as the reference's do
            self._of_shape.pop(("normal", *drawn.shape), None)
        self._relate(name, drawn if seeded else numbers, _products)

    def _figures(self, name: str, kind: str, shape: Sequence[int], own: dict[str, Any]) -> dict[str, Any]:
        if name not in self.figures:
            shared = {"shape": list(shape), "draws": 0, "neighbours": {}, "modules": [0, 0], "steps": [0, 0]}
            self.figures[name] = {"kind": kind, **own, **shared, "problems": []}
        self.figures[name]["draws"] += 1
        return self.figures[name]

    def _of_mask_shape(self, name: str, shape: Sequence[int], values: np.ndarray) -> np.ndarray:
        sizes = [1] * (values.ndim - len(shape)) + list(shape)
        if list(values.shape) == sizes:
            return values
        mask = values[tuple(slice(None) if size == values.shape[i] else slice(1) for i, size in enumerate(sizes))]
        if list(mask.shape) != sizes or not (values == mask).all():
            self.problem(name, f"the cells that live and die together are not those of a mask of shape {list(shape)}")
        return mask

    def _relate(self, name: str, draw: np.ndarray, joint: Callable[[np.ndarray, np.ndarray], list]) -> None:
        """Compare a draw with itself moved by one along each axis, and with those before it."""
        figures, flat = self.figures[name], draw.ravel()
        for axis, stride in strides(draw.shape):
            # The last of a line comes before the first of the next: independent like all others.
            count = min(flat.size - stride, PAIRS)
            _add(figures["neighbours"], axis, joint(flat[:count], flat[stride : stride + count]))
        flat, kind = flat[:PAIRS].copy(), (figures["kind"], *draw.shape)  # a view would keep all of a large mask
        if kind in self._of_shape:
            _add(figures, "modules", joint(self._of_shape[kind], flat))
        if name in self._of_module and self._of_module[name].size == flat.size:
            _add(figures, "steps", joint(self._of_module[name], flat))
        self._of_shape[kind] = self._of_module[name] = flat

    def _note_repeat(self, name: str, rate: float, rare: np.ndarray) -> None:
        """Whether a mask begins like an earlier one of any shape: so do all masks that are drawn from one state."""
        bits = -math.log2(rate**2 + (1.0 - rate) ** 2) if 0.0 < rate < 1.0 else 0.0
        count = math.ceil(REPEAT_BITS / bits) if bits else rare.size + 1
        if count <= rare.size:
            start = b"%d:" % count + np.packbits(rare[:count]).tobytes()
            self._note_seen(name, start, f"the first {count} cells are those of", self._seen)

    def _note_equal_slices(self, name: str, drawn: np.ndarray, seen: dict[bytes, tuple[str, int]]) -> None:
        """Whether some head, hash round, or any other slice has the numbers of another."""
        for axis in range(drawn.ndim):
            if drawn.size // max(drawn.shape[axis], 1) * BITS_PER_NUMBER < REPEAT_BITS or drawn.shape[axis] < 2:
                continue
            for part in np.moveaxis(drawn, axis, 0):
                self._note_seen(name, b"n" + part.tobytes(), f"a slice across axis {axis} has the numbers of", seen)

    def _note_seen(self, name: str, content: bytes, what: str, seen: dict[bytes, tuple[str, int]]) -> None:
        if content not in seen:
            seen[content] = (name, self._step)
            return
        other, step = seen[content]
        where = "one beside it" if (other, step) == (name, self._step) else f"{other} in step {step}"
        if not any(problem.startswith(what) for problem in self.figures[name]["problems"]):
            self.problem(name, f"{what} {where}")


def strides(shape: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Each axis of more than one cell, counted from the last as -1, and how far apart neighbours along it lie."""
    for axis, size in enumerate(shape):
        if size > 1:
            yield str(axis - len(shape)), math.prod(shape[axis + 1 :])


def _both(earlier: np.ndarray, later: np.ndarray) -> list[int]:
    """Cells of ``later`` that are set where those of ``earlier`` are, and all where those of ``earlier`` are."""
    return [int(np.count_nonzero(earlier & later)), int(np.count_nonzero(earlier))]


def _products(earlier: np.ndarray, later: np.ndarray) -> list[float]:
    earlier = earlier.astype(np.float64, copy=False)
    return [float(np.dot(earlier, later.astype(np.float64, copy=False))), float(np.dot(earlier, earlier))]


def _add(figures: dict[str, Any], key: str, counts: list) -> None:
    before = figures.get(key, [0, 0])
    figures[key] = [one + other for one, other in zip(before, counts, strict=True)]
