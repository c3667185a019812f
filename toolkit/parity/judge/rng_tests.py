"""How far the port's own draws lie from what chance allows (verdict 7). Pure arithmetic on the counts of
:mod:`toolkit.parity.comparator.rng_stats`.

Every statistic becomes a signed root z: of twice the log-likelihood ratio for a count or a variance, else of the usual
kind. All are judged by :data:`LIMIT`. No test is a large-sample approximation. The bounds are on

- a rate, a count of n independent cells: P(|z| > LIMIT) <= 2 exp(-LIMIT^2 / 2) = 3e-14 (Chernoff), whatever n and p;
- a serial correlation, in a mask or from one mask to another (Knuth, The Art of Computer Programming, vol. 2, section
  3.3.2 K): how many cells after a dropped one are dropped. Which cells these are is known before they are drawn, so
  each is dropped with probability p whatever came before, and the bound of Garivier and Cappé
  2011 ("The KL-UCB Algorithm", theorem 10) holds: P <= 2 e ceil(32 ln n) exp(-32), below 5e-11 up to n = 10^9;
- mean and variance of normal numbers (Gauss, Chernoff for chi squared), and how many of them lie far out (as a rate:
  the fourth moment has no such bound, and says less); their serial correlations, which are normal sums with a variance
  known step by step, bounded like those of masks.

A large model has about 300 masks with 8 statistics each: a right generator fails with a probability below 2e-7.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from toolkit.parity.job.results import DrawStats, GeneratorStats, MaskStats, RotationStats

#: Bound on |z| of any statistic.
LIMIT = 8.0
#: How far a rate may be off by design: 16 random bits decide on a cell
#: (:func:`models.operations.ops.random_mask`).
RATE_SLACK = 2.0**-17


@dataclass(frozen=True)
class Deviation:
    """A statistic of the draws of one module, or of all modules together.

    Attributes:
        name: of the draw; ``dropout:all masks of rate P`` or ``normal:all rotations`` for those of all modules.
        z: 0 if the statistic is as expected.
        message: the figures in words.
    """

    name: str
    z: float
    message: str


def faults(generators: GeneratorStats) -> Iterator[tuple[str, str]]:
    """Yield the name of each of the port's draws that is wrong, and what is wrong with it."""
    for name, draws in (*generators.masks.items(), *generators.rotations.items(), *generators.sequences.items()):
        for problem in draws.problems:
            yield name, problem
    for deviation in deviations(generators):
        if not abs(deviation.z) <= LIMIT:
            text = f"{deviation.message}; chance allows {LIMIT:.3g} standard deviations, this is {deviation.z:.1f}"
            yield deviation.name, text


def deviations(generators: GeneratorStats) -> Iterator[Deviation]:
    """Yield each module's statistics, then those of all modules together, which show a small fault better."""
    by_rate: dict[float, list[MaskStats]] = {}
    for name, masks in generators.masks.items():
        by_rate.setdefault(masks.rate, []).append(masks)
        yield from _of_masks(name, masks)
    for name, masks in generators.sequences.items():
        yield from _of_masks(name, masks)
    for name, rotations in generators.rotations.items():
        yield from _of_rotations(name, rotations)
    for rate, several in by_rate.items():
        if len(several) > 1:
            yield from _of_masks(f"dropout:all masks of rate {rate:.6g}", all_masks(several))
    # Seeded numbers, equal in every module and step, would count several times.
    drawn_anew = [rotations for rotations in generators.rotations.values() if not rotations.seeded]
    if len(drawn_anew) > 1:
        yield from _of_rotations("normal:all rotations", all_rotations(drawn_anew))


def binomial(hits: float, trials: float, rate: float, slack: float = 0.0) -> float:
    """z of ``hits`` in ``trials`` at a rate known to ``slack``; infinite for the impossible, 0 without trials."""
    if not trials:
        return 0.0
    seen = hits / trials
    nearest = min(max(seen, rate - slack, 0.0), rate + slack, 1.0)
    return math.copysign(math.sqrt(2.0 * trials * max(divergence(seen, nearest), 0.0)), seen - nearest)


def divergence(share: float, expected: float) -> float:
    """Kullback-Leibler divergence of two probabilities; infinite where the other leaves no chance."""
    return _times_log(share, expected) + _times_log(1.0 - share, 1.0 - expected)


