"""Confidence intervals of metrics, from resampled examples (the percentile bootstrap of Efron 1979)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

#: Share of the resampled metrics that an interval contains.
CONFIDENCE = 0.95
#: Number of times that the examples are resampled.
NUM_SAMPLES = 500


def bootstrap_intervals(
    metrics_of: Callable[[np.ndarray], Mapping[str, float]], num_examples: int
) -> dict[str, list[float]]:
    """Return the lower and the upper end of the confidence interval of each metric; empty for fewer than 2 examples.

    The samples are the same in every call, so that the intervals of two models can be compared.

    Args:
        metrics_of: function that computes the metrics of the examples with these indices, (N,), with repetitions.
        num_examples: number of examples, N.
    """
    if num_examples < 2:
        return {}
    generator = np.random.default_rng(0)
    samples = [metrics_of(generator.integers(0, num_examples, num_examples)) for _ in range(NUM_SAMPLES)]
    tail = 50 * (1 - CONFIDENCE)
    return {
        name: np.percentile([sample[name] for sample in samples], [tail, 100 - tail]).tolist()
        for name in samples[0]
        if all(name in sample for sample in samples)
    }


def mean_interval(mean: float, values: np.ndarray, num_values: int) -> list[float]:
    """Return the confidence interval of a mean, from the normal distribution; empty for fewer than 2 values.

    Args:
        mean: mean of all values.
        values: some of the values, for their spread.
        num_values: number of all values.
    """
    if len(values) < 2:
        return []
    margin = 1.96 * float(np.std(values, ddof=1)) / np.sqrt(num_values)
    return [mean - margin, mean + margin]
