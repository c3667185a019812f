"""Tests whether the port initializes its weights with the same distribution as the reference (verdict 8).

This module only computes with the counts of :mod:`toolkit.parity.measure.initial_values`. Parameters that the reference
sets to a constant must have that constant. For the other parameters, each statistic becomes a signed root z, which is
judged by the limit of :mod:`.rng_tests`: z is about a number of standard deviations, and 0 for an expected value. No
test is a large-sample approximation. For two samples of n values each from one distribution, the bounds are on

- the spread of normal numbers: one side's share of the sum of squares is Beta((n - 1)/2, (n - 1)/2), and its Chernoff
  bound is P(|z| > LIMIT) <= 2 exp(-LIMIT^2 / 2) = 3e-14. z is the root of twice the log-likelihood ratio;
- the mean of normal numbers: likewise, since t^2 / (2n - 2 + t^2) is Beta(1/2, n - 1);
- the number of values beyond 1, 2 and 3 joint standard deviations, for any distribution: the values of one side are
  drawn from all of these without replacement, and Chernoff's bound for independent draws holds (Hoeffding 1963,
  "Probability inequalities for sums of bounded random variables", section 6);
- the largest distance between the two distribution functions (Kolmogorov-Smirnov), for any distribution: P(z > LIMIT)
  <= C exp(-LIMIT^2 / 2) with C = 2 for n >= 458 and C = e below (Wei and Dudley 2012, "Two-sample
  Dvoretzky-Kiefer-Wolfowitz inequalities").

So a correct parameter fails with a probability below 2e-13.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from toolkit.parity.exchange.results import NewWeights
from toolkit.parity.judge.rng_tests import LIMIT, Deviation, binomial, divergence
from toolkit.parity.measure.initial_values import NewValues, SampleStats


def find_wrong_initializations(new_weights: NewWeights) -> Iterator[tuple[str, str]]:
    """Yield the name of each parameter that the port initializes unlike the reference, and a message.

    The message has the parameter's first wrong statistic.
    """
    for name, values in new_weights.parameters.items():
        if problem := next(_problems(name, values), None):
            yield name, f"as {new_weights.place} makes it anew: {problem}"


def _problems(name: str, values: NewValues) -> Iterator[str]:
    """Yield a message for each wrong statistic of a newly initialized parameter, given its name and values."""
    ours, theirs = values.ours, values.theirs
    if ours is None or theirs is None:
        yield "the reference has no such parameter" if theirs is None else "it is missing"
    elif ours.is_constant or theirs.is_constant:
        if (ours.lowest, ours.highest) != (theirs.lowest, theirs.highest):
            yield f"{_describe_values(ours)}; the reference's: {_describe_values(theirs)}"
    else:
        if ours.zero_rows != theirs.zero_rows:
            yield f"rows of zeros are {_list_rows(ours.zero_rows)}; the reference's: {_list_rows(theirs.zero_rows)}"
        for deviation in deviations(name, values):
            if not abs(deviation.z) <= LIMIT:
                limit_text = f"chance allows {LIMIT:.3g} standard deviations, this is {deviation.z:.1f}"
                yield f"{deviation.message}; {limit_text}"


def deviations(name: str, values: NewValues) -> Iterator[Deviation]:
    """Yield the statistics of a newly initialized parameter; none if a side lacks it or sets it to a constant.

    Args:
        name: name of the parameter.
        values: comparison of both sides' values.
    """
    ours, theirs = values.ours, values.theirs
    if ours is None or theirs is None or ours.is_constant or theirs.is_constant:
        return
    text = f"the spread of {ours.count} values is {_spread(ours):.4g}, the reference's {_spread(theirs):.4g}"
    yield Deviation(name, spread_z(ours, theirs), text)
    text = f"the mean of {ours.count} values is {ours.mean:.3g}, the reference's {theirs.mean:.3g}"
    yield Deviation(name, mean_z(ours, theirs), text)
    for magnitude, (hits, of_both) in values.beyond.items():
        text = f"{hits} values lie beyond {magnitude} standard deviations, {of_both - hits} of the reference's"
        yield Deviation(name, binomial(hits, of_both, ours.count / (ours.count + theirs.count)), text)
    text = f"the distribution of {ours.count} values is another, by {values.apart:.2g} of them"
    yield Deviation(name, 2.0 * values.apart * math.sqrt(_harmonic(ours, theirs)), text)


def spread_z(ours: SampleStats, theirs: SampleStats) -> float:
    """Return the signed root z of the ratio of two sides' spreads; positive if the port's is larger.

    Args:
        ours: samples of the port's parameter.
        theirs: samples of the reference's parameter.
    """
    expected_share = (ours.count - 1) / (ours.count + theirs.count - 2)
    share = ours.squares / (ours.squares + theirs.squares)
    root = math.sqrt((ours.count + theirs.count - 2) * max(divergence(expected_share, share), 0.0))
    return math.copysign(root, share - expected_share)


def mean_z(ours: SampleStats, theirs: SampleStats) -> float:
    """Return the signed root z of the difference of two sides' means; 0 if its square is below expectation.

    Args:
        ours: samples of the port's parameter.
        theirs: samples of the reference's parameter.
    """
    difference = ours.mean - theirs.mean
    between_means = _harmonic(ours, theirs) * difference**2
    share, free = between_means / (between_means + ours.squares + theirs.squares), ours.count + theirs.count - 1
    root = math.sqrt(free * max(divergence(1.0 / free, share), 0.0)) if not share <= 1.0 / free else 0.0
    return math.copysign(root, difference)


def _harmonic(ours: SampleStats, theirs: SampleStats) -> float:
    """Return n m / (n + m) for the numbers of values n and m of the two sides.

    Args:
        ours: samples of the port's parameter.
        theirs: samples of the reference's parameter.
    """
    return ours.count * theirs.count / (ours.count + theirs.count)


def _spread(stats: SampleStats) -> float:
    """Return the standard deviation of the values."""
    return math.sqrt(stats.squares / stats.count)


def _describe_values(stats: SampleStats) -> str:
    """Describe the values of a parameter by their range, or by their value if all are equal."""
    return f"all {stats.lowest:.3g}" if stats.is_constant else f"from {stats.lowest:.3g} to {stats.highest:.3g}"


def _list_rows(rows: list[int]) -> str:
    """Return the first four indices of rows as text, such as ``0, 3``; ``none`` without rows."""
    return ", ".join(map(str, rows[:4])) + (", ..." if len(rows) > 4 else "") if rows else "none"
