"""Tests whether the port's own random draws deviate more than chance allows (verdict 7).

This module only computes with the counts of :mod:`toolkit.parity.comparator.rng_stats`. Each statistic becomes a signed
root z: the root of twice the log-likelihood ratio for a count or a variance, otherwise a number of standard deviations.
All are judged by :data:`LIMIT`. No test is a large-sample approximation. The bounds are on

- a rate, which is a count of n independent cells: P(|z| > LIMIT) <= 2 exp(-LIMIT^2 / 2) = 3e-14 (Chernoff), for any n
  and p;
- a serial correlation, in a mask or from one mask to another (Knuth, The Art of Computer Programming, vol. 2, section
  3.3.2 K): the number of dropped cells among the cells after a dropped cell. Which cells follow is known before they
  are drawn, so each is dropped with probability p, whatever came before. The bound of Garivier and Cappé 2011 ("The
  KL-UCB Algorithm", theorem 10) holds: P <= 2 e ceil(32 ln n) exp(-32), below 5e-11 up to n = 10^9;
- mean and variance of normal numbers (Gauss, and Chernoff for chi squared), and the number of them that lie far out (as
  a rate: the fourth moment has no such bound, and is less informative). Their serial correlations are normal sums with
  a variance that is known step by step, and are bounded like the correlations of masks.

A large model has about 300 masks with 8 statistics each: a correct generator fails with a probability below 2e-7.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from toolkit.parity.exchange.results import DrawStats, GeneratorStats, MaskStats, RotationStats

#: Largest allowed |z| of any statistic; z is about a number of standard deviations.
LIMIT = 8.0
#: Largest difference of a rate from the requested rate by design: 16 random bits decide on a cell
#: (:func:`models.operations.ops.random_mask`).
RATE_SLACK = 2.0**-17


@dataclass(frozen=True)
class Deviation:
    """A statistic of the draws of one module, or of all modules together, as a distance from its expected value.

    Attributes:
        name: name of the draw; ``dropout:all masks of rate P`` or ``normal:all rotations`` for all modules together.
        z: signed root of the statistic, about a number of standard deviations; 0 if it is as expected.
        message: the figures in words.
    """

    name: str
    z: float
    message: str


def find_wrong_draws(generators: GeneratorStats) -> Iterator[tuple[str, str]]:
    """Yield the name and a message for each of the port's draws that chance does not explain."""
    for name, draws in (*generators.masks.items(), *generators.rotations.items(), *generators.sequences.items()):
        for problem in draws.problems:
            yield name, problem
    for deviation in deviations(generators):
        if not abs(deviation.z) <= LIMIT:
            text = f"{deviation.message}; chance allows {LIMIT:.3g} standard deviations, this is {deviation.z:.1f}"
            yield deviation.name, text


def deviations(generators: GeneratorStats) -> Iterator[Deviation]:
    """Yield by how many standard deviations counts of random draws differ from their expected values.

    First come the counts of each module, then the counts of all modules together, which show a small fault better.

    Args:
        generators: counts of the port's dropout masks and rotations.
    """
    by_rate: dict[float, list[MaskStats]] = {}
    for name, masks in generators.masks.items():
        by_rate.setdefault(masks.rate, []).append(masks)
        yield from _of_masks(name, masks)
    for name, masks in generators.sequences.items():
        yield from _of_masks(name, masks)
    for name, rotations in generators.rotations.items():
        yield from _of_rotations(name, rotations)
    for rate, masks_of_rate in by_rate.items():
        if len(masks_of_rate) > 1:
            yield from _of_masks(f"dropout:all masks of rate {rate:.6g}", all_masks(masks_of_rate))
    # Seeded numbers, equal in every module and step, would count several times.
    unseeded_rotations = [rotations for rotations in generators.rotations.values() if not rotations.seeded]
    if len(unseeded_rotations) > 1:
        yield from _of_rotations("normal:all rotations", all_rotations(unseeded_rotations))


def binomial(hits: float, trials: float, rate: float, slack: float = 0.0) -> float:
    """Return the signed root z of a number of hits among independent trials with a known rate.

    z is infinite if the rate makes the number of hits impossible, and 0 without trials.

    Args:
        hits: number of hits.
        trials: number of trials.
        rate: expected share of hits.
        slack: largest difference of the true rate from ``rate``.
    """
    if not trials:
        return 0.0
    observed_rate = hits / trials
    nearest = min(max(observed_rate, rate - slack, 0.0), rate + slack, 1.0)
    return math.copysign(
        math.sqrt(2.0 * trials * max(divergence(observed_rate, nearest), 0.0)), observed_rate - nearest
    )


def divergence(share: float, expected_share: float) -> float:
    """Return the Kullback-Leibler divergence of two distributions of a binary variable.

    The divergence is infinite if the expected share is 0 or 1 and excludes the observed share.

    Args:
        share: observed probability of the first outcome.
        expected_share: expected probability of the first outcome.
    """
    return _times_log(share, expected_share) + _times_log(1.0 - share, 1.0 - expected_share)


def variance(squares: float, count: int) -> float:
    """Return the signed root z of the sum of squares of standard normal numbers.

    Args:
        squares: sum of the squares.
        count: number of the numbers.
    """
    ratio = squares / count
    if not ratio > 0:
        return -math.inf if ratio == 0 else math.nan
    return math.copysign(math.sqrt(count * max(ratio - 1.0 - math.log(ratio), 0.0)), ratio - 1.0)


