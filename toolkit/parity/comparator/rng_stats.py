"""What is counted of random draws while they are made: rates, neighbours, likeness to other modules' and steps' draws.

Only sums are kept, beside the draws of one step. What they say is worked out in
:mod:`toolkit.parity.judge.rng_tests`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from toolkit.parity.job.results import DrawStats, GeneratorStats, MaskStats, RotationStats

#: Pairs that are looked at of two masks, or of a mask and itself moved.
PAIRS = 2**20
#: Two draws that are equal by chance with a probability below 2^-60 are a finding if they are equal.
REPEAT_BITS = 60
#: Of a normal number in float32, fewer than are random.
BITS_PER_NUMBER = 16


class DrawCounter:
    """Counts the draws of several training steps.

    Attributes:
        stats: what was counted, by name.
        cells: how many cells of masks there were so far.
    """

    def __init__(self) -> None:
        self.stats = GeneratorStats()
        self.cells = 0
        self._step = 0
        self._of_shape: dict[tuple, np.ndarray] = {}
        self._of_module: dict[str, np.ndarray] = {}
        self._seen: dict[bytes, tuple[str, int]] = {}

    def begin_step(self) -> None:
        """What comes now belongs to the next step."""
        self._step += 1
        self._of_shape = {}

    def mask(self, name: str, rate: float, shape: Sequence[int], kept: np.ndarray) -> None:
        """Count a dropout mask.

        Args:
            rate, shape: as they were asked for.
            kept: bool, which cells are.
        """
        stats = self.stats.masks.setdefault(name, MaskStats(list(shape), rate=rate))
        stats.draws += 1
        if list(kept.shape) != list(shape):
            note_problem(stats, f"a mask of shape {list(kept.shape)}, asked for {list(shape)}")
        rare = ~kept if rate <= 0.5 else kept
        self.cells += rare.size
        stats.rare = _sum(stats.rare, [int(np.count_nonzero(rare)), rare.size])
        self._note_repeat(name, stats, rare.ravel())
        self._relate(name, stats, rare, _both)

    def rotation(self, name: str, shape: Sequence[int], seeded: bool, drawn: np.ndarray) -> None:
        """Count normal numbers. ``seeded`` ones are the same each time, and counted the first time alone."""
        stats = self.stats.rotations.setdefault(name, RotationStats(list(shape), seeded=seeded))
        stats.draws += 1
        if list(drawn.shape) != list(shape):
            note_problem(stats, f"drawn with shape {list(drawn.shape)}, asked for {list(shape)}")
        if seeded and name in self._of_module:
            if not np.array_equal(self._of_module[name], drawn.ravel()[:PAIRS]):
                note_problem(stats, "hash_seed asks for the same rotations each time; these differ from the first")
            return
        numbers = drawn.astype(np.float64)
        stats.count += numbers.size
        stats.sum += float(numbers.sum())
        stats.squares += float(np.square(numbers).sum())
        for limit in stats.beyond:
            stats.beyond[limit] += int(np.count_nonzero(np.abs(numbers) > int(limit)))
        self._note_equal_slices(name, stats, drawn, {} if seeded else self._seen)
        if seeded:  # modules of equal shape draw the same, as the reference's do
            self._of_shape.pop((RotationStats, *drawn.shape), None)
        self._relate(name, stats, drawn if seeded else numbers, _products)

    def _relate(
        self, name: str, stats: DrawStats, draw: np.ndarray, joint: Callable[[np.ndarray, np.ndarray], list]
    ) -> None:
        """Compare a draw with itself moved by one along each axis, and with those before it."""
        flat = draw.ravel()
        for axis, stride in strides(draw.shape):
            # The last of a line comes before the first of the next: independent like all others.
            count = min(flat.size - stride, PAIRS)
            counts = joint(flat[:count], flat[stride : stride + count])
            stats.neighbours[axis] = _sum(stats.neighbours.get(axis, [0, 0]), counts)
        flat, kind = flat[:PAIRS].copy(), (type(stats), *draw.shape)  # a view would keep all of a large mask
        if kind in self._of_shape:
            stats.modules = _sum(stats.modules, joint(self._of_shape[kind], flat))
        if name in self._of_module and self._of_module[name].size == flat.size:
            stats.steps = _sum(stats.steps, joint(self._of_module[name], flat))
        self._of_shape[kind] = self._of_module[name] = flat

    def _note_repeat(self, name: str, stats: MaskStats, rare: np.ndarray) -> None:
        """Whether a mask begins like an earlier one of any shape: so do all masks that are drawn from one state."""
        rate = stats.rate
        bits = -math.log2(rate**2 + (1.0 - rate) ** 2) if 0.0 < rate < 1.0 else 0.0
        count = math.ceil(REPEAT_BITS / bits) if bits else rare.size + 1
        if count <= rare.size:
            start = b"%d:" % count + np.packbits(rare[:count]).tobytes()
            self._note_seen(name, stats, start, f"the first {count} cells are those of", self._seen)

    def _note_equal_slices(
        self, name: str, stats: RotationStats, drawn: np.ndarray, seen: dict[bytes, tuple[str, int]]
    ) -> None:
        """Whether some head, hash round, or any other slice has the numbers of another."""
        for axis in range(drawn.ndim):
            if drawn.size // max(drawn.shape[axis], 1) * BITS_PER_NUMBER < REPEAT_BITS or drawn.shape[axis] < 2:
                continue
            for part in np.moveaxis(drawn, axis, 0):
                what = f"a slice across axis {axis} has the numbers of"
                self._note_seen(name, stats, b"n" + part.tobytes(), what, seen)

    def _note_seen(
        self, name: str, stats: DrawStats, content: bytes, what: str, seen: dict[bytes, tuple[str, int]]
    ) -> None:
        if content not in seen:
            seen[content] = (name, self._step)
            return
        other, step = seen[content]
        where = "one beside it" if (other, step) == (name, self._step) else f"{other} in step {step}"
        if not any(problem.startswith(what) for problem in stats.problems):
            note_problem(stats, f"{what} {where}")


def note_problem(stats: DrawStats, message: str) -> None:
    """Something is wrong with a draw; each is noted once."""
    if message not in stats.problems:
        stats.problems.append(message)


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


def _sum(before: list[float], counts: list[float]) -> list[float]:
    return [one + other for one, other in zip(before, counts, strict=True)]