def variance(squares: float, count: int) -> float:
    """z of the sum of squares of ``count`` standard normal numbers."""
    ratio = squares / count
    if not ratio > 0:
        return -math.inf if ratio == 0 else math.nan
    return math.copysign(math.sqrt(count * max(ratio - 1.0 - math.log(ratio), 0.0)), ratio - 1.0)


def correlation(products: float, squares: float) -> float:
    """z of the sum of products of earlier numbers with later standard normal ones, given the earlier ones' squares."""
    return products / math.sqrt(squares) if squares else 0.0


def _times_log(share: float, expected: float) -> float:
    if share == 0.0:
        return 0.0
    return share * math.log(share / expected) if expected else math.inf


#: What the correlations of a draw with others are with.
RELATED = {"modules": "in the module drawn before it, of equal shape,", "steps": "in the same module a step earlier,"}


def _of_masks(name: str, masks: MaskStats) -> Iterator[Deviation]:
    """Yield the statistics of masks. They count the rarer state: dropped cells, or, at rates above 1/2, kept ones."""
    rare, state = (masks.rate, "dropped") if masks.rate <= 0.5 else (1.0 - masks.rate, "kept")

    def deviation(counts: list[float], text: str) -> Deviation:
        hits, trials = counts
        share = f"{hits / max(trials, 1):.5g} of {trials:.0f} cells {text} are {state}, not {rare:.5g}"
        return Deviation(name, binomial(hits, trials, rare, RATE_SLACK), share)

    yield deviation(masks.rare, "in all")
    for axis, counts in masks.neighbours.items():
        yield deviation(counts, f"after a {state} one along axis {axis}")
    for kind, where in RELATED.items():
        yield deviation(getattr(masks, kind), f"whose like, {where} is {state}")


def _of_rotations(name: str, rotations: RotationStats) -> Iterator[Deviation]:
    count = rotations.count
    mean, square = rotations.sum / count, rotations.squares / count
    yield Deviation(name, rotations.sum / math.sqrt(count), f"the mean of {count} numbers is {mean:.4g}, not 0")
    text = f"the mean square of {count} numbers is {square:.5g}, not 1"
    yield Deviation(name, variance(rotations.squares, count), text)
    for limit, hits in rotations.beyond.items():
        expected = math.erfc(int(limit) / math.sqrt(2.0))
        text = f"{hits / count:.5g} of {count} numbers lie beyond {limit}, not {expected:.5g} as of normal ones"
        yield Deviation(name, binomial(hits, count, expected), text)
    for axis, (products, squares) in rotations.neighbours.items():
        text = f"neighbours along axis {axis} are correlated: {_share(products, squares):.4g}"
        yield Deviation(name, correlation(products, squares), text)
    for kind, where in RELATED.items():
        products, squares = getattr(rotations, kind)
        text = f"correlated with the numbers {where} by {_share(products, squares):.4g}"
        yield Deviation(name, correlation(products, squares), text)


def _share(products: float, squares: float) -> float:
    return products / squares if squares else 0.0


def all_masks(several: Sequence[MaskStats]) -> MaskStats:
    """The sums of several modules' counts."""
    return MaskStats(**_added(several), rate=several[0].rate, rare=_sums([masks.rare for masks in several]))


def all_rotations(several: Sequence[RotationStats]) -> RotationStats:
    """The sums of several modules' counts."""
    return RotationStats(
        **_added(several),
        count=sum(rotations.count for rotations in several),
        sum=sum(rotations.sum for rotations in several),
        squares=sum(rotations.squares for rotations in several),
        beyond={limit: sum(rotations.beyond[limit] for rotations in several) for limit in several[0].beyond},
    )


def _added(several: Sequence[DrawStats]) -> dict:
    """Join the counts of all draws. Axes are counted from the last, which all of them have."""
    axes = dict.fromkeys(axis for draws in several for axis in draws.neighbours)
    return {
        "shape": [],
        "neighbours": {
            axis: _sums([draws.neighbours[axis] for draws in several if axis in draws.neighbours]) for axis in axes
        },
        **{kind: _sums([getattr(draws, kind) for draws in several]) for kind in RELATED},
    }


def _sums(pairs: Sequence[Sequence[float]]) -> list[float]:
    return [sum(column) for column in zip(*pairs, strict=True)]
