"""Counts of random draws that show faults of a generator: rates, correlations and repeats.

The correlations are between neighboring elements, and with the draws of other modules and of earlier steps. Only sums,
the draws of one step, and all masks as bits are kept. :mod:`toolkit.parity.judge.rng_tests` judges the counts. A *cell*
is an element of a mask. A *rare* cell has the rarer state: dropped at rates up to 1/2, kept at higher rates.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from toolkit.parity.exchange.results import DrawStats, GeneratorStats, MaskStats, RotationStats

#: Largest number of pairs of elements that are compared between two draws, or between a draw and itself shifted.
PAIRS = 2**20
#: Equal draws are a finding if chance makes them equal with a probability below 2^-REPEAT_BITS.
REPEAT_BITS = 60
#: Reciprocal of the share of stretches (consecutive cells of a mask) that are looked up among all earlier stretches.
#: The hash of a stretch decides, so that any of these stretches in a repeated part finds the repeat, at any position.
ONE_IN = 64
#: Number of cells whose stretches are hashed at a time.
AT_ONCE = 2**20
#: Base of the polynomial hash of a stretch, and the multiplier that mixes its bits (from SplitMix64).
BASE, MIX = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9
#: Number of random bits that a float32 normal number surely has.
BITS_PER_NUMBER = 16


class DrawCounter:
    """Counts the draws of several training steps.

    Attributes:
        stats: counts by the name of the draw.
        cells: number of mask cells so far.
    """

    def __init__(self) -> None:
        self.stats = GeneratorStats()
        self.cells = 0
        self._step = 0
        self._of_shape: dict[tuple, np.ndarray] = {}
        self._of_module: dict[str, np.ndarray] = {}
        self._seen: dict[bytes, tuple[str, int]] = {}
        self._masks: list[tuple[str, int, np.ndarray]] = []
        self._stretches: dict[tuple[int, int], tuple[int, int]] = {}

    def begin_step(self) -> None:
        """Begin the next training step."""
        self._step += 1
        self._of_shape = {}

    def mask(self, name: str, rate: float, shape: Sequence[int], keep_mask: np.ndarray) -> None:
        """Count a dropout mask.

        Args:
            name: name of the draw, such as ``dropout:encoder.layers.0``.
            rate: requested share of dropped cells.
            shape: requested shape.
            keep_mask: the mask, bool, True for a kept cell.
        """
        stats = self.stats.masks.setdefault(name, MaskStats(list(shape), rate=rate))
        stats.draws += 1
        if list(keep_mask.shape) != list(shape):
            note_problem(stats, f"a mask of shape {list(keep_mask.shape)}, asked for {list(shape)}")
        rare = ~keep_mask if rate <= 0.5 else keep_mask
        self.cells += rare.size
        stats.rare = _sum(stats.rare, [int(np.count_nonzero(rare)), rare.size])
        self._note_repeat(name, stats, rare.ravel())
        self._note_stretches(name, stats, rare.ravel())
        self._relate(name, stats, rare, _both)

    def sequence(self, masks: np.ndarray) -> None:
        """Count masks of one size that were drawn one after another at a rate of 1/2.

        With enough masks, no two cells are equal in all of the masks, and no two masks are equal in all cells.

        Args:
            masks: bool (masks, cells), True for a dropped cell.
        """
        count, cells = masks.shape
        stats = MaskStats([cells], draws=count, rate=0.5, rare=[int(np.count_nonzero(masks)), masks.size])
        self.stats.sequences[f"dropout:{count} masks of {cells} cells"] = stats
        for what, lines in (("mask", masks), ("cell", masks.T)):
            enough = lines.shape[1] >= REPEAT_BITS + 2 * math.log2(len(lines))
            if enough and (equal := _equal_lines(np.packbits(lines, axis=1))):
                note_problem(stats, f"{what} {equal[1]} is {what} {equal[0]} once more")

    def rotation(self, name: str, shape: Sequence[int], numbers: np.ndarray, *, is_seeded: bool) -> None:
        """Count standard normal numbers. Seeded numbers are the same each time, and counted only the first time.

        Args:
            name: name of the draw, such as ``normal:encoder.layers.0.attention``.
            shape: requested shape.
            is_seeded: whether the configuration has a seed for the numbers.
            numbers: the numbers that were drawn.
        """
        stats = self.stats.rotations.setdefault(name, RotationStats(list(shape), seeded=is_seeded))
        stats.draws += 1
        if list(numbers.shape) != list(shape):
            note_problem(stats, f"drawn with shape {list(numbers.shape)}, asked for {list(shape)}")
        if is_seeded and name in self._of_module:
            if not np.array_equal(self._of_module[name], numbers.ravel()[:PAIRS]):
                note_problem(
                    stats, "the configuration's seed asks for the same rotations each time; these differ from the first"
                )
            return
        float64_numbers = numbers.astype(np.float64)
        stats.count += float64_numbers.size
        stats.sum += float(float64_numbers.sum())
        stats.squares += float(np.square(float64_numbers).sum())
        for limit in stats.beyond:
            stats.beyond[limit] += int(np.count_nonzero(np.abs(float64_numbers) > int(limit)))
        self._note_equal_slices(name, stats, numbers, {} if is_seeded else self._seen)
        if is_seeded:  # modules of equal shape draw equal numbers, also in the reference
            self._of_shape.pop((RotationStats, *numbers.shape), None)
        self._relate(name, stats, numbers if is_seeded else float64_numbers, _products)

    def _relate(
        self, name: str, stats: DrawStats, draw: np.ndarray, joint: Callable[[np.ndarray, np.ndarray], list]
    ) -> None:
        """Add the counts of a draw with itself shifted by one along each axis, and with earlier draws.

        The earlier draws are the previous draw of equal shape, and the module's draw of the previous step.

        Args:
            name: name of the draw.
            stats: counts of the draw, which are changed.
            draw: rare cells of a mask (bool), or normal numbers.
            joint: returns the counts of two flat draws of equal size, :func:`_both` or :func:`_products`.
        """
        flat = draw.ravel()
        for axis, stride in strides(draw.shape):
            # The end of a row is paired with the start of the next row: these are independent like all other pairs.
            count = min(flat.size - stride, PAIRS)
            counts = joint(flat[:count], flat[stride : stride + count])
            stats.neighbors[axis] = _sum(stats.neighbors.get(axis, [0, 0]), counts)
        flat, kind = flat[:PAIRS].copy(), (type(stats), *draw.shape)  # a view would keep all of a large mask
        if kind in self._of_shape:
            stats.modules = _sum(stats.modules, joint(self._of_shape[kind], flat))
        if name in self._of_module and self._of_module[name].size == flat.size:
            stats.steps = _sum(stats.steps, joint(self._of_module[name], flat))
        self._of_shape[kind] = self._of_module[name] = flat

    def _note_repeat(self, name: str, stats: MaskStats, rare: np.ndarray) -> None:
        """Add a problem if a mask begins like an earlier mask of any shape.

        Two masks that are drawn from an equal state of the generator have equal beginnings at any shape.

        Args:
            name: name of the draw.
            stats: counts of the draw, which the problem is added to.
            rare: mask of the rare cells, flat.
        """
        count = cells_of(REPEAT_BITS, stats.rate)
        if count is not None and count <= rare.size:
            start = b"%d:" % count + np.packbits(rare[:count]).tobytes()
            self._note_seen(name, stats, start, f"the first {count} cells are those of", self._seen)

    def _note_stretches(self, name: str, stats: MaskStats, rare: np.ndarray) -> None:
        """Add a problem if a stretch anywhere in a mask repeats a stretch of this mask or an earlier mask.

        A stretch is a run of consecutive cells. Its length rules out chance: of 2^30 stretches no two are equal, with a
        probability of 1 - 2^-60.

        Args:
            name: name of the draw.
            stats: counts of the draw, which the problem is added to.
            rare: mask of the rare cells, flat.
        """
        count = cells_of(2 * REPEAT_BITS, stats.rate)
        if count is None or count > rare.size:
            return
        number = len(self._masks)
        self._masks.append((name, self._step, np.packbits(rare)))
        for begin in range(0, rare.size - count + 1, AT_ONCE):
            hashes = _stretch_hashes(rare[begin : begin + AT_ONCE + count - 1], count)
            starts = np.flatnonzero(hashes < 2**64 // ONE_IN)
            for place, key in zip((begin + starts).tolist(), hashes[starts].tolist(), strict=True):
                before = self._stretches.setdefault((count, key), (number, place))
                if before != (number, place) and self._is_equal(before, (number, place), count):
                    other, step, _ = self._masks[before[0]]
                    what = f"cells {place} to {place + count - 1} are those of {other} in step {step}"
                    note_problem(stats, f"{what}, from cell {before[1]} on")
                    return

    def _is_equal(self, first_stretch: tuple[int, int], second_stretch: tuple[int, int], count: int) -> bool:
        """Return whether two stretches of ``count`` cells are equal, since hashes may collide.

        Args:
            first_stretch: index of a mask and of the first cell of a stretch in it.
            second_stretch: index of a mask and of the first cell of the other stretch.
            count: number of cells of a stretch.
        """
        return np.array_equal(self._stretch(*first_stretch, count), self._stretch(*second_stretch, count))

    def _stretch(self, number: int, place: int, count: int) -> np.ndarray:
        """Return ``count`` cells of the mask with index ``number`` as bits, from the cell with index ``place`` on."""
        first = place // 8
        bits = np.unpackbits(self._masks[number][2][first : (place + count + 7) // 8])
        return bits[place - 8 * first :][:count]

    def _note_equal_slices(
        self, name: str, rotation_stats: RotationStats, draw: np.ndarray, contents: dict[bytes, tuple[str, int]]
    ) -> None:
        """Add a problem if a slice of normal numbers along an axis has the numbers of another slice.

        A slice may be a head or a hash round.

        Args:
            name: name of the draw.
            rotation_stats: counts of the draw, which the problem is added to.
            draw: the normal numbers.
            contents: bytes of each earlier slice -> name and step of its draw.
        """
        for axis in range(draw.ndim):
            if draw.size // max(draw.shape[axis], 1) * BITS_PER_NUMBER < REPEAT_BITS or draw.shape[axis] < 2:
                continue
            for part in np.moveaxis(draw, axis, 0):
                what = f"a slice across axis {axis} has the numbers of"
                self._note_seen(name, rotation_stats, b"n" + part.tobytes(), what, contents)

    def _note_seen(
        self, name: str, stats: DrawStats, part_bytes: bytes, description: str, contents: dict[bytes, tuple[str, int]]
    ) -> None:
        """Add a problem if ``contents`` has this content from an earlier draw; otherwise add the content.

        Args:
            name: name of the draw.
            stats: counts of the draw, which the problem is added to.
            part_bytes: bytes of a part of the draw.
            description: beginning of the problem's message, such as ``a slice across axis 0 has the numbers of``.
            contents: bytes of each earlier part -> name and step of its draw.
        """
        if part_bytes not in contents:
            contents[part_bytes] = (name, self._step)
            return
        other, step = contents[part_bytes]
        where = "one beside it" if (other, step) == (name, self._step) else f"{other} in step {step}"
        if not any(problem.startswith(description) for problem in stats.problems):
            note_problem(stats, f"{description} {where}")


def cells_of(bits: int, rate: float) -> int | None:
    """Return the number of cells that two masks have in common by chance with a probability of 2^-bits.

    The result is None if all cells of a mask are equal at this rate.

    Args:
        bits: negative binary logarithm of the probability.
        rate: share of dropped cells.
    """
    of_one = -math.log2(rate**2 + (1.0 - rate) ** 2) if 0.0 < rate < 1.0 else 0.0
    return math.ceil(bits / of_one) if of_one else None


def _stretch_hashes(cells: np.ndarray, count: int) -> np.ndarray:
    """Return the 64-bit hash of each ``count`` consecutive cells, independent of their position, uint64."""
    powers, inverses = _powers(BASE, cells.size), _powers(pow(BASE, -1, 2**64), cells.size)
    sums = np.zeros(cells.size + 1, np.uint64)
    np.cumsum(np.where(cells, powers, np.uint64(0)), out=sums[1:])
    hashes = (sums[count:] - sums[:-count]) * inverses[: cells.size - count + 1]
    hashes ^= hashes >> np.uint64(32)
    hashes *= np.uint64(MIX)
    return hashes ^ (hashes >> np.uint64(29))


@functools.lru_cache(maxsize=4)
def _all_powers(base: int, count: int) -> np.ndarray:
    """Return the powers 0 to ``count`` - 1 of a number modulo 2^64, uint64; cached."""
    powers = np.full(count, base, np.uint64)
    powers[0] = 1
    return np.cumprod(powers, dtype=np.uint64)


def _powers(base: int, count: int) -> np.ndarray:
    """Return the powers 0 to ``count`` - 1 of a number modulo 2^64, uint64."""
    return _all_powers(base, 2 ** math.ceil(math.log2(max(count, 2))))[:count]


def _equal_lines(lines: np.ndarray) -> tuple[int, int] | None:
    """Return the indices of two equal rows of bytes, the earlier first; None if all rows differ.

    Args:
        lines: bytes, (rows, columns).
    """
    whole = np.ascontiguousarray(lines).view(np.dtype((np.void, lines.shape[1])))[:, 0]
    _, first, kinds = np.unique(whole, return_index=True, return_inverse=True)
    repeat_indices = np.flatnonzero(first[kinds] != np.arange(len(lines)))
    return (int(first[kinds[repeat_indices[0]]]), int(repeat_indices[0])) if repeat_indices.size else None


def note_problem(stats: DrawStats, message: str) -> None:
    """Add a problem to the counts of a draw, unless they already have it.

    Args:
        stats: counts of the draw.
        message: problem to add, in words.
    """
    if message not in stats.problems:
        stats.problems.append(message)


def strides(shape: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Yield each axis with more than one element, and the distance of neighbors along it in the flat array.

    Axes are strings that count from the last axis as -1: shape (2, 3) -> (``-2``, 3), (``-1``, 1).
    """
    for axis, size in enumerate(shape):
        if size > 1:
            yield str(axis - len(shape)), math.prod(shape[axis + 1 :])


def _both(earlier: np.ndarray, later: np.ndarray) -> list[int]:
    """Return the number of cells set in both masks, and the number set in ``earlier``."""
    return [int(np.count_nonzero(earlier & later)), int(np.count_nonzero(earlier))]


def _products(earlier: np.ndarray, later: np.ndarray) -> list[float]:
    """Return the sum of the products of two arrays of normal numbers, and the sum of the squares of ``earlier``."""
    earlier = earlier.astype(np.float64, copy=False)
    return [float(np.dot(earlier, later.astype(np.float64, copy=False))), float(np.dot(earlier, earlier))]


def _sum(totals: list[float], counts: list[float]) -> list[float]:
    """Return the sum of two lists of counts, element by element."""
    return [one + other for one, other in zip(totals, counts, strict=True)]
