"""How far the port's own draws lie from what chance allows (verdict 7). Pure arithmetic on the counts of
:mod:`.candidate.tallies`.

Every statistic becomes a signed root z: of twice the log-likelihood ratio for a count or a variance, else of the usual
kind. All are judged by :data:`LIMIT`. None is an approximation for large samples; what is bounded is

- a rate, a count of n independent cells: P(|z| > LIMIT) <= 2 exp(-LIMIT^2 / 2) = 3e-14 (Chernoff), whatever n and p;
- a serial correlation, in a mask or from one mask to another (Knuth, The Art of Computer Programming, vol. 2, section
  3.3.2 K): of the cells that come after a dropped one, how many are dropped. Which cells these are is known before
  they are drawn, so that each is dropped with probability p whatever came before, and the bound of Garivier and Cappé
  2011 ("The KL-UCB Algorithm", theorem 10) holds: P <= 2 e ceil(32 ln n) exp(-32), below 5e-11 up to n = 10^9;
- mean and variance of normal numbers (Gauss, Chernoff for chi squared), and how many of them lie far out (as a rate:
  the fourth moment has no such bound, and says less); their serial correlations, which are normal sums with a variance
  that is known step by step, bounded like those of masks.

A large model has about 300 masks with 8 statistics each: a right generator is stopped with a probability below 2e-7.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

#: What |z| of any statistic may be.
LIMIT = 8.0
#: By how much a rate may be off by design: 16 random bits decide about a cell (:func:`models.ops.dropout`).
RATE_SLACK = 2.0**-17
#: How far a scale may be off by rounding in float32, relative.
SCALE_SLACK = 2.0**-21
#: Magnitudes beyond which normal numbers are counted.
BEYOND = (1, 2, 3)


@dataclass(frozen=True)
class Deviation:
    """A statistic of the draws of one module, or of all modules together.

    Attributes:
        name: of the draw (see :mod:`.draws`); ``dropout:all masks of rate P`` or ``normal:all rotations`` for those
            of all modules.
        z: 0 where it is just what is expected.
        message: the figures in words.
    """

    name: str
    z: float
    message: str


def faults(generators: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Everything that is wrong with a port's own draws: the draw's name, and what is wrong with it.

    Args:
        generators: as :func:`.candidate.generators.measure` gives them.
    """
    for name, figures in generators.items():
        for problem in figures["problems"]:
            yield name, problem
        if figures["kind"] == "dropout":
            rate, off = figures["rate"], figures["scale_error"]
            if not off <= SCALE_SLACK + RATE_SLACK / (1.0 - rate):
                yield name, f"what is kept is not scaled by 1/(1-{rate:.6g}): off by {off:.1e} of that"
    for deviation in deviations(generators):
        if not abs(deviation.z) <= LIMIT:
            text = f"{deviation.message}; chance allows {LIMIT:.3g} standard deviations, this is {deviation.z:.1f}"
            yield deviation.name, text


def deviations(generators: Mapping[str, Mapping[str, Any]]) -> Iterator[Deviation]:
    """All statistics: those of each module, then those of all modules together, which see a small fault better."""
    masks, rotations = defaultdict(list), []
    for name, figures in generators.items():
        if figures["kind"] == "dropout":
            masks[figures["rate"]].append(figures)
            yield from _of_masks(name, figures["rate"], figures)
        else:
            yield from _of_rotations(name, figures)
            if not figures["seeded"]:  # the same numbers in every module and step would be counted several times
                rotations.append(figures)
    for rate, several in masks.items():
        if len(several) > 1:
            yield from _of_masks(f"dropout:all masks of rate {rate:.6g}", rate, _together(several))
    if len(rotations) > 1:
        yield from _of_rotations("normal:all rotations", _together(rotations))


def binomial(hits: int, trials: int, rate: float, slack: float = 0.0) -> float:
    """z of ``hits`` in ``trials`` of probability ``rate``, which may be off by ``slack``; infinite for what cannot be,
    0 without trials."""
    if not trials:
        return 0.0
    seen = hits / trials
    nearest = min(max(seen, rate - slack, 0.0), rate + slack, 1.0)
    divergence = _times_log(seen, nearest) + _times_log(1.0 - seen, 1.0 - nearest)
    return math.copysign(math.sqrt(2.0 * trials * max(divergence, 0.0)), seen - nearest)


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


def _of_masks(name: str, rate: float, figures: Mapping[str, Any]) -> Iterator[Deviation]:
    """The statistics of masks. They count the rarer state: what is dropped, or, at rates above 1/2, what is kept."""
    rare, state = (rate, "dropped") if rate <= 0.5 else (1.0 - rate, "kept")

    def deviation(counts: list[int], text: str) -> Deviation:
        hits, trials = counts
        share = f"{hits / max(trials, 1):.5g} of {trials} cells {text} are {state}, not {rare:.5g}"
        return Deviation(name, binomial(hits, trials, rare, RATE_SLACK), share)

    yield deviation(figures["rare"], "in all")
    for axis, counts in figures["neighbours"].items():
        yield deviation(counts, f"after a {state} one along axis {axis}")
    for kind, where in RELATED.items():
        yield deviation(figures[kind], f"whose like, {where} is {state}")


def _of_rotations(name: str, figures: Mapping[str, Any]) -> Iterator[Deviation]:
    count = figures["count"]
    mean, square = figures["sum"] / count, figures["squares"] / count
    yield Deviation(name, figures["sum"] / math.sqrt(count), f"the mean of {count} numbers is {mean:.4g}, not 0")
    yield Deviation(
        name, variance(figures["squares"], count), f"the mean square of {count} numbers is {square:.5g}, not 1"
    )
    for limit in BEYOND:
        hits, expected = figures["beyond"][str(limit)], math.erfc(limit / math.sqrt(2.0))
        text = f"{hits / count:.5g} of {count} numbers lie beyond {limit}, not {expected:.5g} as of normal ones"
        yield Deviation(name, binomial(hits, count, expected), text)
    for axis, sums in figures["neighbours"].items():
        text = f"neighbours along axis {axis} are correlated: {_share(sums):.4g}"
        yield Deviation(name, correlation(*sums), text)
    for kind, where in RELATED.items():
        text = f"correlated with the numbers {where} by {_share(figures[kind]):.4g}"
        yield Deviation(name, correlation(*figures[kind]), text)


def _share(sums: list[float]) -> float:
    return sums[0] / sums[1] if sums[1] else 0.0


def _together(several: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums of several modules' counts. Axes are counted from the last, which is what they have in common."""
    total: dict[str, Any] = {"neighbours": {}, "beyond": {}}
    for figures in several:
        for key in ("count", "sum", "squares"):
            if key in figures:
                total[key] = total.get(key, 0) + figures[key]
        for key in ("rare", *RELATED):
            if key in figures:
                total[key] = _added(total.get(key), figures[key])
        for axis, counts in figures["neighbours"].items():
            total["neighbours"][axis] = _added(total["neighbours"].get(axis), counts)
        for limit, hits in figures.get("beyond", {}).items():
            total["beyond"][limit] = total["beyond"].get(limit, 0) + hits
    return total


def _added(total: list | None, counts: list) -> list:
    return list(counts) if total is None else [one + other for one, other in zip(total, counts, strict=True)]