def correlation(products: float, squares: float) -> float:
    """Return z of a sum of products of known numbers and standard normal numbers, in standard deviations.

    Args:
        products: sum of the products.
        squares: sum of the squares of the known numbers.
    """
    return products / math.sqrt(squares) if squares else 0.0


def _times_log(share: float, expected_share: float) -> float:
    """Return a term of the divergence, share * log(share / expected_share); 0 for a share of 0."""
    if share == 0.0:
        return 0.0
    return share * math.log(share / expected_share) if expected_share else math.inf


#: Attribute of :class:`.results.DrawStats` with the counts of earlier draws -> description of these draws in a message.
RELATED_DRAWS = {
    "modules": "in the module drawn before it, of equal shape,",
    "steps": "in the same module a step earlier,",
}


def _of_masks(name: str, masks: MaskStats) -> Iterator[Deviation]:
    """Yield the statistics of masks: the rate of their rarer state, and its correlations.

    The rarer state is a dropped cell, or a kept cell at rates above 1/2.

    Args:
        name: name of the draw.
        masks: counts of the masks.
    """
    rare, state = (masks.rate, "dropped") if masks.rate <= 0.5 else (1.0 - masks.rate, "kept")

    def deviation(counts: list[float], text: str) -> Deviation:
        """Return the statistic of a number of cells in the rarer state.

        Args:
            counts: number of these cells, and number of all cells.
            text: description of the cells, for the message.
        """
        hits, trials = counts
        share = f"{hits / max(trials, 1):.5g} of {trials:.0f} cells {text} are {state}, not {rare:.5g}"
        return Deviation(name, binomial(hits, trials, rare, RATE_SLACK), share)

    yield deviation(masks.rare, "in all")
    for axis, counts in masks.neighbors.items():
        yield deviation(counts, f"after a {state} one along axis {axis}")
    for kind, where in RELATED_DRAWS.items():
        yield deviation(getattr(masks, kind), f"whose like, {where} is {state}")


def _of_rotations(name: str, rotation_stats: RotationStats) -> Iterator[Deviation]:
    """Yield the statistics of normal numbers: mean, mean square, numbers far out, and correlations."""
    count = rotation_stats.count
    mean, square = rotation_stats.sum / count, rotation_stats.squares / count
    yield Deviation(name, rotation_stats.sum / math.sqrt(count), f"the mean of {count} numbers is {mean:.4g}, not 0")
    text = f"the mean square of {count} numbers is {square:.5g}, not 1"
    yield Deviation(name, variance(rotation_stats.squares, count), text)
    for limit, hits in rotation_stats.beyond.items():
        expected_rate = math.erfc(int(limit) / math.sqrt(2.0))
        text = f"{hits / count:.5g} of {count} numbers lie beyond {limit}, not {expected_rate:.5g} as of normal ones"
        yield Deviation(name, binomial(hits, count, expected_rate), text)
    for axis, (products, squares) in rotation_stats.neighbors.items():
        text = f"neighbors along axis {axis} are correlated: {_share(products, squares):.4g}"
        yield Deviation(name, correlation(products, squares), text)
    for kind, where in RELATED_DRAWS.items():
        products, squares = getattr(rotation_stats, kind)
        text = f"correlated with the numbers {where} by {_share(products, squares):.4g}"
        yield Deviation(name, correlation(products, squares), text)


def _share(products: float, squares: float) -> float:
    """Return a sum of products divided by a sum of squares: the correlation of two draws; 0 without squares."""
    return products / squares if squares else 0.0


def all_masks(masks_of_modules: Sequence[MaskStats]) -> MaskStats:
    """Return the counts of several modules' masks together; all masks have the same rate."""
    return MaskStats(
        **_sum_counts(masks_of_modules),
        rate=masks_of_modules[0].rate,
        rare=_sums([masks.rare for masks in masks_of_modules]),
    )


def all_rotations(rotations_of_modules: Sequence[RotationStats]) -> RotationStats:
    """Return the counts of several modules' rotations together."""
    return RotationStats(
        **_sum_counts(rotations_of_modules),
        count=sum(rotations.count for rotations in rotations_of_modules),
        sum=sum(rotations.sum for rotations in rotations_of_modules),
        squares=sum(rotations.squares for rotations in rotations_of_modules),
        beyond={
            limit: sum(rotations.beyond[limit] for rotations in rotations_of_modules)
            for limit in rotations_of_modules[0].beyond
        },
    )


def _sum_counts(draws_of_modules: Sequence[DrawStats]) -> dict:
    """Return the sums of the counts that masks and rotations have, by attribute. Axes are counted from the last."""
    axes = dict.fromkeys(axis for draws in draws_of_modules for axis in draws.neighbors)
    return {
        "shape": [],
        "neighbors": {
            axis: _sums([draws.neighbors[axis] for draws in draws_of_modules if axis in draws.neighbors])
            for axis in axes
        },
        **{kind: _sums([getattr(draws, kind) for draws in draws_of_modules]) for kind in RELATED_DRAWS},
    }


def _sums(count_lists: Sequence[Sequence[float]]) -> list[float]:
    """Return the sum of several lists of counts, element by element."""
    return [sum(column) for column in zip(*count_lists, strict=True)]
